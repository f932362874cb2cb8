"""The pictures of a study: what each policy reached, who trained where and when, and what devices cost meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadare.simulator.record import Outcome, Stretch
from hadare.simulator.slots import Slot
from hadare.simulator.study import Study
from hadare.simulator.svg import COLOURS, Axis, Chart, bars, frame, text

_HOUR_S = 3600.0
_LOST = "#bbbbbb"


def comparison(study: Study) -> dict[str, str]:
    """Policies side by side: name of the picture -> SVG."""
    metrics, bounds = study.metrics, study.bounds
    ttd = {name: m.ttd_s / _HOUR_S for name, m in metrics.items()}
    jct = {name: m.mean_jct_s / _HOUR_S for name, m in metrics.items()}
    return {
        "ttd": bars("Total time duration", "hours", ttd, _hours(bounds, "fluid_ttd_s")),
        "jct": bars("Mean job completion time", "hours", jct, _hours(bounds, "mean_jct_s")),
        "cru": bars(
            "Devices in use over the whole run (CRU)", "", {n: m.cru for n, m in metrics.items()}, {"all": 1.0}
        ),
        "gru": bars("The same, weighted by speed (GRU)", "", {n: m.gru for n, m in metrics.items()}, {"all": 1.0}),
    }


def _hours(bounds: Mapping[str, float], key: str) -> dict[str, float]:
    return {"bound": bounds[key] / _HOUR_S} if key in bounds else {}


def completion(study: Study) -> str:
    """Share of the jobs that were done within a time of their arrival."""
    times = {
        name: sorted(max(story.jct_s or 0.0, 1.0) / _HOUR_S for story in outcome.stories.values() if story.finish_s)
        for name, outcome in study.outcomes.items()
    }
    everything = [value for values in times.values() for value in values] or [1.0]
    low, high = max(min(everything), 1e-3), max(everything)
    chart = Chart(
        title="Completion times: share of the jobs that took at most so long",
        x=Axis(low=low, high=max(high, low * 10), unit="hours, logarithmic", logarithmic=True),
        y=Axis(low=0, high=1, unit=""),
        width=860,
    )
    for place, (name, values) in enumerate(times.items()):
        points = [(value, (number + 1) / len(study.jobs)) for number, value in enumerate(values)]
        chart.line(name, [(low, 0.0), *points], COLOURS[place % len(COLOURS)], step=True)
    return chart.render()


def over_time(outcomes: Mapping[str, Outcome], key: str, title: str, unit: str, most: float | None = None) -> str:
    """One line a policy."""
    lines = {name: outcome.series.points(key) for name, outcome in outcomes.items()}
    return _lines(lines, title, unit, most)


def by_type(outcome: Outcome, prefix: str, title: str, unit: str, *, logarithmic: bool = False) -> str:
    """One line a device type."""
    lines = {name: outcome.series.points(f"{prefix} {name}") for name in outcome.devices}
    return _lines(lines, title, unit, None if logarithmic else 1.0, logarithmic=logarithmic)


def _lines(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    unit: str,
    most: float | None,
    *,
    logarithmic: bool = False,
) -> str:
    values = [value for points in lines.values() for _, value in points]
    ends = [at / _HOUR_S for points in lines.values() for at, _ in points] or [1.0]
    if logarithmic:
        positive = [value for value in values if value > 0] or [1.0]
        y = Axis(low=min(positive), high=max(max(positive), 10 * min(positive)), unit=unit, logarithmic=True)
    else:
        y = Axis(low=0, high=most or max([*values, 1e-9]) * 1.05, unit=unit)
    chart = Chart(title=title, x=Axis(low=0, high=max(ends), unit="hours"), y=y, width=860)
    for place, (name, points) in enumerate(lines.items()):
        shown = [(at / _HOUR_S, value) for at, value in points if value > 0 or not logarithmic]
        chart.line(name, shown, COLOURS[place % len(COLOURS)])
    return chart.render()


def gantt(outcome: Outcome, slots: Sequence[tuple[Slot, str]], title: str, width: float = 860.0) -> str:
    """One row a device, one colour a job; white is idle."""
    row = max(3.0, min(14.0, 560 / max(len(slots), 1)))
    left, top = 108.0, 48.0
    height = top + row * len(slots) + 34
    end = max(outcome.ended_s, 1.0)
    scale = (width - left - 12) / end
    places = {slot: number for number, (slot, _) in enumerate(slots)}
    axis = Axis(low=0, high=end / _HOUR_S, unit="hours")
    parts = [text(4, 18, title, size=14, weight="600")]
    for tick in axis.ticks():
        x = left + tick * _HOUR_S * scale
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top - 4}' y2='{top + row * len(slots):.1f}' stroke='#eee'/>"
        )
        parts.append(text(x, height - 16, f"{tick:g}", size=11, anchor="middle", colour="#777777"))
    parts.append(text(width - 12, height - 3, "hours", size=11, anchor="end", colour="#777777"))
    parts += _nodes(slots, row, left, top)
    parts += [
        _stretch(stretch, places, row, left, top, scale) for stretch in outcome.stretches if stretch.slot in places
    ]
    return frame(width, height, parts)


def _nodes(slots: Sequence[tuple[Slot, str]], row: float, left: float, top: float) -> list[str]:
    parts, seen = [], ""
    for number, ((node, _), kind) in enumerate(slots):
        if node != seen:
            y = top + row * number
            parts.append(f"<line x1='4' x2='{left}' y1='{y:.1f}' y2='{y:.1f}' stroke='#cccccc'/>")
            parts.append(text(6, y + min(12.0, 3 * row), node if kind.lower() in node else f"{node} {kind}", size=10))
            seen = node
    return parts


def _stretch(stretch: Stretch, places: Mapping[Slot, int], row: float, left: float, top: float, scale: float) -> str:
    x, wide = left + stretch.began_s * scale, max((stretch.ended_s - stretch.began_s) * scale, 0.3)
    y = top + row * places[stretch.slot]
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{wide:.1f}' height='{row - 0.4:.1f}' fill='{_colour(stretch.job_id)}'>"
        f"<title>{stretch.job_id}</title></rect>"
    )


def _colour(job_id: str) -> str:
    """Always the same for a job; neighbours in number are far apart in hue."""
    number = sum(ord(letter) * (place + 1) for place, letter in enumerate(job_id)) * 47 % 360
    return f"hsl({number}, {52 + number % 3 * 12}%, {48 + number % 4 * 7}%)"
