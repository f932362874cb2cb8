"""What a job needs of the place where it trains, and what of it is missing there: requirements and data. No torch."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from packaging.requirements import Requirement
from packaging.version import InvalidVersion

from hadare.model.errors import HadareError, Unavailable, text_of
from hadare.model.leases import Failure
from hadare.training.installed import describe

_ASK_S = 30.0


class Unmet(HadareError):
    """The place cannot run the job; ``failure`` says why in the words of a lease's result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """``versions`` of what was asked for and is there; ``environment`` for PEP 508's markers."""

    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def installed(names: Sequence[str], python: str = "") -> Installed:
    """What this interpreter, or the one at ``python``, has of ``names``. Blocks. Raises ``Unavailable``."""
    if python in ("", sys.executable):
        return msgspec.convert(describe(list(names)), Installed)
    source = Path(describe.__code__.co_filename).read_text(encoding="utf-8")
    try:
        told = subprocess.run(
            [python, "-c", source, *names], capture_output=True, check=True, timeout=_ASK_S, stdin=subprocess.DEVNULL
        )
        return msgspec.convert(json.loads(told.stdout), Installed)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise Unavailable(f"{python} does not say what it has installed: {error}") from error


def check_requirements(requirements: Sequence[str], python: str = "") -> None:
    """Raises ``Unmet`` (kind ``import``) naming each requirement that is not met and the version found."""
    if not requirements:
        return
    found = installed([Requirement(text).name for text in requirements], python)
    if unmet := list(unmet_of(requirements, found)):
        message = f"requirements are not met here: {'; '.join(unmet)}"[:4096]
        raise Unmet(Failure(kind="import", message=message, node_specific=True))


def unmet_of(requirements: Sequence[str], found: Installed) -> Iterator[str]:
    """A line for each that is not met. A pre-release counts as its version; what extras need is not looked at."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({**found.environment, "extra": ""}):
            continue
        version = found.versions.get(requirement.name)
        if version is None:
            yield f"{text} (not installed)"
        elif not _fits(requirement, version):
            yield f"{text} (installed: {version})"


def check_data(data: Sequence[str], labels: Mapping[str, str]) -> None:
    """Raises ``Unmet`` (kind ``missing_data``) naming each path, URL or label that is not here. May block."""
    if missing := [f"{name} ({why})" for name in data if (why := _why_missing(name, labels))]:
        message = f"data is missing here: {'; '.join(missing)}"[:4096]
        raise Unmet(Failure(kind="missing_data", message=message, node_specific=True))


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _why_missing(name: str, labels: Mapping[str, str]) -> str:
    if name.startswith(("/", "file:///")):
        return "" if Path(name.removeprefix("file://")).exists() else "no such path"
    if "://" in name:
        return _why_unreachable(name)
    label, equals, value = name.partition("=")
    if label not in labels:
        return "the node has no such label"
    return "" if not equals or labels[label] == value else f"the node has {label}={labels[label]}"


def _why_unreachable(url: str) -> str:
    if importlib.util.find_spec("fsspec") is None:
        return "reading URLs needs fsspec: pip install 'hadare[fsspec]'"
    from fsspec.core import url_to_fs

    try:
        files, path = url_to_fs(url)
        return "" if files.exists(path) else "nothing is there"
    except Exception as error:  # noqa: BLE001 - drivers raise what they like; it is the reason
        return f"{type(error).__name__}: {text_of(error)}"[:300]
