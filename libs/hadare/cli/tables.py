"""What people read: short tables and lines. Pure: API answers in, something to print out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from rich.table import Table
from rich.text import Text

from hadare.model.events import StoredEvent
from hadare.model.jobs import ForkTruth
from hadare.model.rounds import RoundHead
from hadare.wire import api, api_cluster

_BRIEF = 160
_STYLES = {
    **dict.fromkeys(("completed", "ready"), "green"),
    **dict.fromkeys(("failed", "lost", "quarantined"), "red"),
    **dict.fromkeys(("queued", "waiting", "suspect", "draining", "paused", "cancelling"), "yellow"),
}


class Moved(Protocol):
    """A tensor in two versions (``training.exporting.TensorDiff``, which needs torch)."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def elements(self) -> int: ...

    @property
    def norm(self) -> float: ...

    @property
    def change(self) -> float: ...

    @property
    def relative(self) -> float: ...


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: Sequence[str] = ()) -> Table:
    """A plain table: no frame, one line a row."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def brief(text: str) -> str:
    """On one line, and not too long for a list."""
    line = " ".join(text.split())
    return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 1]}…"


def of_jobs(jobs: Sequence[api.JobStatus]) -> Table:
    rows = [
        (
            job.name,
            job.job_id,
            state(job.state.value),
            f"{job.steps}/{job.total_steps}",
            job.version if job.version >= 0 else "",
            number(job.loss),
            len(job.forks) or "",
            duration(job.eta_s or None),  # of an ended job it is 0
            brief(job.reason),
        )
        for job in jobs
    ]
    columns = ("NAME", "JOB", "STATE", "STEPS", "VERSION", "LOSS", "FORKS", "ETA", "REASON")
    return table(columns, rows, right=("STEPS", "VERSION", "LOSS", "FORKS", "ETA"))


def of_job(job: api.JobStatus) -> Table:
    """Everything about one job that is worth a line."""
    share = f" ({job.steps / job.total_steps:.0%})" if job.total_steps else ""
    rows: list[tuple[str, object]] = [
        ("name", job.name),
        ("job", job.job_id),
        ("state", state(job.state.value)),
        ("reason", job.reason),
        ("workload", job.workload),
        ("steps", f"{job.steps}/{job.total_steps}{share}"),
        ("version", job.version if job.version >= 0 else "no model yet"),
        ("metrics", _pairs(job.metrics) + (f" (of version {job.metrics_version})" if job.metrics else "")),
        ("loss", number(job.loss)),
        ("eta", duration(job.eta_s or None)),
        ("rounds", f"{job.rounds}" + (f", {job.lost_rounds} lost" if job.lost_rounds else "")),
        ("failures", job.failures or ""),
        ("steps/s", _pairs(job.throughput)),
        ("fork gain", _truth(job.truth)),
        ("cannot run on", _barred({**job.excluded, **job.excluded_types})),
        ("mode", job.decision.mode if job.decision else ""),
        ("forks", "\n".join(_fork(fork) for fork in job.forks)),
        ("trace", job.trace_id),
        ("error", job.error.rstrip()),
    ]
    made = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        if value != "":
            made.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    return made


def of_nodes(nodes: Sequence[api_cluster.NodeInfo], names: dict[str, str]) -> Table:
    """``names``: of jobs, by identifier."""
    rows = []
    for node in nodes:
        known = state(node.state.value if node.state else "unknown")
        wish = "draining wanted; " if node.drain and known.plain not in ("draining", "lost") else ""
        for place, device in enumerate(node.devices):
            first = place == 0
            rows.append(
                (
                    node.node if first else "",
                    known if first else "",
                    f"{device.type}/{device.index}",
                    f"{device.memory_gb:g} GB",
                    _work(device, names),
                    (wish + node.reason) if first else "",
                )
            )
        if not node.devices:
            rows.append((node.node, known, "none", "", "", wish + node.reason))
    return table(("NODE", "STATE", "DEVICE", "MEMORY", "RUNS", "REASON"), rows, right=("MEMORY",))


def of_prices(prices: api_cluster.Prices) -> Table:
    rows = [
        (
            cell.node,
            cell.type,
            f"{cell.taken}/{cell.capacity}",
            "all taken" if cell.price is None else number(cell.price),
            number(cell.u_min),
            number(cell.u_max),
        )
        for cell in prices.cells
    ]
    columns = ("NODE", "TYPE", "TAKEN", "PRICE NOW", "LOWEST", "HIGHEST")
    return table(columns, rows, right=columns[2:])


def of_rounds(rounds: api_cluster.RoundList) -> Table:
    rows = [
        (
            one.round,
            one.epoch,
            _state_of_round(one.round, rounds.head),
            one.forks,
            one.placed,
            one.waiting,
        )
        for one in rounds.rounds
    ]
    columns = ("ROUND", "EPOCH", "STATE", "FORKS", "JOBS PLACED", "JOBS WAITING")
    return table(columns, rows, right=("ROUND", "EPOCH", *columns[3:]))


def of_forks(view: api_cluster.RoundView, names: dict[str, str]) -> Table:
    """``names``: of jobs, by identifier."""
    rows = [
        (
            names.get(fork.job_id, fork.job_id),
            fork.fork,
            ", ".join(f"{member.count} {member.type} on {member.node}" for member in fork.gang),
            fork.quota,
            number(fork.rate),
            number(fork.price),
            number(fork.payoff),
            "filled" if fork.filled else "",
        )
        for fork in view.forks
    ]
    columns = ("JOB", "FORK", "DEVICES", "QUOTA", "STEPS/S", "PRICE", "PAYOFF", "")
    return table(columns, rows, right=("FORK", "QUOTA", "STEPS/S", "PRICE", "PAYOFF"))


def of_decisions(view: api_cluster.RoundView, names: dict[str, str]) -> Table:
    """``names``: of jobs, by identifier."""
    rows = [
        (
            names.get(one.job_id, one.job_id),
            one.code,
            one.position or "",
            one.message,
            ", ".join(names.get(job, job) for job in one.blockers[:3]),
            one.remedy,
        )
        for one in view.decisions
    ]
    return table(("JOB", "DECISION", "POSITION", "WHY", "BEHIND", "WHAT WOULD HELP"), rows, right=("POSITION",))


def of_versions(versions: Sequence[api.VersionInfo]) -> Table:
    rows = [
        (
            one.version,
            one.steps,
            len(one.parents) or "",
            size(one.weights.bytes),
            _pairs(one.metrics),
            "" if one.available else "no longer kept",
        )
        for one in versions
    ]
    columns = ("VERSION", "STEPS", "FORKS", "SIZE", "METRICS", "")
    return table(columns, rows, right=columns[:4])


def of_diff(diffs: Sequence[Moved]) -> Table:
    """Tensors, those that moved most for their size first."""
    rows = [
        (one.name, one.dtype, one.elements, number(one.norm), number(one.change), f"{one.relative:.2%}")
        for one in sorted(diffs, key=lambda one: (-one.relative, one.name))
    ]
    columns = ("TENSOR", "TYPE", "ELEMENTS", "NORM", "CHANGE", "RELATIVE")
    return table(columns, rows, right=columns[2:])


def event_line(stored: StoredEvent) -> str:
    """One event in one line: when, what, and its data."""
    moment = datetime.fromtimestamp(stored.at).astimezone().strftime("%H:%M:%S")
    return f"{moment}  {stored.event.what:<18} {_pairs(stored.event.data)}".rstrip()


def log_lines(entry: api.LogEntry) -> list[str]:
    """What a fork printed, each line with where it comes from."""
    origin = f"[round {entry.round} fork {entry.fork} {entry.node}]"
    return [f"{origin} {line}" for line in entry.text.rstrip("\n").split("\n")]


def progress_line(job: api.JobStatus) -> str:
    running = f", {len(job.forks)} forks" if job.forks else ""
    loss = f", loss {number(job.loss)}" if job.loss is not None else ""
    reason = f": {job.reason}" if job.reason else ""
    return f"{job.name}: {job.state.value}, {job.steps}/{job.total_steps} steps{running}{loss}{reason}"


def state(name: str) -> Text:
    return Text(name, style=_STYLES.get(name, ""))


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.1f} kB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"


def _state_of_round(number: int, head: RoundHead | None) -> str:
    if head is None or head.round < number:
        return "planned"
    return head.state if head.round == number else "closed"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items() if value not in ("", None, [], {}))


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"({_pairs(value)})"
    if isinstance(value, list):
        return " ".join(_value(item) for item in value)
    return number(value) if isinstance(value, float) else str(value)


def _truth(truth: ForkTruth | None) -> str:
    """What forking has been worth; nothing while no round had several forks."""
    if truth is None:
        return ""
    rounds = f"{truth.rounds} round{'s' * (truth.rounds != 1)}"
    how = f"agreement {truth.agreement:.2f}, noise of {number(truth.noise_steps)} steps, {rounds}"
    return f"{truth.gain:.2f} times the fastest fork alone (estimated: {how})"


def _barred(reasons: dict[str, str]) -> str:
    """Nodes and device types that the job cannot use, a line each."""
    return "\n".join(f"{name}: {why or 'excluded'}" for name, why in reasons.items())


def _fork(fork: api.ForkNow) -> str:
    doing = f", {fork.phase}" if fork.phase else ""
    return f"{fork.fork} on {fork.node} ({fork.type}): {fork.steps}/{fork.quota} steps{doing}"


def _work(device: api_cluster.DeviceNow, names: dict[str, str]) -> str:
    if not device.healthy:
        return f"unhealthy: {device.reason}"
    if device.job_id is None:
        return ""
    return f"{names.get(device.job_id, device.job_id)}, fork {device.fork}"
