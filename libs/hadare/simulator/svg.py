"""Charts as SVG: lines, steps, bars and a Gantt chart. Plain enough for every browser and every renderer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, log10

COLOURS = ("#3b7dd8", "#d9822b", "#2f9e6e", "#b5429f", "#8a6d3b", "#d64545", "#4c5c96", "#6b8e23")
_INK, _FAINT, _GRID = "#333333", "#777777", "#e3e3e3"
_FONT = "font-family='DejaVu Sans, Verdana, Helvetica, Arial, sans-serif'"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From ``low`` to ``high``, with a unit for the reader."""

    low: float
    high: float
    unit: str
    logarithmic: bool = False

    def place(self, value: float, length: float) -> float:
        if self.logarithmic:
            low, high = log10(self.low), log10(self.high)
            value = log10(max(value, self.low))
        else:
            low, high = self.low, self.high
        return length * (min(max(value, low), high) - low) / max(high - low, 1e-12)

    def ticks(self) -> list[float]:
        """Round numbers on the axis."""
        if self.logarithmic:
            return [10.0**power for power in range(ceil(log10(self.low)), floor(log10(self.high)) + 1)]
        span = max(self.high - self.low, 1e-12)
        step = 10 ** floor(log10(span / 4))
        step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
        first = ceil(self.low / step - 1e-9)
        return [step * number for number in range(first, floor(self.high / step + 1e-9) + 1)]


@dataclass(slots=True, kw_only=True)
class Chart:
    """A frame with axes to draw into."""

    title: str
    x: Axis
    y: Axis
    width: float = 640.0
    height: float = 300.0
    left: float = 62.0
    legend: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)

    @property
    def _inner(self) -> tuple[float, float]:
        return self.width - self.left - 14, self.height - 84

    def at(self, x: float, y: float) -> tuple[float, float]:
        wide, high = self._inner
        return self.left + self.x.place(x, wide), 48 + high - self.y.place(y, high)

    def line(self, name: str, points: Points, colour: str, *, step: bool = False) -> None:
        """A line through the points; ``step``: as a function that jumps."""
        path: list[str] = []
        before: float | None = None
        for x, y in points:
            px, py = self.at(x, y)
            if step and before is not None:
                path.append(f"{px:.1f},{before:.1f}")
            path.append(f"{px:.1f},{py:.1f}")
            before = py
        self.legend[name] = colour
        self.drawn.append(f"<polyline points='{' '.join(path)}' fill='none' stroke='{colour}' stroke-width='1.6'/>")

    def mark(self, name: str, y: float, colour: str = _INK) -> None:
        """A level, across."""
        wide, _ = self._inner
        _, py = self.at(self.x.low, y)
        self.drawn.append(
            f"<line x1='{self.left}' x2='{self.left + wide:.1f}' y1='{py:.1f}' y2='{py:.1f}' stroke='{colour}' "
            f"stroke-dasharray='5 4'/>{text(self.left + wide, py - 4, name, size=10, anchor='end', colour=colour)}"
        )

    def render(self) -> str:
        wide, high = self._inner
        parts = [text(self.left, 18, self.title, size=14, weight="600"), *self._key()]
        for tick in self.x.ticks():
            px, _ = self.at(tick, self.y.low)
            parts.append(f"<line x1='{px:.1f}' x2='{px:.1f}' y1='48' y2='{48 + high:.1f}' stroke='{_GRID}'/>")
            parts.append(text(px, 48 + high + 16, label(tick), size=11, anchor="middle", colour=_FAINT))
        for tick in self.y.ticks():
            _, py = self.at(self.x.low, tick)
            parts.append(
                f"<line x1='{self.left}' x2='{self.left + wide:.1f}' y1='{py:.1f}' y2='{py:.1f}' stroke='{_GRID}'/>"
            )
            parts.append(text(self.left - 6, py + 4, label(tick), size=11, anchor="end", colour=_FAINT))
        parts.append(text(self.left + wide, self.height - 4, self.x.unit, size=11, anchor="end", colour=_FAINT))
        parts.append(text(4, 40, self.y.unit, size=11, colour=_FAINT))
        return frame(self.width, self.height, [*parts, *self.drawn])

    def _key(self) -> Iterable[str]:
        x = self.left
        for name, colour in self.legend.items():
            yield f"<rect x='{x:.1f}' y='27' width='10' height='10' rx='2' fill='{colour}'/>"
            yield text(x + 14, 36, name, size=11)
            x += 26 + 6.6 * len(name)


def bars(title: str, unit: str, values: Mapping[str, float], marks: Mapping[str, float], width: float = 420.0) -> str:
    """One horizontal bar a name, with its value; ``marks`` are levels such as bounds."""
    high = max([*values.values(), *marks.values(), 1e-9]) * 1.16
    left, row = 92.0, 26.0
    height = 44 + row * len(values) + 18
    parts = [text(4, 18, title, size=14, weight="600"), text(width - 6, 18, unit, size=11, anchor="end", colour=_FAINT)]
    for place, (name, value) in enumerate(values.items()):
        y = 32 + row * place
        length = (width - left - 60) * value / high
        colour = COLOURS[place % len(COLOURS)]
        parts.append(text(left - 8, y + 14, name, size=12, anchor="end"))
        parts.append(f"<rect x='{left}' y='{y:.1f}' width='{length:.1f}' height='18' rx='2' fill='{colour}'/>")
        parts.append(text(left + length + 6, y + 14, f"{value:.3g}" if value < 100 else f"{value:.0f}", size=12))
    bottom = 32 + row * len(values)
    for name, value in marks.items():
        x = left + (width - left - 60) * value / high
        parts.append(
            f"<line x1='{x:.1f}' x2='{x:.1f}' y1='28' y2='{bottom:.1f}' stroke='{_INK}' stroke-dasharray='4 3'/>"
        )
        parts.append(text(x, bottom + 13, name, size=10, anchor="middle", colour=_FAINT))
    return frame(width, height, parts)


def text(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", colour: str = _INK, weight: str = "400"
) -> str:
    """A piece of text."""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} font-size='{size}' font-weight='{weight}' fill='{colour}' "
        f"text-anchor='{anchor}'>{escape(words)}</text>"
    )


def frame(width: float, height: float, parts: Iterable[str]) -> str:
    """A whole picture on white."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"height='{height:.0f}' role='img'><rect width='100%' height='100%' fill='#ffffff'/>{''.join(parts)}</svg>"
    )


def label(value: float) -> str:
    """A number as short as it can be."""
    if value == 0:
        return "0"
    return f"{value:g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
