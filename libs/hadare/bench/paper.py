"""The paper's study as far as simulation can redo it: what is run, in which order, and what is kept of it.

Everything that is assumed (clusters, sizes, mixes, costs) is data: ``hadare/tables/paper.json``. Ratios are those of
``gavel`` over the policy, so more is better; of the small clusters they are means over mixes and seeds.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib import resources
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import Any

from hadare.local.spec import parse_cluster
from hadare.simulator.jobs import SimJob, TraceRow
from hadare.simulator.metrics import Metrics
from hadare.simulator.rates import shipped_table
from hadare.simulator.settings import DEFAULT_HOLD, EARLY, Costs, Settings, SimNode
from hadare.simulator.study import nodes_of, prepare, study
from hadare.simulator.synthetic import Synthetic
from hadare.simulator.traces import read_trace

POLICIES = ("hadare", "hadar", "gavel", "tiresias", "yarn-cs")
BLIND = frozenset({"tiresias", "yarn-cs"})
"""They try the types of devices in an order that is drawn by lot."""
HOUR_S = 3600.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy in one case. Hours; ``vs_gavel``: gavel's figure over the policy's."""

    case: str
    policy: str
    seed: int
    ttd_h: float
    mean_jct_h: float
    cru: float
    gru: float
    preemptions: int
    restarts: int
    unfinished: int
    decision_ms: float
    ttd_vs_gavel: float = 0.0
    jct_vs_gavel: float = 0.0
    cru_vs_gavel: float = 0.0
    ttd_vs_bound: float = 0.0
    jct_vs_bound: float = 0.0


@dataclass(slots=True)
class Paper:
    """All of it. ``small``: means over mixes and seeds by cluster and policy."""

    traces: list[Row] = field(default_factory=list)
    costs: list[Row] = field(default_factory=list)
    loads: list[Row] = field(default_factory=list)
    small: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[Row] = field(default_factory=list)
    scale: list[dict[str, Any]] = field(default_factory=list)
    published: Mapping[str, Any] = field(default_factory=dict)
    cpu_s: float = 0.0


@lru_cache(maxsize=1)
def assumptions() -> Mapping[str, Any]:
    """``hadare/tables/paper.json``."""
    text = resources.files("hadare.tables").joinpath("paper.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of the study that needs no other: which list of ``Paper`` it fills, in words, and how."""

    section: str
    what: str
    run: Callable[[], list[Any]]


def run_paper(*, quick: bool, seeds: int, policies: Sequence[str], say: Say, workers: int = 1) -> Paper:
    """The whole study, on so many processors. ``quick``: fewer jobs, mixes and seeds, for a first look.

    Figures do not depend on ``workers``: parts are put together in their order. Decisions are timed at the end, alone.
    """
    paper = Paper(published=assumptions()["published"])
    parts = list(_parts(quick, 1 if quick else seeds, policies))
    began = time.monotonic()
    for part, (found, cpu_s) in zip(parts, run_parts(parts, workers, say), strict=True):
        getattr(paper, part.section).extend(found)
        paper.cpu_s += cpu_s
    for jobs in assumptions()["scale_jobs"][: 2 if quick else None]:
        paper.scale += _scale(jobs, policies)
        say(f"decisions for {jobs} jobs")
    say(f"in all {paper.cpu_s:.0f} s of processor time for the runs, {time.monotonic() - began:.0f} s on the clock")
    return paper


def _parts(quick: bool, seeds: int, policies: Sequence[str]) -> Iterator[Part]:
    # 1. the traces that Gavel's own simulator was run on: with its assumptions, and with all costs
    for name, most in (("static_480", 60 if quick else 480), ("poisson_120", 30 if quick else 120)):
        rows = read_trace(name)[:most]
        case = partial(case_of, name, rows, "sim-60")
        yield Part("traces", f"{name}, {most} jobs, rates known, no costs", partial(case, policies, _FREE, bounds=True))
        yield Part("costs", f"{name}, rates measured, all costs", partial(case, policies, _dear()))
        blind = [policy for policy in policies if policy in BLIND]
        for seed in range(1, seeds):  # the others draw no lots
            settings = replace(_FREE, seed=seed)
            yield Part("traces", f"{name}, blind, seed {seed}", partial(case, blind, settings, bounds=True))
    # 2. heavier and lighter loads
    for load, seed in product(assumptions()["loads"], range(seeds)):
        rows = _load_rows(load, seed, quick)
        settings = replace(_FREE, seed=seed)
        run = partial(case_of, load, rows, "sim-60", policies, settings, bounds=True)
        yield Part("loads", f"{load} load, seed {seed}", run)
    # 3. small clusters of unequal nodes
    for cluster, what in product(("aws-like", "testbed-like"), ("no costs", "all costs")):
        yield Part("small", f"{cluster}, mixes, {what}", partial(_small, cluster, what, policies, seeds, quick))
    # 4. how long a round should be, with what a boundary costs
    ours = [policy for policy in policies if policy in ("hadare", "hadar")]
    rows = Synthetic(jobs=30 if quick else 60, seed=1).rows()
    for round_s in assumptions()["rounds_s"][:: 2 if quick else 1]:
        yield Part(
            "rounds", f"rounds of {round_s} s", partial(case_of, f"{round_s} s", rows, "sim-60", ours, _dear(round_s))
        )


def run_parts(parts: Sequence[Part], workers: int, say: Say) -> list[tuple[list[Any], float]]:
    """What the parts found, in their order, and the processor time of each; says so as each ends."""
    if workers == 1:
        return [_told(part, _timed(part), say) for part in parts]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(_timed, part): n for n, part in enumerate(parts)}
        found = {running[each]: _told(parts[running[each]], each.result(), say) for each in as_completed(running)}
    return [found[n] for n in range(len(parts))]


