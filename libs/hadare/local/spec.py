"""What a local cluster consists of: nodes with emulated (or real) devices, and how fast the emulated ones are.

Written ``5x4:V100,5x4:P100`` (nodes x devices : type) or as a YAML file; faults name their path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from hadare.model.errors import Rejected
from hadare.model.fields import DeviceType, NodeId
from hadare.scheduling.devices import UNKNOWN_LIKE, canonical_type, load_specs, nearest_type

_MOST_NODES = 256
_MOST_BYTES = 1_000_000
_TERM = re.compile(r"^(?:(\d+)x)?(\d+):([A-Za-z0-9][A-Za-z0-9_-]{0,31})$")

Rate = Annotated[float, Meta(gt=0, le=1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """``count`` devices of one type."""

    type: DeviceType
    count: Annotated[int, Meta(ge=1, le=64)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node agent to start. Without ``devices`` it offers what it finds on the machine."""

    name: NodeId
    devices: Annotated[tuple[DeviceGroup, ...], Meta(max_length=64)] = ()
    labels: Annotated[dict[str, str], Meta(max_length=32)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Steps per second of the reference type (V100), for every workload or for those named."""

    base_rate: Rate = 100.0
    workloads: Annotated[dict[str, Rate], Meta(max_length=256)] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The nodes of a local cluster and its emulation."""

    nodes: Annotated[tuple[NodeSpec, ...], Meta(min_length=1, max_length=_MOST_NODES)]
    emulation: Emulation = field(default_factory=Emulation)


DEFAULT_TYPES = ("V100", "P100", "T4", "K80", "T400")


def default_cluster() -> ClusterSpec:
    """Five nodes with one emulated device each, every one of another type."""
    return ClusterSpec(
        nodes=tuple(NodeSpec(name=kind.lower(), devices=(DeviceGroup(type=kind),)) for kind in DEFAULT_TYPES)
    )


def parse_cluster(text: str | None) -> ClusterSpec:
    """The cluster that ``text`` describes: nothing, a path to a YAML file, or terms. Raises ``Rejected`` (400)."""
    if text is None:
        return default_cluster()
    path = Path(text)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        return read_cluster(path)
    return _from_terms(text)


def read_cluster(path: Path) -> ClusterSpec:
    """A cluster file. Raises ``Rejected`` (400) with the path of what is wrong."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Rejected(413, f"{path}: larger than {_MOST_BYTES} bytes")
        plain = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(400, f"cannot read the cluster file: {error}") from error
    except yaml.YAMLError as error:
        raise Rejected(400, f"{path} is no valid YAML: {error}") from error
    return cluster_from(plain, str(path))


def cluster_from(plain: Any, source: str) -> ClusterSpec:
    """Plain values as a cluster; also refuses unknown fields and names given twice. Raises ``Rejected`` (400)."""
    _known_fields(plain, source)
    try:
        spec = msgspec.convert(plain, ClusterSpec)
    except msgspec.ValidationError as error:
        raise Rejected(400, f"{source}: {error}") from error
    names = [node.name for node in spec.nodes]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise Rejected(400, f"{source}: two nodes are called '{name}' - at `$.nodes[{place}].name`")
    return spec


def unknown_types(spec: ClusterSpec) -> tuple[str, ...]:
    """A line on each emulated type whose speed and memory are not known; it may be meant, or a slip."""
    named = {group.type for node in spec.nodes for group in node.devices}
    return tuple(
        f"no figures are known of a {name}: it counts as a {UNKNOWN_LIKE}{nearest_type(name)}"
        for name in sorted(named)
        if canonical_type(name) not in load_specs()
    )


def _known_fields(plain: Any, source: str) -> None:
    """A misspelt field would be ignored in silence by the decoder that messages use."""
    groups: list[tuple[str, Any, set[str]]] = [("$", plain, {"nodes", "emulation"})]
    if isinstance(plain, dict):
        groups.append(("$.emulation", plain.get("emulation"), {"base_rate", "workloads"}))
        nodes = plain.get("nodes")
        for i, node in enumerate(nodes if isinstance(nodes, list) else []):
            groups.append((f"$.nodes[{i}]", node, {"name", "devices", "labels"}))
            devices = node.get("devices") if isinstance(node, dict) else None
            for k, group in enumerate(devices if isinstance(devices, list) else []):
                groups.append((f"$.nodes[{i}].devices[{k}]", group, {"type", "count"}))
    for path, group, known in groups:
        unknown = sorted(set(map(str, group)) - known) if isinstance(group, dict) else []
        if unknown:
            names = ", ".join(sorted(known))
            raise Rejected(400, f"{source}: unknown field '{unknown[0]}' (known: {names}) - at `{path}`")


def _from_terms(text: str) -> ClusterSpec:
    nodes: list[NodeSpec] = []
    for place, term in enumerate(text.split(","), start=1):
        match = _TERM.match(term.strip())
        if match is None:
            raise Rejected(
                400, f"cluster: '{term.strip()}' is not NODESxDEVICES:TYPE, as in 5x4:V100 - at term {place}"
            )
        count, devices, kind = int(match[1] or 1), int(match[2]), match[3]
        if not (1 <= count <= _MOST_NODES and 1 <= devices <= 64):
            raise Rejected(400, f"cluster: at most {_MOST_NODES} nodes of 1 to 64 devices - at term {place}")
        nodes.extend(_numbered(nodes, kind, count, devices))
    if len(nodes) > _MOST_NODES:
        raise Rejected(400, f"cluster: {len(nodes)} nodes are more than {_MOST_NODES}")
    return ClusterSpec(nodes=tuple(nodes))


def _numbered(existing: list[NodeSpec], kind: str, count: int, devices: int) -> list[NodeSpec]:
    stem = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
    first = 1 + sum(node.devices[0].type.lower() == kind.lower() for node in existing)
    return [
        NodeSpec(name=f"{stem}-{first + i}", devices=(DeviceGroup(type=kind, count=devices),)) for i in range(count)
    ]
