"""Which objects of the weights store nobody needs any more: what an agent or a tracker left that died before it told.

Rules of this file: an object goes only if it was of no use in two sweeps in a row, and what is not understood stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from hadare.machines.job import Job


class Sweep:
    """Asks for a list every ``every_s`` seconds and judges it."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._next_at: float | None = None
        self._suspects: frozenset[str] = frozenset()

    def due(self, at: float) -> bool:
        """True once per interval; the first time one interval after the start."""
        if self._next_at is None:
            self._next_at = at + self._every_s
        if at < self._next_at:
            return False
        self._next_at = at + self._every_s
        return True

    def useless(self, names: Iterable[str], jobs: Mapping[str, Job]) -> tuple[str, ...]:
        """Those to be deleted now."""
        found = frozenset(name for name in names if _is_useless(name, jobs))
        again = found & self._suspects
        self._suspects = found - again
        return tuple(sorted(again))


def unread(names: Iterable[str], jobs: Mapping[str, Job]) -> tuple[str, ...]:
    """The manifests (``job.version``) of ended jobs without which nobody knows which form of a kept version is its own.

    They are not read at a start: there may be thousands, and hardly any of them left a second form.
    """
    forms: Counter[tuple[str, int]] = Counter()
    for name in names:
        job_id, rest, number = _parts(name)
        if number.isdecimal() and (rest.startswith("v") or rest.endswith(".init")):
            forms[job_id, int(number) if rest.startswith("v") else 0] += 1
    return tuple(
        f"{job_id}.{version}"
        for (job_id, version), count in sorted(forms.items())
        if count > 1 and (job := jobs.get(job_id)) is not None and job.book.progress.state.ended
        if version < job.book.progress.version and version not in job.book.manifests
    )


def _parts(name: str) -> tuple[str, str, str]:
    """The job, the rest of the label, and the round or version in it."""
    label, _, _ = name.rpartition(".")
    job_id, _, rest = label.partition(".")
    return job_id, rest, rest.partition(".")[0].removeprefix("v")


def _is_useless(name: str, jobs: Mapping[str, Job]) -> bool:
    """``name`` is ``<label>.<sha256>``: the label a version's (``job.v3``) or that of a lease (``LeaseKey``)."""
    job_id, rest, number = _parts(name)
    if not number.isdecimal():
        return False
    job = jobs.get(job_id)
    if job is None:
        return True
    if name in job.book.needed_objects():
        return False
    if rest.startswith("v") or rest.endswith(".init"):
        return _is_useless_version(job, int(number) if rest.startswith("v") else 0)
    progress = job.book.progress
    return progress.state.ended or int(number) <= progress.closed_round


def _is_useless_version(job: Job, version: int) -> bool:
    """A version that was made and never published, or another form of one that was; or an old one.

    Of a job that had ended when the tracker started, the manifests are not known before ``unread`` asks for them: till
    then its kept versions all stay, but of the newest, whose weights the job's progress names, only those.
    """
    book = job.book
    if version > book.progress.version:
        return book.progress.state.ended
    oldest_kept = book.progress.version - book.settings.keep_versions + 1
    return version < oldest_kept or version in book.manifests or version == book.progress.version
