"""Reads a job file: YAML (or JSON) to a spec, every fault with its path and its line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hadare.machines import admission
from hadare.model.errors import Rejected

MAX_BYTES = 1_000_000
_MAX_ALIASES = 100
_PATH = re.compile(r"^[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*$")


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: a key twice is a fault, and ``1e-3`` is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job file's content. ``lines``: on which line each path stands."""

    name: str
    spec: dict[str, Any]
    lines: Mapping[str, int]

    def checked(self) -> dict[str, Any]:
        """The spec. Raises ``Rejected`` (400) with every fault."""
        try:
            admission.read_spec(self.spec, self.name)
        except Rejected as refusal:
            raise self.located(refusal) from refusal
        return self.spec

    def located(self, refusal: Rejected) -> Rejected:
        """The same refusal in terms of this file: paths within it, with their lines."""
        faults = refusal.details.get("faults")
        if not isinstance(faults, list):
            return Rejected(refusal.code, f"{self.name}: {refusal.message}", refusal.details)
        placed = [self._placed(fault) for fault in faults]
        count = f"{len(placed)} fault{'s' * (len(placed) > 1)}"
        return Rejected(refusal.code, f"{self.name} has {count}: {_listed(placed)}", {"faults": placed})

    def _placed(self, fault: Mapping[str, Any]) -> dict[str, Any]:
        path = str(fault.get("path", "")).removeprefix("spec.")
        line = self.lines.get(path)
        return {"path": path, "message": str(fault.get("message", "")), **({"line": line} if line else {})}


def read_job_file(path: Path, settings: Iterable[str] = ()) -> JobFile:
    """The file, with ``key=value`` settings put over it. Raises ``Rejected`` (400, 404) saying where it is wrong."""
    text = _text(path)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        lines = dict(_lines(node, "")) if node is not None else {}
        spec = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _not_yaml(path, error) from error
    finally:
        loader.dispose()
    if not isinstance(spec, dict):
        raise Rejected(400, f"{path}: a job file is a map of fields (workload, total_steps, batch_size, …)")
    for setting in settings:
        lines.pop(_apply(spec, setting), None)
    return JobFile(str(path), spec, lines)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Rejected(400, f"{path} is larger than {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise Rejected(400, f"there is no file {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(400, f"{path} cannot be read: {error}") from error


def _not_yaml(path: Path, error: Exception) -> Rejected:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if mark is None:
        return Rejected(400, f"{path} is not valid YAML: {problem}")
    fault = {"path": "", "line": mark.line + 1, "message": f"{problem} (column {mark.column + 1})"}
    return Rejected(400, f"{path} is not valid YAML: {problem}", {"faults": [fault]})


def _lines(root: yaml.Node, path: str) -> Iterable[tuple[str, int]]:
    """(path, line) of every value. Raises a YAML error for a key that stands twice, and for too many aliases."""
    seen: dict[int, int] = {}
    waiting = [(root, path, root.start_mark.line + 1)]
    while waiting:
        node, where, line = waiting.pop()
        seen[id(node)] = seen.get(id(node), 0) + 1
        if seen[id(node)] > _MAX_ALIASES:
            raise yaml.constructor.ConstructorError(None, None, "too many aliases", node.start_mark)
        if where:
            yield where, line
        if isinstance(node, yaml.MappingNode):
            waiting += _children(node, where)
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(child, f"{where}[{n}]", child.start_mark.line + 1) for n, child in enumerate(node.value)]


def _children(node: yaml.MappingNode, where: str) -> list[tuple[yaml.Node, str, int]]:
    keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
            problem = f"the key '{key.value}' stands here twice"
            raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
    return [
        (child, f"{where}.{key.value}" if where else str(key.value), key.start_mark.line + 1)
        for key, child in node.value
        if isinstance(key, yaml.ScalarNode)
    ]


def _apply(spec: dict[str, Any], setting: str) -> str:
    """Puts ``config.lr=0.1`` over the spec; the value is YAML. Returns its path."""
    path, equals, text = setting.partition("=")
    if not equals or not _PATH.match(path):
        raise Rejected(400, f"--set {setting}: expected PATH=VALUE, such as config.lr=0.1")
    *parents, last = path.split(".")
    inner = spec
    for parent in parents:
        inner = inner.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise Rejected(400, f"--set {setting}: '{parent}' is not a map of fields")
    try:
        inner[last] = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise Rejected(400, f"--set {setting}: the value is not valid YAML") from error
    return path


def _listed(faults: list[dict[str, Any]]) -> str:
    return "; ".join(f"{fault['path']}: {fault['message']}" if fault["path"] else fault["message"] for fault in faults)
