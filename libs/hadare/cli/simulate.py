"""The command ``simulate``: what a policy would do to a cluster with a trace of jobs, before anybody switches to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hadare.cli import tables
from hadare.cli.exit_codes import ExitCode
from hadare.cli.framework import json_option, pass_session
from hadare.cli.session import Session
from hadare.local.spec import parse_cluster
from hadare.model.errors import Rejected
from hadare.scheduling.policies import policy_of
from hadare.simulator.jobs import TraceRow
from hadare.simulator.rates import read_table, shipped_table
from hadare.simulator.report import write_report
from hadare.simulator.schedule import read_schedule
from hadare.simulator.settings import DEFAULT_HOLD, EARLY, Costs, Settings, SimNode
from hadare.simulator.study import Study, Watch, nodes_of, prepare, study
from hadare.simulator.synthetic import parse_synthetic
from hadare.simulator.traces import read_trace

_DEFAULT_CLUSTER = "5x4:V100,5x4:P100,5x4:K80"
_HOUR_S = 3600.0


@click.command()
@click.option("--cluster", default=_DEFAULT_CLUSTER, metavar="FILE|SPEC", show_default=True, help="Nodes and devices.")
@click.option("--trace", required=True, metavar="FILE|NAME", help="A trace, or `synthetic:jobs=120,interval=3600`.")
@click.option("--policy", default="hadare", metavar="NAME[,NAME…]", show_default=True, help="Policies to compare.")
@click.option(
    "--round", "round_s", default=360.0, type=click.FloatRange(0), show_default=True, help="Seconds; 0: event-driven."
)
@click.option("--jobs", "most_jobs", type=click.IntRange(1), help="Only the first N jobs of the trace.")
@click.option("--oracle", is_flag=True, help="Policies know the true rates from the start.")
@click.option("--noise", default=0.0, type=click.FloatRange(0, 1), help="Relative error of a measured rate.")
@click.option("--throughputs", type=click.Path(path_type=Path), help="True rates, in the form of the shipped table.")
@click.option("--restart-cost", default="0", metavar="SECONDS|own", show_default=True, help="Of a cold process.")
@click.option(
    "--bandwidth", default=0.0, type=click.FloatRange(0), metavar="MB/S", help="Of a node, for weights; 0: free."
)
@click.option("--boundary", default=0.0, type=click.FloatRange(0), metavar="SECONDS", help="Between two rounds.")
@click.option("--spread-cost", is_flag=True, help="Gangs that span nodes are slower, as in the table.")
@click.option("--events", type=click.Path(path_type=Path), help="CSV at_s,node,what: fail, recover, drain, undrain.")
@click.option(
    "--utility",
    default=None,
    type=click.Choice(["throughput", "least_remaining_work", "completion_times", "makespan", "finish_time_fairness"]),
    help="Of all jobs; default: the policy's own.",
)
@click.option(
    "--hold",
    default=DEFAULT_HOLD,
    type=click.IntRange(1, 100),
    show_default=True,
    help="Keep a plan up to N rounds while no job or node comes or goes; 1: decide every round, as the live system.",
)
@click.option(
    "--end-early",
    "early_s",
    type=click.FloatRange(0),
    metavar="SECONDS",
    show_default="a hundredth of the round",
    help="Rounds of hadare and hadar may end with a job, as live; a boundary is taken to last so long.",
)
@click.option("--full-rounds", is_flag=True, help="No round ends early.")
@click.option("--seed", default=0, help="Of synthetic traces and of noise.")
@click.option("--report", type=click.Path(path_type=Path, file_okay=False), help="Write report.html there.")
@json_option
@pass_session
def simulate(
    session: Session,
    cluster: str,
    trace: str,
    policy: str,
    most_jobs: int | None,
    throughputs: Path | None,
    events: Path | None,
    report: Path | None,
    **options: object,
) -> None:
    """Run a trace of jobs through policies in virtual time, with the scheduler that the cluster runs."""
    names = [name.strip() for name in policy.split(",") if name.strip()]
    for name in names:
        policy_of(name)
    settings = _settings(options, events)
    nodes = read_nodes(cluster)
    rows = read_rows(trace, settings.seed, most_jobs)
    jobs = prepare(rows, read_table(throughputs) if throughputs else shipped_table(), nodes)
    with _watching(len(jobs), session.json) as watch:
        found = study(jobs, nodes, names, replace(settings, detail=report is not None), watch)
    if report is not None:
        session.note(f"report: {write_report(found, report, trace)}")
    session.show(found.document(), lambda console: _print(console, found))
    if any(metrics.unfinished for metrics in found.metrics.values()):
        raise click.exceptions.Exit(ExitCode.NOT_WELL)


def read_nodes(cluster: str) -> tuple[SimNode, ...]:
    """The nodes of a cluster file or specification."""
    spec = parse_cluster(cluster)
    return nodes_of((node.name, [(g.type, g.count) for g in node.devices], node.labels) for node in spec.nodes)


def read_rows(trace: str, seed: int, most: int | None) -> Sequence[TraceRow]:
    """The jobs of a trace or of a synthetic one."""
    made = parse_synthetic(trace, seed)
    rows = made.rows() if made is not None else read_trace(trace)
    return rows[:most] if most else rows


def _settings(options: dict[str, object], events: Path | None) -> Settings:
    restart = str(options["restart_cost"])
    try:
        restart_s = None if restart == "own" else max(0.0, float(restart))
    except ValueError:
        raise Rejected(400, f"--restart-cost: '{restart}' is neither a number of seconds nor 'own'") from None
    costs = Costs(
        restart_s=restart_s,
        bandwidth_mb_s=float(str(options["bandwidth"])),
        boundary_s=float(str(options["boundary"])),
        spread=bool(options["spread_cost"]),
    )
    return Settings(
        round_s=float(str(options["round_s"])),
        oracle=bool(options["oracle"]),
        noise=float(str(options["noise"])),
        seed=int(str(options["seed"])),
        hold=int(str(options["hold"])),
        early_s=_early_s(options),
        utility=None if options["utility"] is None else str(options["utility"]),
        costs=costs,
        events=read_schedule(events) if events else (),
    )


def _early_s(options: dict[str, object]) -> float | None:
    """What a boundary is taken to last where rounds may end early, by default as in the live allocator."""
    given, full = options["early_s"], bool(options["full_rounds"])
    if full and given is not None:
        raise Rejected(400, "--full-rounds and --end-early: rounds cannot both be full and end early")
    if full:
        return None
    return EARLY * float(str(options["round_s"])) if given is None else float(str(given))


@contextmanager
def _watching(jobs: int, quiet: bool) -> Iterator[Watch | None]:
    """A progress bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        shown: dict[str, object] = {}

        def watch(policy: str, now_s: float, done: int) -> None:
            if policy not in shown:
                shown[policy] = bar.add_task(policy, total=jobs)
            bar.update(shown[policy], completed=done, description=f"{policy} at {now_s / _HOUR_S:.0f} h")  # type: ignore[arg-type]

        yield watch


