"""constraints.txt holds exactly what the extra ``dev`` brings, at the versions that these tests run with."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
PINNED = {str(canonicalize_name(name)): version for name, _, version in (line.partition("==") for line in LINES)}


def brought_by(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
    """Every distribution that ``name`` with its extras needs on this machine, itself included."""
    key = (str(canonicalize_name(name)), extras)
    if key in seen:
        return set()
    seen.add(key)
    found = {key[0]}
    for line in metadata.requires(name) or []:
        requirement = Requirement(line)
        markers = [requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in {*extras, ""}]
        if any(markers):
            found |= brought_by(requirement.name, frozenset(requirement.extras), seen)
    return found


NEEDED = brought_by("hadare", frozenset({"dev"}), set()) - {"hadare"}


def test_everything_that_is_installed_for_development_is_pinned() -> None:
    assert not NEEDED - set(PINNED)


def test_what_is_installed_has_the_pinned_version() -> None:
    installed = {name: metadata.version(name).partition("+")[0] for name in NEEDED & set(PINNED)}
    assert {name: version for name, version in installed.items() if PINNED[name] != version} == {}


def test_a_pin_is_one_version_without_a_local_build() -> None:
    assert not [line for line in LINES if not re.fullmatch(r"[\w.-]+==[\w.]+", line)]