def _timed(part: Part) -> tuple[list[Any], float]:
    began = time.process_time()
    return part.run(), time.process_time() - began


def _told(part: Part, result: tuple[list[Any], float], say: Say) -> tuple[list[Any], float]:
    say(f"{part.what}: {result[1]:.0f} s of processor time")
    return result


def _live(settings: Settings) -> Settings:
    """Our policies' rounds may end with a job, as they do live; the baselines' never do, as published."""
    return replace(settings, early_s=EARLY * settings.round_s)


_FREE = _live(Settings(oracle=True, hold=DEFAULT_HOLD))


def _dear(round_s: float = 360.0) -> Settings:
    """Rates are measured, everything costs what it costs, and rounds end as live."""
    return _live(Settings(round_s=round_s, costs=Costs(**assumptions()["costs"])))


def _load_rows(load: str, seed: int, quick: bool) -> tuple[TraceRow, ...]:
    shape = assumptions()["loads"][load]
    return Synthetic(jobs=shape["jobs"] // (4 if quick else 1), interval_s=shape["interval_s"], seed=seed).rows()


def nodes_named(cluster: str) -> tuple[SimNode, ...]:
    """The nodes of a cluster of the study."""
    spec = parse_cluster(assumptions()["clusters"][cluster]["nodes"])
    return nodes_of((node.name, [(g.type, g.count) for g in node.devices], node.labels) for node in spec.nodes)


def mix_rows(mix: str, seed: int) -> tuple[TraceRow, ...]:
    """The jobs of a mix; a seed makes each of them up to a third longer or shorter. Seed 0: as they are written."""
    chance = random.Random(seed)
    specs = assumptions()["jobs"]
    return tuple(
        TraceRow(
            job_id=f"{name.lower()}-{place}",
            arrival_s=0.0,
            model=specs[name]["model"],
            batch_size=specs[name]["batch_size"],
            total_steps=round(specs[name]["total_steps"] * (chance.uniform(2 / 3, 4 / 3) if seed else 1.0)),
        )
        for place, name in enumerate(assumptions()["mixes"][mix])
    )


def case_of(
    case: str,
    rows: Iterable[TraceRow],
    cluster: str,
    policies: Sequence[str],
    settings: Settings,
    *,
    bounds: bool = False,
) -> list[Row]:
    nodes = nodes_named(cluster)
    found = study(prepare(rows, shipped_table(), nodes), nodes, policies, settings, bounds=bounds)
    gavel = found.metrics.get("gavel")
    return [_row(case, name, m, settings.seed, gavel, found.bounds) for name, m in found.metrics.items()]


def _row(case: str, policy: str, m: Metrics, seed: int, gavel: Metrics | None, bounds: Mapping[str, float]) -> Row:
    row = Row(
        case=case,
        policy=policy,
        seed=seed,
        ttd_h=m.ttd_s / HOUR_S,
        mean_jct_h=m.mean_jct_s / HOUR_S,
        cru=m.cru,
        gru=m.gru,
        preemptions=m.preemptions,
        restarts=m.restarts,
        unfinished=m.unfinished,
        decision_ms=m.decision_ms_median,
        ttd_vs_bound=m.ttd_s / bounds["fluid_ttd_s"] if bounds else 0.0,
        jct_vs_bound=m.mean_jct_s / bounds["mean_jct_s"] if bounds else 0.0,
    )
    if gavel is None or m.unfinished or gavel.unfinished:
        return row
    return replace(
        row,
        ttd_vs_gavel=gavel.ttd_s / m.ttd_s,
        jct_vs_gavel=gavel.mean_jct_s / m.mean_jct_s,
        cru_vs_gavel=m.cru / gavel.cru,
    )


def _small(cluster: str, what: str, policies: Sequence[str], seeds: int, quick: bool) -> list[dict[str, Any]]:
    """The mean over mixes (and seeds) of each ratio to gavel, without costs or with all."""
    mixes = list(assumptions()["mixes"])[:: 4 if quick else 1]
    settings = _live(Settings(oracle=True)) if what == "no costs" else _dear()
    rows: list[Row] = []
    for mix, seed in product(mixes, range(seeds)):
        rows += case_of(mix, mix_rows(mix, seed), cluster, policies, replace(settings, seed=seed), bounds=True)
    found: list[dict[str, Any]] = []
    for policy in policies:
        own = [row for row in rows if row.policy == policy]
        found.append({"cluster": cluster, "costs": what, "policy": policy, **_means(own), "mixes": _by_mix(own)})
    return found


_MEANS = ("ttd_h", "mean_jct_h", "cru", "gru", "ttd_vs_gavel", "jct_vs_gavel", "cru_vs_gavel")


def _means(rows: Sequence[Row]) -> dict[str, float]:
    """``…_ceiling``: what the ratio to gavel would be if the policy were at the bounds of forks without any cost."""
    return {
        **{name: fmean(getattr(row, name) for row in rows) for name in _MEANS},
        "ttd_ceiling": fmean(row.ttd_vs_gavel * row.ttd_vs_bound for row in rows),
        "jct_ceiling": fmean(row.jct_vs_gavel * row.jct_vs_bound for row in rows),
    }


def _by_mix(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    return {mix: _means([row for row in rows if row.case == mix]) for mix in dict.fromkeys(row.case for row in rows)}


def _scale(jobs: int, policies: Sequence[str]) -> list[dict[str, Any]]:
    """Median time of the first decisions with so many jobs waiting, on as many devices as an eighth of them."""
    nodes = nodes_of(
        (f"{kind.lower()}-{n}", [(kind, 4)], {}) for kind in ("V100", "P100", "K80") for n in range(-(-jobs // 96))
    )
    work: tuple[SimJob, ...] = prepare(Synthetic(jobs=jobs, seed=0).rows(), shipped_table(), nodes)
    found = study(work, nodes, policies, Settings(oracle=True, most_rounds=5), bounds=False)
    return [
        {"jobs": jobs, "devices": 4 * len(nodes), "policy": name, "decision_ms": m.decision_ms_median}
        for name, m in found.metrics.items()
    ]