def _print(console: Console, found: Study) -> None:
    columns = (
        "POLICY", "TTD h", "×BOUND", "MEAN JCT h", "×BOUND", "MEDIAN h", "P95 h", "CRU", "GRU", "DONE", "PREEMPTED",
        "DECISION ms",
    )  # fmt: skip
    over = {name: found.over_bounds(name) for name in found.metrics}
    rows = [
        (
            name,
            f"{m.ttd_s / _HOUR_S:.2f}",
            f"{over[name].get('ttd_over_bound', 0.0):.3f}",
            f"{m.mean_jct_s / _HOUR_S:.2f}",
            f"{over[name].get('mean_jct_over_bound', 0.0):.3f}",
            f"{m.median_jct_s / _HOUR_S:.2f}",
            f"{m.p95_jct_s / _HOUR_S:.2f}",
            f"{m.cru:.3f}",
            f"{m.gru:.3f}",
            f"{m.jobs_done}/{len(found.jobs)}",
            m.preemptions,
            f"{m.decision_ms_median:.1f}",
        )
        for name, m in found.metrics.items()
    ]
    console.print(tables.table(columns, rows, right=columns[1:]))
    for name, value in found.bounds.items():
        console.print(f"bound {name}: {value / _HOUR_S:.2f} h", highlight=False)
    for name, metrics in found.metrics.items():
        if metrics.unfinished:
            console.print(f"{name} never finished {metrics.unfinished} jobs", style="red", highlight=False)
