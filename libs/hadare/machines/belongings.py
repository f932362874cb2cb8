"""What a job brings along or asks of a place: code, requirements, data and first weights, as a user may write them.

Says what is wrong with them and how they are named; whether a place has what is asked for is for that place to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from hadare.machines.validation import Fault, join

SENT_CODE = "code"
SENT_WEIGHTS = "weights"
"""Labels of the objects that users send along."""

_HASH = re.compile(r"^sha256:([0-9a-f]{64})\Z")
_VERSION_OF = re.compile(r"^([a-z0-9][a-z0-9-]{0,62})(?:@(\d{1,12}))?\Z")
_DATA = re.compile(r"^(/.*|[A-Za-z][A-Za-z0-9+.-]*://.+|[A-Za-z0-9][A-Za-z0-9_./-]{0,62}(=[A-Za-z0-9_./-]{1,63})?)\Z")


@dataclass(frozen=True, slots=True)
class SentWeights:
    """``start_from: sha256:<hash>``: a weights file that was sent along."""

    sha256: str

    @property
    def object(self) -> str:
        return f"{SENT_WEIGHTS}.{self.sha256}"


@dataclass(frozen=True, slots=True)
class VersionOf:
    """``start_from: job@version``; ``version`` None: the newest when the job is submitted."""

    job: str
    version: int | None


def start_of(text: str) -> SentWeights | VersionOf | None:
    """What ``start_from`` names; None if it cannot be understood."""
    if sent := _HASH.match(text):
        return SentWeights(sent[1])
    if named := _VERSION_OF.match(text):
        return VersionOf(named[1], None if named[2] is None else int(named[2]))
    return None


def code_object(sha256: str) -> str:
    """The object that holds a bundle."""
    return f"{SENT_CODE}.{sha256}"


def hash_of_object(name: str) -> str:
    """The hash in the name of something that was sent along."""
    return name.rpartition(".")[2]


def faults_of_belongings(raw: Mapping[Any, Any], path: str) -> Iterator[Fault]:
    """What types cannot say of ``requirements``, ``data``, ``start_from`` and ``start_object``."""
    if raw.get("start_object") is not None:
        yield Fault(join(path, "start_object"), "is filled in by the cluster; name the weights in 'start_from'")
    for index, text in enumerate(_texts(raw.get("requirements"))):
        if fault := fault_of_requirement(text):
            yield Fault(f"{join(path, 'requirements')}[{index}]", fault)
    for index, text in enumerate(_texts(raw.get("data"))):
        if not _DATA.match(text):
            yield Fault(
                f"{join(path, 'data')}[{index}]",
                f"expected an absolute path, a URL, or a label of a node (NAME or NAME=VALUE); got {text[:64]!r}",
            )
    start = raw.get("start_from")
    if isinstance(start, str) and start and start_of(start) is None:
        yield Fault(join(path, "start_from"), f"expected JOB, JOB@VERSION or sha256:<hash>; got {start[:80]!r}")


def fault_of_requirement(text: str) -> str:
    """Why a line is not a requirement that can be checked; '' if it is."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        return f"is not a requirement (PEP 508): {str(error).splitlines()[0]}"
    return "a URL cannot be checked; give a version" if requirement.url else ""


def _texts(value: object) -> list[str]:
    return [text if isinstance(text, str) else "x" for text in value] if isinstance(value, list | tuple) else []
