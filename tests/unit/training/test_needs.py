"""What a job asks of a place, and the words for what is missing there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hadare
from hadare.model.errors import Unavailable
from hadare.training.needs import Installed, Unmet, check_data, check_requirements, installed, unmet_of

HERE = Installed(
    versions={"einops": "0.8.1", "torch": "2.6.0+cu124", "odd": "not a version", "new": "2.0rc1"},
    environment={"python_version": "3.11", "sys_platform": "linux"},
)


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        ("einops", []),
        ("einops>=0.8,<1", []),
        ("einops[x]==0.8.*", []),
        ("torch>=2.6", []),
        ("new>=2.0rc0", []),
        ("einops>=0.9", ["einops>=0.9 (installed: 0.8.1)"]),
        ("missing>=1", ["missing>=1 (not installed)"]),
        ("odd>=1", ["odd>=1 (installed: not a version)"]),
        ("missing; sys_platform == 'win32'", []),
        ("missing; python_version >= '3.11'", ["missing; python_version >= '3.11' (not installed)"]),
    ],
)
def test_a_requirement_is_met_or_named_with_what_was_found(requirement: str, unmet: list[str]) -> None:
    assert list(unmet_of([requirement], HERE)) == unmet


def test_this_interpreter_says_what_it_has() -> None:
    found = installed(["hadare", "no-such-thing"])
    assert found.versions == {"hadare": hadare.__version__}
    assert found.environment["sys_platform"] == sys.platform


def test_another_interpreter_says_what_it_has() -> None:
    """The one that made this environment has none of its packages."""
    found = installed(["hadare"], str(Path(sys.executable).resolve()))
    assert found.versions == {}
    assert found.environment["python_version"] == ".".join(map(str, sys.version_info[:2]))


def test_an_interpreter_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="/no/such/python"):
        installed(["torch"], "/no/such/python")


def test_unmet_requirements_are_a_fault_of_the_node() -> None:
    with pytest.raises(Unmet, match="no-such-thing>=1") as refusal:
        check_requirements(["pytest", "no-such-thing>=1"])
    assert (refusal.value.failure.kind, refusal.value.failure.node_specific) == ("import", True)


def test_data_that_is_here_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    names = [str(tmp_path / "set"), f"file://{tmp_path}/set", "fast", "set=imagenet"]
    check_data(names, {"fast": "yes", "set": "imagenet"})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/no/such/folder", "no such path"),
        ("file:///no/such/folder", "no such path"),
        ("memory://no/such/folder", "nothing is there"),
        ("nosuchprotocol://x", "nosuchprotocol"),
        ("slow", "no such label"),
        ("set=other", "the node has set=imagenet"),
    ],
)
def test_data_that_is_not_here_is_a_fault_of_the_node_with_its_reason(name: str, why: str) -> None:
    with pytest.raises(Unmet, match=why) as refusal:
        check_data(["/", name], {"set": "imagenet"})
    failure = refusal.value.failure
    assert (failure.kind, failure.node_specific) == ("missing_data", True)
    assert f"{name} (" in failure.message
    assert "/ (" not in failure.message.removeprefix(f"data is missing here: {name}")
