"""Gathers what a run left behind (journal, states, spans) and writes it down for people: traces, timeline, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hadare.client import HadareClient
from hadare.local import history
from hadare.local.directory import write_json
from hadare.local.programs import spans_directory
from hadare.local.report import Facts, Report, judge
from hadare.local.targets import load_targets
from hadare.local.timeline import Mark, Timeline, render
from hadare.local.traces import read_spans, write_traces
from hadare.model.events import EventKind, StoredEvent
from hadare.runtime.bus import Backplane, Journal
from hadare.wire import codec
from hadare.wire.api import JobStatus

_PAGE = 1000


async def whole_history(journal: Journal, kind: EventKind) -> list[StoredEvent]:
    """Every event of a kind, oldest first."""
    found: list[StoredEvent] = []
    while True:
        page = await journal.read(kind, after=found[-1].sequence if found else 0, limit=_PAGE)
        found.extend(page)
        if len(page) < _PAGE:
            return found


async def collect(backplane: Backplane, client: HadareClient, jobs: Sequence[JobStatus]) -> Facts:
    """What there is to say about ``jobs``, while the cluster still runs."""
    job_events = await whole_history(backplane.journal, "job")
    node_events = await whole_history(backplane.journal, "node")
    round_events = await whole_history(backplane.journal, "round")
    nodes = await client.nodes()
    return Facts(
        jobs=jobs,
        spans=history.spans(job_events),
        job_events=job_events,
        round_events=round_events,
        trainings=history.trainings(node_events),
        devices=[(node.node, device.index, device.type) for node in nodes for device in node.devices],
        targets=load_targets(),
    )


def write_evidence(facts: Facts, directory: Path, wall_s: float) -> Report:
    """Writes ``trace-<job>.json``, ``report/timeline.html`` and ``report/report.json``; returns the verdict.

    To be called once the processes have ended: they hand in their last spans when they do.
    """
    spans = read_spans(spans_directory(directory))
    names = {job.job_id: job.name for job in facts.jobs}
    traces = write_traces(spans, {job.job_id: job.trace_id for job in facts.jobs}, directory)
    faults = [f"trace of {names[job]}: {fault}" for job, trace in traces.items() for fault in trace.faults]
    paths = {job: str(directory / f"trace-{job}.json") for job in traces}
    timeline = directory / "report" / "timeline.html"
    report = replace(
        judge(facts, paths, faults), directory=str(directory), timeline=str(timeline), wall_s=round(wall_s, 1)
    )
    timeline.parent.mkdir(parents=True, exist_ok=True)
    timeline.write_text(_timeline(facts, report), encoding="utf-8")
    write_json(directory / "report" / "report.json", codec.to_plain(report))
    return report


def _timeline(facts: Facts, report: Report) -> str:
    names = {job.job_id: job.name for job in facts.jobs}
    spans = [facts.spans[job] for job in names if job in facts.spans]
    began = min((span.arrived for span in spans), default=0.0)
    versions = [
        Mark(
            at=stored.at,
            job_id=stored.event.id,
            label=f"version {stored.event.data.get('version')} of {stored.event.data.get('forks')} forks, "
            f"{stored.event.data.get('steps')} steps",
        )
        for stored in facts.job_events
        if stored.event.what == "consolidated" and stored.event.id in names
    ]
    chart = Timeline(
        began=began,
        ended=began + report.ttd_s if report.ttd_s else max((t.ended for t in facts.trainings), default=began + 1),
        devices=facts.devices,
        trainings=facts.trainings,
        rounds=[Mark(at=e.at, label=e.event.id) for e in facts.round_events if e.event.what == "planned"],
        versions=versions,
        names=names,
    )
    numbers = {
        "total time (TTD)": f"{report.ttd_s:.1f} s",
        "mean completion time (JCT)": f"{report.mean_jct_s:.1f} s",
        "device utilisation (CRU)": f"{report.cru:.1%}",
    }
    return render(chart, "HadarE: who trained what, when", numbers)
