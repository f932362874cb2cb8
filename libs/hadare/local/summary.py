"""The demonstration's report as a person reads it at the end."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hadare.local.report import Report


def summary(report: Report) -> RenderableType:
    """Jobs against their targets, devices against their rates, the times, where the evidence is, and the verdict."""
    parts: list[RenderableType] = [
        Text(),
        _jobs(report),
        Text(),
        _devices(report),
        Text(),
        Text(
            f"TTD {report.ttd_s:.1f} s   mean JCT {report.mean_jct_s:.1f} s   CRU {report.cru:.1%}   "
            f"(with start and end {report.wall_s:.0f} s)"
        ),
        *(Text(f"trace of {job.name}: {job.trace}") for job in report.jobs),
        Text(f"timeline: {report.timeline}"),
        Text(),
        *(Text(f"FAULT: {fault}", style="red") for fault in report.faults),
        Text("Every job reached its steps and its target.", style="green")
        if report.ok
        else Text("FAILED", style="red"),
    ]
    return Group(*parts)


def _jobs(report: Report) -> Table:
    table = Table(title="jobs", title_justify="left", box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    for heading in ("steps", "rounds", "forks", "metric", "reached", "target", "JCT s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for job in report.jobs:
        sign = "≥" if job.better == "higher" else "≤"
        table.add_row(
            job.name,
            f"{job.steps}/{job.target_steps}",
            str(job.rounds),
            str(job.forks),
            job.metric_name,
            f"{job.metric:.4f}" if job.metric is not None else "none",
            f"{sign} {job.target:.4f}",
            f"{job.jct_s:.1f}" if job.jct_s is not None else "-",
            Text("ok", style="green") if job.reached else Text("NO", style="red"),
        )
    return table


def _devices(report: Report) -> Table:
    table = Table(title="devices (steps/s while training)", title_justify="left", box=None, pad_edge=False)
    table.add_column("device", no_wrap=True)
    for heading in ("nominal", "reached", "", "leases", "steps", "trained"):
        table.add_column(heading, justify="right", no_wrap=True)
    for device in report.devices:
        table.add_row(
            f"{device.node}/{device.device} {device.type}",
            f"{device.nominal_rate:.1f}",
            f"{device.reached_rate:.1f}",
            f"{device.reached:.1%}",
            str(device.leases),
            str(device.steps),
            f"{device.trained_s:.1f} s",
        )
    return table
