"""The timeline of a run as one HTML file: a Gantt chart by device, its rounds and versions. Needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from hadare.local.history import Training

_COLOURS = ("#3b7dd8", "#d9822b", "#2f9e6e", "#b5429f", "#8a6d3b", "#d64545", "#4c5c96", "#6b8e23")
_WIDTH = 1100.0
_LEFT = 150.0
_ROW = 34.0
_BAR = 24.0
_TOP = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened at one moment: a round that began, a version that was published."""

    at: float
    label: str
    job_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What the chart shows. ``devices`` are (node, index, type), also those that never trained."""

    began: float
    ended: float
    devices: Sequence[tuple[str, int, str]]
    trainings: Sequence[Training]
    rounds: Sequence[Mark]
    versions: Sequence[Mark]
    names: Mapping[str, str]

    def x(self, at: float) -> float:
        span = max(self.ended - self.began, 1e-9)
        return _LEFT + (_WIDTH - _LEFT - 20) * (at - self.began) / span


def render(timeline: Timeline, title: str, facts: Mapping[str, str]) -> str:
    """The whole document."""
    jobs = sorted(timeline.names)
    colours = {job: _COLOURS[place % len(_COLOURS)] for place, job in enumerate(jobs)}
    height = _TOP + _ROW * (len(timeline.devices) + len(jobs)) + 30
    drawn = [
        *_rounds(timeline, height),
        *_device_rows(timeline, colours),
        *_version_rows(timeline, colours),
        *_axis(timeline, height),
    ]
    legend = " ".join(
        f'<span class="key" style="background:{colours[job]}"></span>{escape(timeline.names[job])}' for job in jobs
    )
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
    picture = f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img">{"".join(drawn)}</svg>'
    return _PAGE.format(title=escape(title), legend=legend, picture=picture, rows=rows)


def _rounds(timeline: Timeline, height: float) -> Iterable[str]:
    for mark in timeline.rounds:
        if timeline.began <= mark.at <= timeline.ended:
            x = timeline.x(mark.at)
            yield f'<line class="round" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8:.0f}" y2="{height - 24:.0f}"/>'
            yield f'<text class="small" x="{x + 2:.1f}" y="{_TOP - 12:.0f}">{escape(mark.label)}</text>'


def _device_rows(timeline: Timeline, colours: Mapping[str, str]) -> Iterable[str]:
    for place, (node, index, kind) in enumerate(timeline.devices):
        y = _TOP + _ROW * place
        yield f'<text x="4" y="{y + 16:.0f}">{escape(node)}/{index} <tspan class="small">{escape(kind)}</tspan></text>'
        for t in timeline.trainings:
            if (t.node, t.device) == (node, index):
                yield _bar(timeline, t, y, colours.get(t.job_id, "#888"))


def _bar(timeline: Timeline, t: Training, y: float, colour: str) -> str:
    x, width = timeline.x(t.began), max(timeline.x(t.ended) - timeline.x(t.began), 1.0)
    name = timeline.names.get(t.job_id, t.job_id)
    hint = f"{name}: round {t.round}, fork {t.fork}, {t.steps} steps in {t.seconds:.2f} s ({t.reason})"
    return (
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_BAR:.0f}" rx="2" fill="{colour}">'
        f"<title>{escape(hint)}</title></rect>"
    )


def _version_rows(timeline: Timeline, colours: Mapping[str, str]) -> Iterable[str]:
    first = _TOP + _ROW * len(timeline.devices)
    for place, (job, name) in enumerate(sorted(timeline.names.items())):
        y = first + _ROW * place + _BAR / 2
        yield f'<text x="4" y="{y + 4:.0f}">{escape(name)} <tspan class="small">versions</tspan></text>'
        for mark in timeline.versions:
            if mark.job_id == job:
                x = timeline.x(mark.at)
                yield (
                    f'<circle cx="{x:.1f}" cy="{y:.0f}" r="5" fill="{colours[job]}"><title>{escape(mark.label)}'
                    "</title></circle>"
                )


def _axis(timeline: Timeline, height: float) -> Iterable[str]:
    span = timeline.ended - timeline.began
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800) if span / s <= 15), 3600)
    for tick in range(0, int(span) + 1, step):
        x = timeline.x(timeline.began + tick)
        yield f'<text class="small" x="{x:.1f}" y="{height - 8:.0f}">{tick} s</text>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1150px; color: #222; background: #fff; }}
svg {{ width: 100%; height: auto; }}
text {{ font-size: 13px; fill: #333; }}
.small {{ font-size: 11px; fill: #777; }}
.round {{ stroke: #ddd; stroke-width: 1; }}
.key {{ display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 .3em 0 1em; }}
table {{ border-collapse: collapse; margin-top: 1.5rem; }}
th {{ text-align: left; font-weight: 600; padding-right: 1.5em; }}
td, th {{ border-bottom: 1px solid #eee; padding: .25em 1em .25em 0; }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #ddd; background: #181a1b; }} text {{ fill: #ccc; }} .round {{ stroke: #333; }}
  td, th {{ border-color: #333; }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
<p>Each bar is one fork from its first to its last step in a round; hover for its numbers.{legend}</p>
{picture}
<table>{rows}</table>
</body>
</html>
"""
