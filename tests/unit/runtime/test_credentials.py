"""The users of a cluster: seeds are secret, are kept, and match what the server is told."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from hadare.model.errors import Broken, Rejected
from hadare.runtime.credentials import Owner, main, write
from hadare.runtime.seeds import public_key


def listed(directory: Path) -> list[dict[str, object]]:
    text = (directory / "nats/users.conf").read_text()
    found: list[dict[str, object]] = json.loads(text.partition("authorization: ")[2])["users"]
    return found


def test_every_service_and_node_gets_a_seed_that_the_server_knows(tmp_path: Path) -> None:
    made = write(tmp_path, "hadare", ("n1",), Owner())
    assert made == ["gateway", "pricing", "allocator", "jobtracker", "client", "n1"]
    assert [user["nkey"] for user in listed(tmp_path)] == [public_key(tmp_path / name / "user.nk") for name in made]


def test_seeds_that_exist_are_kept_when_a_node_is_added(tmp_path: Path) -> None:
    write(tmp_path, "hadare", ("n1",), Owner())
    before = public_key(tmp_path / "n1/user.nk")
    assert write(tmp_path, "hadare", ("n1", "n2"), Owner()) == ["n2"]
    assert public_key(tmp_path / "n1/user.nk") == before
    assert len(listed(tmp_path)) == 7


def test_only_the_owner_can_read_a_seed(tmp_path: Path) -> None:
    write(tmp_path, "hadare", (), Owner())
    for path in (tmp_path / "gateway/user.nk", tmp_path / "nats/users.conf"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert stat.S_IMODE((tmp_path / "gateway").stat().st_mode) == 0o700


def test_the_servers_list_holds_no_seed(tmp_path: Path) -> None:
    write(tmp_path, "hadare", (), Owner())
    seed = (tmp_path / "gateway/user.nk").read_text().strip()
    assert seed.startswith("SU")
    assert seed not in (tmp_path / "nats/users.conf").read_text()


@pytest.mark.parametrize("node", ["gateway", "nats", "a.b", "*"])
def test_a_node_whose_name_would_widen_its_rights_is_refused(tmp_path: Path, node: str) -> None:
    with pytest.raises(Rejected):
        write(tmp_path, "hadare", (node,), Owner())


def test_a_damaged_seed_is_reported_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, "hadare", (), Owner())
    (tmp_path / "pricing/user.nk").chmod(0o600)
    (tmp_path / "pricing/user.nk").write_text("no seed")
    with pytest.raises(Broken, match=r"pricing/user\.nk"):
        write(tmp_path, "hadare", (), Owner())


def test_the_command_says_which_users_are_new(tmp_path: Path) -> None:
    first = CliRunner().invoke(main, ["--node", "n1", str(tmp_path)])
    again = CliRunner().invoke(main, ["--node", "n1", str(tmp_path)])
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "n1" in first.stderr
    assert "none" in again.stderr
