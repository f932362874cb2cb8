import os
import socket
from pathlib import Path

import pytest

from hadare.local.directory import LocalCluster, free_port, held, holder, listening, remember, remembered
from hadare.local.spec import default_cluster
from hadare.model.errors import Rejected


def test_what_is_remembered_comes_back_equal(tmp_path: Path) -> None:
    cluster = LocalCluster(port=4242, spec=default_cluster(), policy="hadar", round_s=5.0)
    remember(tmp_path, cluster)
    assert remembered(tmp_path) == cluster


def test_an_empty_directory_remembers_nothing(tmp_path: Path) -> None:
    assert remembered(tmp_path) is None


def test_a_damaged_file_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"port": "x"}')
    with pytest.raises(Rejected, match=r"cluster\.json is damaged"):
        remembered(tmp_path)


def test_a_directory_has_one_supervisor_and_the_second_hears_of_the_first(tmp_path: Path) -> None:
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(Rejected, match=f"already running .*process {os.getpid()}"), held(tmp_path):
            pass


def test_after_its_supervisor_has_ended_nobody_holds_the_directory(tmp_path: Path) -> None:
    with held(tmp_path):
        pass
    assert holder(tmp_path) is None
    with held(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_a_free_port_is_not_listened_on_and_a_taken_one_is() -> None:
    port = free_port()
    assert not listening(port)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert listening(port)
