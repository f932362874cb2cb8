"""Whole runs whose figures are kept in ``tests/regression/ranges.toml``.

``python tests/builders_regression.py`` measures them anew and writes the file: after a change on purpose.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev

from hadare.bench.paper import nodes_named
from hadare.simulator.rates import shipped_table
from hadare.simulator.settings import DEFAULT_HOLD, Settings
from hadare.simulator.study import Study, prepare, study
from hadare.simulator.synthetic import Synthetic
from hadare.simulator.traces import read_trace

RANGES_FILE = Path(__file__).parent / "regression" / "ranges.toml"
SEEDS = (0, 1, 2)
CASES = ("static_480:40", "poisson_120:20", "synthetic")
KEPT = ("hadare", "hadar", "gavel")


@lru_cache(maxsize=8)
def run_of(case: str) -> Study:
    """``TRACE:JOBS``, or ``synthetic:SEED`` (of which only the policies whose figures are kept are run)."""
    nodes = nodes_named("sim-60")
    name, _, number = case.partition(":")
    if name == "synthetic":
        rows = Synthetic(jobs=30, interval_s=600.0, seed=int(number), most_gang=4).rows()
    else:
        rows = read_trace(name)[: int(number)]
    policies = KEPT if name == "synthetic" else (*KEPT, "yarn-cs")
    settings = Settings(oracle=True, hold=DEFAULT_HOLD, early_s=3.6)
    return study(prepare(rows, shipped_table(), nodes), nodes, policies, settings)


def figures_of(case: str) -> dict[str, tuple[float, float]]:
    """Mean and spread of each figure; only the synthetic case has several seeds to spread over."""
    runs = [f"synthetic:{seed}" for seed in SEEDS] if case == "synthetic" else [case]
    every = [_figures(run_of(each)) for each in runs]
    names = every[0]
    return {
        name: (fmean(f[name] for f in every), stdev(f[name] for f in every) if len(every) > 1 else 0.0)
        for name in names
    }


def _figures(run: Study) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in KEPT:
        metrics = run.metrics[name]
        found[f"{name}_ttd_over_bound"] = metrics.ttd_s / run.bounds["fluid_ttd_s"]
        found[f"{name}_jct_over_bound"] = metrics.mean_jct_s / run.bounds["mean_jct_s"]
        found[f"{name}_cru"] = metrics.cru
    return found


def measured() -> str:
    """The whole file. Margins: 3 % of a ratio, 0.02 of a share."""
    lines = ["# Measured: mean, spread over seeds (0: one run), and the margin that is allowed.", _HOW]
    for case in CASES:
        lines.append(f'\n["{case}"]')
        for name, (mean, spread) in figures_of(case).items():
            margin = 0.02 if name.endswith("cru") else 0.03 * mean
            lines.append(f"{name} = {{ mean = {mean:.4f}, spread = {spread:.4f}, margin = {margin:.4f} }}")
    return "\n".join(lines) + "\n"


_HOW = "# After a change on purpose: python tests/builders_regression.py, and look at the difference."

if __name__ == "__main__":
    RANGES_FILE.write_text(measured())
