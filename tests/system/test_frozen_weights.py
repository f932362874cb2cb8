"""Fine-tuning with a frozen backbone: agents and tracker send each other what has changed, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor

from builders_training import a_file
from hadare.machines.tracker_events import Consolidate, Consolidated, Contribution
from hadare.model.errors import Unavailable
from hadare.model.jobs import ConsolidationSpec, ObjectRef
from hadare.runtime.memory import MemoryHub
from hadare.runtime.memory_stores import MemoryObjects
from hadare.training.tensorfile import Reader
from hadare.training.transport import pack
from hadare_jobtracker.averager import WeightsAverager
from hadare_node_agent.weights import WeightsCache

BACKBONE, HEAD = torch.randn(300_000, generator=torch.Generator().manual_seed(1)), 1000
LITTLE = 4 * HEAD + 4000
"""Bytes of what is trained, of the files' headers and of a patch's."""


class CountingObjects(MemoryObjects):
    """A store that counts what comes in and goes out."""

    def __init__(self) -> None:
        super().__init__(MemoryHub(), "weights")
        self.came = self.went = 0
        self.lacks: set[str] = set()

    async def put(self, path: Path, label: str) -> ObjectRef:
        ref = await super().put(path, label)
        self.came += ref.bytes
        return ref

    async def get(self, ref: ObjectRef, path: Path) -> None:
        if ref.name in self.lacks:
            raise Unavailable("it has just been deleted")
        await super().get(ref, path)
        self.went += ref.bytes


class Cluster:
    """A tracker's averager and the weights of three nodes around one store, at version 0 of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = CountingObjects()
        self.averager = WeightsAverager(self.objects, folder / "tracker")
        self.nodes = [WeightsCache(self.objects, folder / f"node{n}", 10**8, 1.0) for n in range(3)]
        self.base: ObjectRef
        self.version = 0

    async def begin(self, backbone: Tensor = BACKBONE) -> None:
        tensors = {"model.backbone": backbone, "model.head": torch.zeros(HEAD)}
        self.base = await self.objects.put(a_file(self.folder / "v0", tensors), "j.v0")
        for number, node in enumerate(self.nodes):
            await node.fetch(f"lease{number}", self.base)

    async def train(self, *, all_of_it: bool = False, bf16: bool = False) -> Consolidated:
        """A round: every fork moves the head by its number, and the backbone too if ``all_of_it``."""
        given = []
        for number, node in enumerate(self.nodes):
            base = await node.fetch(f"lease{number}", self.base)
            before = Reader(base)
            step = torch.tensor(float(number))
            tensors = {
                "model.head": before.tensor("model.head") + step,
                "model.backbone": before.tensor("model.backbone"),
            }
            if all_of_it:
                tensors["model.backbone"] = tensors["model.backbone"] + 1 + step
            out = a_file(self.folder / f"out{number}", tensors, base=self.base.sha256)
            if bf16:
                pack(out, base)
            ref = await node.upload(out, f"j.{self.version + 1}.{number}.0", self.base.sha256)
            given.append(Contribution(fork=number, attempt=0, steps=1, object=ref))
        self.version += 1
        return await self.averager.consolidate(
            Consolidate(
                job_id="j",
                round=self.version,
                base=self.base,
                version=self.version,
                forks=tuple(given),
                how=ConsolidationSpec(),
                traceparent="",
            )
        )

    async def spread(self, done: Consolidated) -> list[Path]:
        """What the tracker tells the nodes, and then their leases ask for."""
        assert done.weights is not None
        base, self.base = self.base, done.weights
        await asyncio.gather(*(node.fetch_ahead(self.base, base.sha256, done.changes) for node in self.nodes))
        return [await node.fetch(f"lease{number}", self.base) for number, node in enumerate(self.nodes)]

    def sent(self) -> tuple[int, int]:
        """Bytes into the store and out of it since it was asked last."""
        came, went, self.objects.came, self.objects.went = self.objects.came, self.objects.went, 0, 0
        return came, went


@pytest.fixture
async def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    await made.begin()
    await made.spread(await made.train())  # the tracker fetches the base once
    made.sent()
    return made


@pytest.mark.parametrize("bf16", [False, True])
async def test_of_a_frozen_backbone_each_version_is_sent_once_and_else_only_what_was_trained(
    cluster: Cluster, bf16: bool
) -> None:
    done = await cluster.train(bf16=bf16)
    files = await cluster.spread(done)
    came, went = cluster.sent()
    assert (done.rejected, len(done.kept)) == ({}, 3)
    assert came <= cluster.base.bytes + 4 * LITTLE  # three results, the changes, and the version: it is whole
    assert went <= 6 * LITTLE  # three results to the tracker, the changes to three nodes
    for file in files:
        assert torch.equal(Reader(file).tensor("model.backbone"), BACKBONE)
        assert Reader(file).tensor("model.head").tolist() == [2.0] * HEAD


async def test_where_all_is_trained_all_is_sent_and_nothing_twice(cluster: Cluster) -> None:
    done = await cluster.train(all_of_it=True)
    await cluster.spread(done)
    size = cluster.base.bytes
    came, went = cluster.sent()
    assert done.changes is None
    assert abs(came - 4 * size) < 4000
    assert abs(went - 6 * size) < 4000


async def test_a_node_whose_changes_are_gone_fetches_the_version_whole(cluster: Cluster) -> None:
    done = await cluster.train()
    assert done.changes is not None
    cluster.objects.lacks.add(done.changes.name)
    files = await cluster.spread(done)
    assert [Reader(file).tensor("model.head")[0].item() for file in files] == [2.0] * 3


async def test_a_node_that_has_lost_the_base_fetches_the_version_whole(cluster: Cluster, tmp_path: Path) -> None:
    done = await cluster.train()
    (tmp_path / "node1" / f"{cluster.base.sha256}.safetensors").unlink()
    files = await cluster.spread(done)
    assert [Reader(file).tensor("model.head")[0].item() for file in files] == [2.0] * 3


async def test_a_result_that_is_a_patch_of_another_version_is_rejected_alone(cluster: Cluster) -> None:
    stale = await cluster.nodes[0].upload(
        a_file(cluster.folder / "out", {"model.backbone": BACKBONE, "model.head": torch.ones(HEAD)}, base="x"),
        "j.9.0.0",
        cluster.base.sha256,
    )
    assert stale.bytes < LITTLE
    await cluster.spread(await cluster.train())
    good = await cluster.objects.put(
        a_file(
            cluster.folder / "good",
            {"model.backbone": BACKBONE, "model.head": torch.ones(HEAD)},
            base=cluster.base.sha256,
        ),
        "j.9.1.0",
    )
    task = Consolidate(
        **{"job_id": "j", "round": 9, "base": cluster.base, "version": 9, "traceparent": ""},
        forks=tuple(
            Contribution(fork=number, attempt=0, steps=1, object=ref) for number, ref in enumerate((stale, good))
        ),
        how=ConsolidationSpec(),
    )
    done = await cluster.averager.consolidate(task)
    assert ([fork.fork for fork in done.kept], list(done.rejected)) == ([1], [0])
    assert done.rejected[0].startswith("unreadable")
