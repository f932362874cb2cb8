from __future__ import annotations

import os

from hadare.training.processes import Process, descendants, end_fork, members, process_table, read_process, tree


def a_process(pid: int, parent: int = 1, group: int = 0, session: int = 0, started: int = 5) -> Process:
    return Process(pid, "S", parent, group or pid, session or pid, started)


def a_table(*processes: Process) -> dict[int, Process]:
    return {p.pid: p for p in processes}


def test_a_fork_has_its_children_and_theirs() -> None:
    table = a_table(a_process(10), a_process(11, parent=10), a_process(12, parent=11), a_process(20))
    assert tree(table, 10, 5) == {10, 11, 12}


def test_an_orphan_in_the_forks_session_belongs_to_it() -> None:
    table = a_table(a_process(10), a_process(30, parent=1, group=30, session=10))
    assert tree(table, 10, 5) == {10, 30}


def test_what_is_left_of_a_dead_fork_is_found_by_its_group() -> None:
    assert tree(a_table(a_process(30, parent=1, group=10, session=99)), 10, 5) == {30}


def test_a_process_that_got_the_forks_pid_later_is_left_alone() -> None:
    table = a_table(a_process(10, started=9), a_process(11, parent=10))
    assert tree(table, 10, 5) == set()


def test_children_of_a_child_that_left_the_session_are_found() -> None:
    table = a_table(a_process(10), a_process(11, parent=10), a_process(12, parent=11, group=12, session=12))
    assert tree(table, 10, 5) == {10, 11, 12}


def test_descendants_exclude_the_roots() -> None:
    table = a_table(a_process(10), a_process(11, parent=10), a_process(12, parent=11))
    assert descendants(table, {10, 11}) == {12}


def test_this_process_is_in_the_table() -> None:
    assert process_table()[os.getpid()].parent == os.getppid()


def test_no_process_is_found_for_a_pid_that_nobody_has() -> None:
    assert read_process(2**22 + 1) is None


def test_nothing_belongs_to_a_marker_that_nobody_carries() -> None:
    assert members(0, 0, "nobody-carries-this") == set()


def test_a_fork_that_is_gone_is_proven_gone_at_once() -> None:
    assert end_fork(2**22 + 1, 1, "nobody-carries-this", timeout_s=0.0)
