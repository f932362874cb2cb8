"""What the tracker tells nodes of a version that they trained for, so that they have it when a lease asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from hadare.model.fields import Count, JobId, Text
from hadare.model.jobs import ObjectRef


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionComing:
    """Told to the nodes that trained for a version, while it is made: they may hear it while it is stored.

    ``label``: of the object that it will be; ``bytes``: about how large. May be lost or late, and promises nothing.
    """

    job_id: JobId
    label: Text
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMade:
    """Told to the nodes that trained for a version, before it is decided who trains from it: they fetch it meanwhile.

    Says nothing of whether the version was published, and may be lost or late. ``changes``: an object that makes the
    version of its ``base`` (a hash), where that is much smaller; it stays until the next version is made.
    """

    job_id: JobId
    weights: ObjectRef
    base: str = ""
    changes: ObjectRef | None = None
