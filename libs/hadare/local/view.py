"""What a person sees of a running cluster: one picture for a terminal, one plain line for everything else.

Pure: a ``Seen`` in, something to print out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hadare.model.jobs import JobState
from hadare.wire.api import ForkNow, JobStatus
from hadare.wire.api_cluster import CellPrice, ClusterStatus, DeviceNow, NodeInfo, Prices

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The cluster at one moment. ``note`` is the newest thing that the supervisor said."""

    elapsed_s: float
    status: ClusterStatus
    jobs: tuple[JobStatus, ...]
    prices: Prices | None = None
    note: str = ""


def picture(seen: Seen, title: str) -> RenderableType:
    """Nodes with what trains on them, prices, and jobs."""
    colours = {job.job_id: _COLOURS[place % len(_COLOURS)] for place, job in enumerate(seen.jobs)}
    parts: list[RenderableType] = [
        Panel(_nodes(seen, colours), title="nodes", title_align="left", border_style="dim"),
        Panel(_jobs(seen.jobs, colours), title="jobs", title_align="left", border_style="dim"),
    ]
    if seen.note:
        parts.append(Text(seen.note, style="yellow", overflow="ellipsis", no_wrap=True))
    head = seen.status.round
    where = f"round {head.round} ({head.state})" if head else "no round yet"
    return Panel(Group(*parts), title=f"[bold]{title}[/]  {where}  {seen.elapsed_s:.0f} s", border_style="blue")


def line(seen: Seen) -> str:
    """The same in one line of plain text."""
    jobs = "  ".join(
        f"{job.name} {_now(job)}/{job.total_steps} v{max(job.version, 0)}"
        + (f" loss {job.loss:.3f}" if job.loss is not None else "")
        + f" {job.state.value}"
        for job in seen.jobs
    )
    busy = sum(device.job_id is not None for node in seen.status.nodes for device in node.devices)
    devices = sum(len(node.devices) for node in seen.status.nodes)
    head = seen.status.round
    return f"{seen.elapsed_s:4.0f} s  round {head.round if head else '-'}  {busy}/{devices} devices busy  {jobs}"


def _now(job: JobStatus) -> int:
    """Counted steps and those of the forks that train at this moment."""
    return min(job.steps + sum(fork.steps for fork in job.forks), max(job.total_steps, job.steps))


def _nodes(seen: Seen, colours: dict[str, str]) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    for heading in ("node", "device", "state", "trains", "steps/s", "loss"):
        table.add_column(heading, no_wrap=True, justify="right" if heading in ("steps/s", "loss") else "left")
    table.add_column("price", no_wrap=True, justify="right")
    names = {job.job_id: job.name for job in seen.jobs}
    forks = {(job.job_id, fork.fork): fork for job in seen.jobs for fork in job.forks}
    cells = {(cell.node, cell.type): cell for cell in seen.prices.cells} if seen.prices else {}
    for node in seen.status.nodes:
        for device in node.devices:
            fork = forks.get((device.job_id or "", device.fork if device.fork is not None else -1))
            table.add_row(
                node.node,
                f"{device.type}/{device.index}",
                _state(node, device),
                _work(device, names, colours),
                *_numbers(fork),
                _price(cells.get((node.node, device.type))),
            )
    return table


def _state(node: NodeInfo, device: DeviceNow) -> Text:
    if not device.healthy:
        return Text("unhealthy", style="red")
    state = node.state.value if node.state else "joining"
    return Text(
        state, style={"ready": "green", "suspect": "yellow", "lost": "red", "quarantined": "red"}.get(state, "dim")
    )


def _work(device: DeviceNow, names: dict[str, str], colours: dict[str, str]) -> Text:
    if device.job_id is None:
        return Text("-", style="dim")
    name = names.get(device.job_id, device.job_id)
    return Text(f"{name} fork {device.fork}", style=colours.get(device.job_id, "white"))


def _numbers(fork: ForkNow | None) -> tuple[str, str]:
    if fork is None:
        return "", ""
    rate = f"{fork.steps_per_s:.1f}" if fork.steps_per_s else fork.phase
    return rate, f"{fork.loss:.4f}" if fork.loss is not None else ""


def _price(cell: CellPrice | None) -> str:
    """What the next device of the cell costs; once all are taken, what the last one went for."""
    if cell is None:
        return ""
    if cell.price is not None:
        return f"{cell.price:.3g}"
    paid = cell.u_min * (cell.u_max / cell.u_min) ** ((cell.taken - 1) / cell.capacity)
    return f"sold at {paid:.3g}"


def _jobs(jobs: Sequence[JobStatus], colours: dict[str, str]) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    table.add_column("job", no_wrap=True)
    table.add_column("progress", ratio=1)
    for heading in ("steps", "forks", "version", "loss", "metrics", "state"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "state" else "right")
    for job in jobs:
        now = _now(job)
        table.add_row(
            Text(job.name, style=colours[job.job_id]),
            ProgressBar(total=max(job.total_steps, 1), completed=now, complete_style=colours[job.job_id]),
            f"{now}/{job.total_steps}",
            str(len(job.forks)) if job.forks else "",
            f"v{job.version}" if job.version >= 0 else "",
            f"{job.loss:.4f}" if job.loss is not None else "",
            _metrics(job),
            _job_state(job),
        )
    return table


def _metrics(job: JobStatus) -> str:
    if not job.metrics:
        return ""
    name, value = next(iter(sorted(job.metrics.items())))
    return f"{name} {value:.4f} (v{job.metrics_version})"


def _job_state(job: JobStatus) -> Text:
    style = {JobState.COMPLETED: "green", JobState.FAILED: "red", JobState.RUNNING: "white"}.get(job.state, "yellow")
    text = job.state.value
    if job.state in (JobState.WAITING, JobState.QUEUED, JobState.FAILED) and job.reason:
        text = f"{text}: {job.reason}"[:60]
    return Text(text, style=style)
