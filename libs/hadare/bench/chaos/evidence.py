"""What a run has left, read once all jobs have ended and the cluster is still up: streams, buckets, stores, folders."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadare.bench.chaos.cluster import REPLICATED, ChaosCluster, Life
from hadare.bench.chaos.users import Promise
from hadare.bench.chaos.witness import Witness
from hadare.client import HadareClient
from hadare.dst.records import wanted_objects
from hadare.local.evidence import whole_history
from hadare.model.devices import NodeState
from hadare.model.errors import HadareError
from hadare.model.events import StoredEvent
from hadare.model.jobs import JobProgress, VersionManifest
from hadare.model.leases import ForkResult
from hadare.model.rounds import RoundPage
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire import subjects

KEEP_VERSIONS = 3
_UPLOAD_DIED_S = 60.0
_TEMPORARY = ("scratch/*", "results/*")
"""Parts of weights that were being fetched are no leftovers: the next transfer goes on with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the checks look at. Times of lives and leases are this machine's monotonic clock, in seconds."""

    promises: Sequence[Promise]
    progress: Mapping[str, JobProgress]
    manifests: Mapping[tuple[str, int], VersionManifest]
    job_events: Sequence[StoredEvent]
    node_events: Sequence[StoredEvent]
    round_events: Sequence[StoredEvent]
    pages: Sequence[RoundPage]
    devices: Mapping[tuple[str, str], int]
    """How many devices of a type a node has."""
    lives: Sequence[Life]
    epochs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    reported: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    acknowledged: Mapping[str, ForkResult] = field(default_factory=dict)
    unreadable: Sequence[str] = ()
    left: Sequence[str] = ()
    """Processes, leases, objects and files that should not be there any more."""
    round_s: float = 3.0


async def collect(
    cluster: ChaosCluster, backplane: NatsBackplane, client: HadareClient, witness: Witness, promises: Sequence[Promise]
) -> Evidence:
    """Reads it all. Raises ``HadareError`` if the cluster does not answer."""
    journal = backplane.journal
    progress = {entry.record.job_id: entry.record for entry in await backplane.table(subjects.PROGRESS).entries()}
    versions = [entry.record for entry in await backplane.table(subjects.VERSIONS).entries()]
    inventories = [entry.record for entry in await backplane.table(subjects.NODES).entries()]
    devices: dict[tuple[str, str], int] = {}
    for node in inventories:
        for device in node.devices:
            devices[node.node, device.type] = devices.get((node.node, device.type), 0) + 1
    found = Evidence(
        promises=promises,
        progress=progress,
        manifests={(manifest.job_id, manifest.version): manifest for manifest in versions},
        job_events=await whole_history(journal, "job"),
        node_events=await whole_history(journal, "node"),
        round_events=await whole_history(journal, "round"),
        pages=[entry.record for entry in await backplane.table(subjects.ROUND_PAGES).entries()],
        devices=devices,
        lives=[replace(life) for life in cluster.lives],
        epochs=witness.epochs,
        reported=witness.reported,
        acknowledged=witness.acknowledged,
        round_s=cluster.local.round_s,
    )
    return replace(found, unreadable=await _unreadable(found, client, cluster.directory))


async def _unreadable(evidence: Evidence, client: HadareClient, directory: Path) -> list[str]:
    """Downloads every version that is kept, and hashes it."""
    faults = []
    path = directory / "read.safetensors"
    for (job, version), manifest in sorted(evidence.manifests.items()):
        known = evidence.progress.get(job)
        if known is None or not known.version - KEEP_VERSIONS < version <= known.version:
            continue
        try:
            await client.weights_get(job, path, version)
            digest = await asyncio.to_thread(_digest, path)
        except HadareError as error:
            faults.append(f"{job} version {version}: {error}")
            continue
        if digest != manifest.weights.sha256:
            faults.append(f"{job} version {version} has another content than its manifest says")
    path.unlink(missing_ok=True)
    return faults


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def unfinished_uploads(backplane: NatsBackplane) -> list[str]:
    """What uploads that died have left in the store, and the tracker should have found by now."""
    count = await backplane.objects(subjects.WEIGHTS).collect_garbage(_UPLOAD_DIED_S)
    return [f"chunks of {count} unfinished uploads"] if count else []


async def left_over(cluster: ChaosCluster, backplane: NatsBackplane, client: HadareClient) -> list[str]:
    """What a cluster at rest has no use for, and nodes and services that are not back."""
    progress = {entry.record.job_id: entry.record for entry in await backplane.table(subjects.PROGRESS).entries()}
    versions = [entry.record for entry in await backplane.table(subjects.VERSIONS).entries()]
    manifests = {(manifest.job_id, manifest.version): manifest for manifest in versions}
    store = backplane.objects(subjects.WEIGHTS)
    useless = set(await store.names()) - wanted_objects(progress, manifests, KEEP_VERSIONS)
    found = [f"object {name}" for name in sorted(useless)]
    for node in await client.nodes():
        if node.state is not NodeState.READY:
            found.append(f"{node.node} is {node.state}: {node.reason}")
        found += [f"a lease of {d.job_id} on {node.node}:{d.index}" for d in node.devices if d.job_id is not None]
    status = await client.status()
    found += list(status.problems)
    seen = {service.name.removeprefix("hadare-"): service.instances for service in status.services}
    for kind in (name for name in REPLICATED if seen.get(name, 0) < len(cluster.replicas(name))):
        found.append(f"of {len(cluster.replicas(kind))} processes of {kind} only {seen.get(kind, 0)} act or stand by")
    for name in cluster.nodes:
        found += [f"fork {pid} of {name}" for pid in cluster.forks(name)]
    for name in cluster.proxies.keys() & cluster.disks.keys():
        folder = cluster.disks[name]
        patterns = _TEMPORARY if name in cluster.nodes else ("*",)
        found += [str(file) for pattern in patterns for file in folder.glob(pattern)]
    return found
