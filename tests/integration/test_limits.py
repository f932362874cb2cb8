"""What is full, or too large, says so; what was stored before stays, and once there is room all goes on."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from hadare.model.devices import NodeState, NodeStatus
from hadare.model.errors import HadareError
from hadare.runtime import nats_objects
from hadare.runtime.nats_connection import NatsBackplane
from hadare.wire.subjects import NODE_STATES, WEIGHTS

pytestmark = pytest.mark.integration


async def bound(backplane: NatsBackplane, stream: str, max_bytes: int) -> None:
    held = (await backplane.link.api(f"STREAM.INFO.{stream}"))["config"]
    await backplane.link.api(f"STREAM.UPDATE.{stream}", {**held, "max_bytes": max_bytes})


def a_file(folder: Path, name: str, size: int) -> Path:
    path = folder / name
    path.write_bytes(name.encode() * (size // len(name)))
    return path


async def test_a_full_weights_store_says_so_keeps_what_it_has_and_goes_on_when_there_is_room(
    backplane: NatsBackplane, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_objects, "_PUT_PATIENCE_S", 0.5)
    weights = backplane.objects(WEIGHTS)
    before = await weights.put(a_file(tmp_path, "before", 300_000), "job-a.v1")
    await bound(backplane, f"OBJ_{prefix}_weights", 1_000_000)
    with pytest.raises(HadareError, match="maximum bytes exceeded"):
        await weights.put(a_file(tmp_path, "large", 3_000_000), "job-a.v2")
    await weights.get(before, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "before").read_bytes()
    assert await backplane.table(NODE_STATES).put("n1", NodeStatus(node="n1", state=NodeState.READY))
    await bound(backplane, f"OBJ_{prefix}_weights", 50_000_000)
    after = await weights.put(tmp_path / "large", "job-a.v2")
    assert after.bytes == (tmp_path / "large").stat().st_size


async def test_a_full_bucket_refuses_the_write_with_the_reason_and_loses_nothing(
    backplane: NatsBackplane, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backplane.link, "store", partial(backplane.link.store, patience_s=0.5))
    table = backplane.table(NODE_STATES)
    await table.put("n1", NodeStatus(node="n1", state=NodeState.READY))
    await bound(backplane, f"KV_{prefix}_node_states", 2_000)
    large = NodeStatus(node="n2", state=NodeState.SUSPECT, reason="x" * 4000)
    with pytest.raises(HadareError, match="maximum bytes exceeded"):
        await table.put("n2", large)
    assert [entry.name for entry in await table.entries()] == ["n1"]
    await bound(backplane, f"KV_{prefix}_node_states", 100_000)
    await table.put("n2", large)
    assert [entry.name for entry in await table.entries()] == ["n1", "n2"]
