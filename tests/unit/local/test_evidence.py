import json
from pathlib import Path

from builders_local import a_calibration, a_job_status, a_lease_end, an_event
from hadare.local.evidence import whole_history, write_evidence
from hadare.local.history import spans, trainings
from hadare.local.report import Facts
from hadare.model.events import Event, StoredEvent
from hadare.runtime.bus import Journal

EVENTS = [an_event("submitted", 1.0), an_event("consolidated", 5.0, version=1, forks=2), an_event("completed", 11.0)]
FACTS = Facts(
    jobs=[a_job_status(trace_id="a" * 32)],
    spans=spans(EVENTS),
    job_events=EVENTS,
    round_events=[an_event("planned", 2.0, "1", "round")],
    trainings=trainings([a_lease_end(10.0)]),
    devices=[("n1", 0, "V100")],
    targets={"digits": a_calibration()},
)


def test_report_timeline_and_traces_lie_in_the_directory(tmp_path: Path) -> None:
    report = write_evidence(FACTS, tmp_path, wall_s=20.0)
    assert Path(report.timeline).is_relative_to(tmp_path)
    assert "digits" in Path(report.timeline).read_text()
    assert json.loads((tmp_path / "report" / "report.json").read_text())["ttd_s"] == 10.0
    assert json.loads(Path(report.jobs[0].trace).read_text())["trace_id"] == "a" * 32


def test_a_run_without_spans_is_at_fault(tmp_path: Path) -> None:
    assert write_evidence(FACTS, tmp_path, wall_s=20.0).faults == ("trace of digits: no span of it was recorded",)


class LongJournal(Journal):
    """2,500 events; gives out at most 1,000 at a time."""

    async def read(self, kind: object, entity: str = "*", after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        event = Event(kind="job", id="j1", what="w")
        numbers = range(after + 1, min(after + limit, 2500) + 1)
        return [StoredEvent(sequence=number, at=float(number), event=event) for number in numbers]


async def test_a_long_history_is_read_to_its_end() -> None:
    found = await whole_history(LongJournal(), "job")
    assert [stored.sequence for stored in found] == list(range(1, 2501))
