"""The report: one HTML page that needs nothing else, its pictures as SVG files, and as PNG where it is possible."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from html import escape
from pathlib import Path

from hadare.model.errors import Rejected
from hadare.simulator import pictures
from hadare.simulator.metrics import Metrics
from hadare.simulator.slots import Slot
from hadare.simulator.study import Study, devices_of

_HOUR_S = 3600.0
_RENDERER = "resvg_py"
"""Comes with the extra ``report``; without it there are no PNGs."""


def write_report(study: Study, directory: Path, trace: str) -> Path:
    """Writes the page and the pictures, and returns the page's path. Raises ``Rejected`` (400)."""
    drawn = draw(study)
    page = directory / "report.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        page.write_text(_page(study, drawn, trace), encoding="utf-8")
        for name, svg in drawn.items():
            (directory / f"{name}.svg").write_text(svg, encoding="utf-8")
            png = to_png(svg)
            if png is not None:
                (directory / f"{name}.png").write_bytes(png)
    except OSError as error:
        raise Rejected(400, f"cannot write the report: {error}") from error
    return page


def draw(study: Study) -> dict[str, str]:
    """All pictures by name, in the order of the page."""
    outcomes = study.outcomes
    drawn = pictures.comparison(study)
    drawn["completion"] = pictures.completion(study)
    drawn["use"] = pictures.over_time(outcomes, "used", "Devices in use over time", "share", 1.0)
    drawn["waiting"] = pictures.over_time(outcomes, "waiting", "Jobs that wait", "jobs")
    slots = _slots(study)
    for name, outcome in outcomes.items():
        drawn[f"gantt-{name}"] = pictures.gantt(outcome, slots, f"{name}: who trained where")
        drawn[f"types-{name}"] = pictures.by_type(outcome, "used", f"{name}: use of each type", "share")
        title = f"{name}: price of the next device, mean over the cells of a type"
        drawn[f"prices-{name}"] = pictures.by_type(outcome, "price", title, "utility", logarithmic=True)
    return drawn


def to_png(svg: str) -> bytes | None:
    """The picture as PNG; None without the extra ``report``."""
    if importlib.util.find_spec(_RENDERER) is None:
        return None
    return bytes(importlib.import_module(_RENDERER).svg_to_bytes(svg_string=svg, zoom=2))


def _slots(study: Study) -> list[tuple[Slot, str]]:
    return [
        ((node.name, device.index), device.type)
        for node in sorted(study.nodes, key=lambda node: node.name)
        for device in node.inventory().devices
    ]


def _page(study: Study, drawn: Mapping[str, str], trace: str) -> str:
    devices = ", ".join(f"{count} {kind}" for kind, count in devices_of(study.nodes).items())
    settings = study.settings
    mode = "event-driven" if settings.event_driven else f"rounds of {settings.round_s:g} s"
    facts = (
        f"{len(study.jobs)} jobs of {escape(trace)} on {devices}; {mode}; "
        f"rates {'known from the start' if settings.oracle else 'estimated, then measured'}; "
        f"{'no costs beside training' if settings.costs.none else 'with costs of restarts and of moving weights'}."
    )
    assumed = sorted({flag for job in study.jobs for flag in job.flags})
    notes = f"<p class='note'>Assumed for want of data: {escape('; '.join(assumed))}.</p>" if assumed else ""
    compared = "".join(drawn[name] for name in ("ttd", "jct", "cru", "gru"))
    shared = "".join(drawn[name] for name in ("completion", "use", "waiting"))
    policies = "".join(
        f"<h2>{escape(name)}</h2>{drawn[f'gantt-{name}']}{drawn[f'types-{name}']}{drawn[f'prices-{name}']}"
        for name in study.outcomes
    )
    return _PAGE.format(
        facts=facts, notes=notes, table=_table(study), compared=compared, shared=shared, policies=policies
    )


def _table(study: Study) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{_cells(metrics, study.over_bounds(name))}</tr>"
        for name, metrics in study.metrics.items()
    )
    limits = "".join(
        f"<tr class='bound'><th>{escape(name)}</th><td>{value / _HOUR_S:.2f} h</td></tr>"
        for name, value in study.bounds.items()
    )
    return f"<table><thead><tr><th></th>{_HEADS}</tr></thead><tbody>{rows}</tbody></table><table>{limits}</table>"


_HEADS = "".join(
    f"<th>{head}</th>"
    for head in (
        "TTD h", "× bound", "mean JCT h", "× bound", "median h", "p95 h", "p99 h", "queued h", "CRU", "GRU",
        "fairness ρ mean / worst", "pre-empted", "moved", "lost device-h", "jobs", "decision ms",
    )
)  # fmt: skip


def _cells(m: Metrics, over: Mapping[str, float]) -> str:
    cells = (
        f"{m.ttd_s / _HOUR_S:.2f}",
        f"{over['ttd_over_bound']:.3f}" if over else "",
        f"{m.mean_jct_s / _HOUR_S:.2f}",
        f"{over['mean_jct_over_bound']:.3f}" if over else "",
        f"{m.median_jct_s / _HOUR_S:.2f}",
        f"{m.p95_jct_s / _HOUR_S:.2f}",
        f"{m.p99_jct_s / _HOUR_S:.2f}",
        f"{m.mean_queued_s / _HOUR_S:.2f}",
        f"{m.cru:.3f}",
        f"{m.gru:.3f}",
        f"{m.mean_fairness:.2f} / {m.worst_fairness:.2f}",
        f"{m.preemptions}",
        f"{m.restarts}",
        f"{m.lost_device_s / _HOUR_S:.1f}",
        f"{m.jobs_done}" + (f" ({m.unfinished} never)" if m.unfinished else ""),
        f"{m.decision_ms_median:.1f}",
    )
    return "".join(f"<td>{cell}</td>" for cell in cells)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>HadarE simulation</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 920px; color: #222; background: #fff; }}
svg {{ max-width: 100%; height: auto; margin: .4rem 0; }}
.pair {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: 13px; display: block; overflow-x: auto; }}
th, td {{ border-bottom: 1px solid #e5e5e5; padding: .25em .7em; text-align: right; white-space: nowrap; }}
tbody th, .bound th {{ text-align: left; }}
.note {{ color: #666; font-size: 13px; }}
</style>
</head>
<body>
<h1>HadarE simulation</h1>
<p>{facts}</p>{notes}
{table}
<div class="pair">{compared}</div>
{shared}
{policies}
</body>
</html>
"""
