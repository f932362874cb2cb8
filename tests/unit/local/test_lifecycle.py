import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from builders_local import a_cluster_status
from hadare.local import lifecycle, processes
from hadare.local.directory import LocalCluster, held, remembered
from hadare.local.spec import default_cluster, parse_cluster
from hadare.model.devices import NodeState
from hadare.model.errors import Broken, Rejected, Unavailable
from hadare.wire.api_cluster import ClusterStatus, ServiceSeen


def test_a_second_start_keeps_port_and_settings(tmp_path: Path) -> None:
    first = lifecycle.prepare(tmp_path, parse_cluster("1x1:T4"), round_s=7.0, policy="hadar")
    assert lifecycle.prepare(tmp_path) == first
    assert remembered(tmp_path) == first


def test_what_is_given_replaces_what_was_remembered_and_nothing_else(tmp_path: Path) -> None:
    first = lifecycle.prepare(tmp_path, parse_cluster("1x1:T4"), round_s=7.0)
    second = lifecycle.prepare(tmp_path, round_s=9.0)
    assert (second.spec, second.port, second.round_s) == (first.spec, first.port, 9.0)


def test_a_new_directory_gets_the_default_cluster(tmp_path: Path) -> None:
    assert lifecycle.prepare(tmp_path).spec == default_cluster()


def test_a_port_that_another_program_took_is_given_up(tmp_path: Path) -> None:
    first = lifecycle.prepare(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", first.port))
        other.listen()
        assert lifecycle.prepare(tmp_path).port != first.port


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(Rejected, match="already running"):
        lifecycle.prepare(tmp_path)


def test_a_policy_that_does_not_exist_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="unknown policy 'hadra'"):
        lifecycle.prepare(tmp_path, policy="hadra")
    assert remembered(tmp_path) is None


def test_stopping_what_does_not_run_is_no_error_and_says_so(tmp_path: Path) -> None:
    lifecycle.prepare(tmp_path)
    assert lifecycle.stop(tmp_path) is False


def test_stopping_ends_what_a_crash_left_behind(tmp_path: Path) -> None:
    program = processes.Program(name="stray", command=("sleep", "1000"))
    stray = processes.start(program, tmp_path)
    assert lifecycle.stop(tmp_path) is True
    assert processes.marked(tmp_path) == []
    stray.wait()


class Gateway:
    """Answers as it is told, the last answer for ever."""

    def __init__(self, *answers: ClusterStatus | Exception) -> None:
        self._answers = list(answers)

    async def __call__(self) -> ClusterStatus:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


CLUSTER = LocalCluster(port=4222, spec=parse_cluster("2x1:T4"))


def yes() -> bool:
    return True


async def test_a_cluster_is_ready_when_all_services_answer_and_every_node_is_ready() -> None:
    partly = a_cluster_status({"t4-1": NodeState.READY})
    whole = a_cluster_status({"t4-1": NodeState.READY, "t4-2": NodeState.READY})
    answers = Gateway(Unavailable("nobody"), partly, whole)
    assert await lifecycle.until_ready(CLUSTER, answers, yes) == whole


async def test_a_cluster_is_ready_though_nodes_are_drained_or_in_quarantine() -> None:
    """Only a running cluster can take them back: `hadare undrain` needs one."""
    states = {"t4-1": NodeState.DRAINING, "t4-2": NodeState.QUARANTINED}
    status = replace(
        a_cluster_status(states, problems=("no node is ready",)), services=(ServiceSeen(name="gateway", instances=1),)
    )
    assert await lifecycle.until_ready(CLUSTER, Gateway(status), yes) == status


async def test_a_cluster_whose_services_do_not_all_answer_is_not_ready() -> None:
    states = {"t4-1": NodeState.READY, "t4-2": NodeState.READY}
    status = a_cluster_status(states, problems=("gateway does not answer",))
    silent = replace(status, services=(ServiceSeen(name="gateway", instances=0, ok=False),))
    with pytest.raises(Broken, match="gateway does not answer"):
        await lifecycle.until_ready(CLUSTER, Gateway(silent), yes, limit_s=0.01)


async def test_what_is_missing_is_named_when_time_is_up() -> None:
    partly = a_cluster_status({"t4-1": NodeState.READY, "t4-2": NodeState.SUSPECT}, problems=("no pricing",))
    with pytest.raises(Broken, match="no pricing; t4-2 is not ready"):
        await lifecycle.until_ready(CLUSTER, Gateway(partly), yes, limit_s=0.01)


async def test_a_supervisor_that_ended_is_not_waited_for() -> None:
    with pytest.raises(Broken, match="ended while it was starting"):
        await lifecycle.until_ready(CLUSTER, Gateway(Unavailable("nobody")), lambda: False)


async def test_nobody_waits_for_a_cluster_that_has_ended_while_it_was_starting() -> None:
    with pytest.raises(Broken, match="ended while it was starting"):
        await lifecycle.while_alive(asyncio.Event().wait(), lambda: False, every_s=0.001)


async def test_what_a_cluster_that_lives_answers_is_returned() -> None:
    assert await lifecycle.while_alive(asyncio.sleep(0, "ready"), lambda: True)
