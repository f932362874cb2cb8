"""How a job's versions are told to people."""

from __future__ import annotations

from rich.console import Console

from hadare.cli.histories import by_version, of_history
from hadare.model.jobs import Guarded
from hadare.wire.api import HistoryPoint


def shown(*points: HistoryPoint) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(of_history(by_version(points)))
    return capture.get()


def a_point(version: int, **changes: object) -> HistoryPoint:
    return HistoryPoint(sequence=version, at=0.0, version=version, steps=100 * version, **changes)  # type: ignore[arg-type]


def test_a_version_and_its_evaluation_are_one_line() -> None:
    text = shown(a_point(1, loss=0.5), HistoryPoint(sequence=9, at=1.0, version=1, metrics={"accuracy": 0.9}))
    assert len(text.strip().splitlines()) == 2
    assert "0.9" in text


def test_what_a_guard_chose_is_told_and_why_it_was_the_average_unseen() -> None:
    chosen = Guarded(chosen="longer", scores={"longer": 0.9, "average": 0.8})
    unseen = Guarded(chosen="average", reason="its node is lost")
    text = shown(a_point(1, guard=chosen), a_point(2, guard=unseen))
    assert "CHOSEN" in text
    assert "longer" in text
    assert "average: its node is lost" in text


def test_without_a_guard_there_is_nothing_about_choices() -> None:
    assert "CHOSEN" not in shown(a_point(1))


def test_a_gang_is_one_fork_on_several_devices_and_said_to_be() -> None:
    text = shown(a_point(1, forks=3, devices=3), a_point(2, forks=1, devices=4))
    assert "DEVICES" in text
    assert text.strip().splitlines()[-1].split()[:4] == ["2", "200", "1", "4"]


def test_forks_on_one_device_each_need_no_column_of_devices() -> None:
    assert "DEVICES" not in shown(a_point(1, forks=3, devices=3))
