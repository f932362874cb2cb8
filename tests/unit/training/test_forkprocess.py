from __future__ import annotations

import asyncio

import pytest

from hadare.model.errors import Unavailable
from hadare.training import forkprocess
from hadare.training.forkprocess import ForkProcess, failure_of
from hadare.training.protocol import Exit, Exited, Spawned

SPAWNED = Spawned(process_id="p", pid=7, started=3)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str]]:
    calls: list[tuple[int, int, str]] = []
    monkeypatch.setattr(forkprocess, "end_fork", lambda *who: calls.append(who) or True)
    return calls


async def test_a_fork_that_comes_too_late_is_ended(killed: list[tuple[int, int, str]]) -> None:
    fork = ForkProcess("p")
    with pytest.raises(Unavailable, match="does not answer"):
        await fork.until_spawned(0.0)
    fork.spawned(SPAWNED)
    await asyncio.gather(*fork._tasks)
    assert killed == [(7, 3, "p")]


async def test_a_fork_that_comes_in_time_lives(killed: list[tuple[int, int, str]]) -> None:
    fork = ForkProcess("p")
    fork.spawned(SPAWNED)
    await fork.until_spawned(1.0)
    assert (fork.pid, fork.exit, killed) == (7, None, [])


async def test_a_fork_is_lost_with_its_server() -> None:
    fork = ForkProcess("p")
    fork.lost()
    with pytest.raises(Unavailable, match="gone"):
        await fork.until_spawned(1.0)
    assert (await fork.wait()).signal == 9


async def test_what_the_server_said_of_an_end_is_not_overwritten_by_its_own_end() -> None:
    fork = ForkProcess("p")
    fork.exited(Exited(process_id="p", code=3))
    fork.lost()
    assert (await fork.wait()).code == 3


async def test_a_fork_that_was_never_spawned_is_ended_by_its_marker(killed: list[tuple[int, int, str]]) -> None:
    assert await ForkProcess("p").kill()
    assert killed == [(0, 0, "p")]


async def test_nothing_can_be_sent_to_a_fork_that_has_ended() -> None:
    with pytest.raises(Unavailable):
        await ForkProcess("p").send(Exit())


def test_an_end_without_a_word_says_how_it_came() -> None:
    assert "by signal 9" in failure_of(Exited(process_id="p", signal=9)).message
    assert failure_of(Exited(process_id="p", code=7)).message.endswith("with status 7")
    assert "status 0 before its task" in failure_of(Exited(process_id="p", code=0), ready=False).message
