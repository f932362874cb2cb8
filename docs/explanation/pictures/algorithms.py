"""Draws `algorithms.svg`: a price curve, and one round as `hadar` and as `hadare` place it. Run it to draw it anew.

Everything shown is computed by the policies themselves; a test compares the file with what this draws.
"""

from __future__ import annotations

from pathlib import Path

from hadare.model.devices import NodeState
from hadare.model.plans import JobView, NodeView, RoundPlan, Snapshot, Throughput
from hadare.scheduling.policies import policy_of
from hadare.scheduling.pricing import price_book

TARGET = Path(__file__).with_suffix(".svg")
ROUND_S = 360.0
SPEED = {"V100": 1.0, "P100": 0.7, "K80": 0.27}
COLOUR = {"a": "#3b7dd8", "b": "#e08a1e", "c": "#3f9d5a", "": "#eeeeee"}
WIDTH, HEIGHT = 760, 300


def a_job(job_id: str, gang: int, steps: int) -> JobView:
    rates = {name: Throughput(steps_per_s=10.0 * speed, confidence=1.0) for name, speed in SPEED.items()}
    return JobView(job_id=job_id, arrival_s=0.0, steps_left=steps, total_steps=steps, throughput=rates, gang=gang)


def a_round() -> Snapshot:
    """The round of the documentation: five devices of three types, three jobs."""
    shapes = {"n1": {"V100": 2}, "n2": {"P100": 2}, "n3": {"K80": 1}}
    nodes = tuple(NodeView(node=name, state=NodeState.READY, devices=devices) for name, devices in shapes.items())
    jobs = (a_job("a", 2, 100_000), a_job("b", 1, 8_000), a_job("c", 3, 60_000))
    book = price_book(0, nodes, jobs, ROUND_S)
    return Snapshot(round=0, epoch=1, now_s=0.0, round_s=ROUND_S, nodes=nodes, jobs=jobs, prices=book)


def holders(snapshot: Snapshot, plan: RoundPlan) -> dict[str, list[tuple[str, str]]]:
    """By node: its devices as (type, job that has it)."""
    cells: dict[tuple[str, str], list[str]] = {(n.node, t): [] for n in snapshot.nodes for t in n.devices}
    for fork in plan.forks:
        for member in fork.gang:
            cells[member.node, member.type] += [fork.job_id] * member.count
    rows: dict[str, list[tuple[str, str]]] = {}
    for n in snapshot.nodes:
        for name, count in n.devices.items():
            held = cells[n.node, name] + [""] * (count - len(cells[n.node, name]))
            rows.setdefault(n.node, []).extend((name, job) for job in held)
    return rows


def draw() -> str:
    """The picture, as SVG."""
    nodes = (NodeView(node="n1", state=NodeState.READY, devices={"V100": 4}),)
    curve = price_book(0, nodes, (a_job("a", 2, 14_400),), ROUND_S).curves[0]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(20, 24, "Price of the next V100 of a node of four", bold=True),
        *_curve([curve.price(taken) for taken in range(5)]),
    ]
    snapshot = a_round()
    for place, name in ((360, "hadar"), (570, "hadare")):
        plan, _ = policy_of(name).plan(snapshot, {})
        parts += [_text(place, 24, name, bold=True), *_cluster(place, holders(snapshot, plan))]
    parts += _legend(snapshot)
    return "\n".join([*parts, "</svg>", ""])


def _curve(prices: list[float]) -> list[str]:
    left, bottom, wide, high = 60, 240, 240, 180
    at = [(left + wide * i / 4, bottom - high * price / prices[-1]) for i, price in enumerate(prices)]
    parts = [
        f'<path d="M{left} {bottom - high - 10} V{bottom} H{left + wide + 10}" fill="none" stroke="#444"/>',
        f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in at)}" fill="none" stroke="#bbb"/>',
    ]
    for i, ((x, y), price) in enumerate(zip(at, prices, strict=True)):
        paid = i < 2
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{COLOUR["a"] if paid else "#888"}"/>',
            _text(x - 6, y - 9, f"{price:.3f}"),
            _text(x - 3, bottom + 16, str(i)),
        ]
    return [
        *parts,
        _text(left + 80, bottom + 34, "devices taken"),
        _text(left + 60, 66, "blue: what a gang of two pays"),
    ]


def _cluster(left: float, rows: dict[str, list[tuple[str, str]]]) -> list[str]:
    parts = []
    for number, (node, devices) in enumerate(rows.items()):
        top = 48 + 66 * number
        parts.append(_text(left, top + 28, node))
        for i, (name, job) in enumerate(devices):
            x = left + 28 + 70 * i
            ink = "white" if job else "#666"
            parts += [
                f'<rect x="{x:.1f}" y="{top}" width="62" height="48" rx="4" fill="{COLOUR[job]}"/>',
                _text(x + 8, top + 20, name, ink),
                _text(x + 8, top + 38, f"job {job}" if job else "free", ink),
            ]
    return parts


def _legend(snapshot: Snapshot) -> list[str]:
    lines = [f"job {j.job_id}: {j.steps_left:,} steps, asks for {j.gang}" for j in snapshot.jobs]
    return [_text(388, 258 + 15 * i, line) for i, line in enumerate(lines)]


def _text(x: float, y: float, words: str, ink: str = "#222", *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}"{weight}>{words}</text>'


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
