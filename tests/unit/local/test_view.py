from io import StringIO
from typing import Any

from rich.console import Console

from builders_local import a_job_status
from hadare.local.view import Seen, line, picture
from hadare.model.devices import NodeState
from hadare.model.jobs import JobState
from hadare.model.rounds import RoundHead
from hadare.wire.api import ForkNow
from hadare.wire.api_cluster import CellPrice, ClusterStatus, DeviceNow, NodeInfo, Prices


def a_seen(**changes: Any) -> Seen:
    device = DeviceNow(index=0, type="V100", memory_gb=16, healthy=True, emulated=True, job_id="j1", fork=0)
    idle = DeviceNow(index=1, type="V100", memory_gb=16, healthy=True, emulated=True)
    node = NodeInfo(node="n1", state=NodeState.READY, reason="", drain=False, devices=(device, idle))
    head = RoundHead(round=7, epoch=1, state="open", clock_s=0.0, round_s=5.0, policy="hadare")
    fork = ForkNow(fork=0, node="n1", type="V100", devices=1, quota=500, steps=25, steps_per_s=99.5, loss=0.25)
    job = a_job_status(state=JobState.RUNNING, steps=50, forks=(fork,), loss=0.25)
    cell = CellPrice(node="n1", type="V100", capacity=2, taken=1, price=0.5, u_min=0.1, u_max=1.0)
    fields: dict[str, Any] = {
        "elapsed_s": 12.0,
        "status": ClusterStatus(ok=True, services=(), nodes=(node,), jobs={}, round=head),
        "jobs": (job,),
        "prices": Prices(round=7, cells=(cell,)),
    }
    return Seen(**(fields | changes))


def shown(seen: Seen) -> str:
    console = Console(file=StringIO(), width=150, force_terminal=False)
    console.print(picture(seen, "demo"))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_picture_shows_what_trains_where_how_fast_and_at_what_price() -> None:
    text = shown(a_seen())
    for part in ("n1", "V100/0", "ready", "digits fork 0", "99.5", "0.2500", "0.5", "round 7"):
        assert part in text


def test_progress_includes_steps_that_are_not_counted_yet() -> None:
    assert "75/100" in shown(a_seen())


def test_of_a_cell_that_is_taken_the_price_of_its_last_device_is_shown() -> None:
    cell = CellPrice(node="n1", type="V100", capacity=2, taken=2, price=None, u_min=0.1, u_max=1.0)
    assert "sold at 0.316" in shown(a_seen(prices=Prices(round=7, cells=(cell,))))


def test_a_waiting_job_says_why() -> None:
    job = a_job_status(state=JobState.WAITING, reason="no node is ready")
    assert "waiting: no node is ready" in shown(a_seen(jobs=(job,)))


def test_a_cluster_without_rounds_prices_or_jobs_can_be_shown() -> None:
    empty = ClusterStatus(ok=False, services=(), nodes=(), jobs={}, round=None)
    assert "no round yet" in shown(a_seen(status=empty, jobs=(), prices=None))


def test_the_line_says_the_same_in_plain_text() -> None:
    text = line(a_seen())
    assert text == "  12 s  round 7  1/2 devices busy  digits 75/100 v3 loss 0.250 running"
