"""What users send along, code bundles and first weights: is it there, what does a spec mean by it, when may it go."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog

from hadare.machines.belongings import SentWeights, VersionOf, code_object, hash_of_object, start_of
from hadare.machines.validation import Fault, refuse
from hadare.model.errors import Rejected
from hadare.model.jobs import JobSpec, ObjectRef
from hadare.runtime.bus import Backplane
from hadare.wire import api, bundles, subjects
from hadare_gateway.weights import Weights

log = structlog.get_logger("hadare.gateway")


class Sent:
    """The object store ``code``. Users put things there by their content's hash; the gateway alone deletes."""

    def __init__(self, backplane: Backplane, weights: Weights, keep_s: float) -> None:
        """``keep_s``: how long something stays that no job names."""
        self._objects = backplane.objects(subjects.CODE)
        self._weights = weights
        self._keep_s = keep_s
        self._unused_since: dict[str, float] = {}

    async def resolve(self, spec: JobSpec) -> ObjectRef | None:
        """The weights that the job starts from, if it names any. Raises ``Rejected`` (400) if something is missing."""
        faults: list[Fault] = []
        start: ObjectRef | None = None
        try:
            start = await self._start(spec)
        except Rejected as refusal:
            faults.append(Fault("spec.start_from", refusal.message))
        if spec.code is not None and (fault := await self._fault_of_code(spec.code)):
            faults.append(Fault("spec.code", fault))
        refuse(faults, "the request")
        return start

    async def sweep(self, named: Collection[str]) -> None:
        """Deletes what no job (``named``: hashes) has named for ``keep_s``, and what uploads that died have left."""
        now = asyncio.get_running_loop().time()
        unused = {name for name in await self._objects.names() if hash_of_object(name) not in named}
        self._unused_since = {name: self._unused_since.get(name, now) for name in sorted(unused)}
        for name, since in list(self._unused_since.items()):
            if now - since >= self._keep_s:
                await self._objects.delete(name)
                del self._unused_since[name]
                log.info("deleted what no job names", object=name)
        await self._objects.collect_garbage(self._keep_s)

    async def _start(self, spec: JobSpec) -> ObjectRef | None:
        wanted = start_of(spec.start_from) if spec.start_from else None
        if isinstance(wanted, SentWeights):
            found = await self._objects.find(wanted.object)
            if found is None:
                raise Rejected(400, "these weights have not been sent, or no job has named them for too long")
            return found
        if isinstance(wanted, VersionOf):
            version = await self._weights.get(api.GetWeights(job_id=wanted.job, version=wanted.version))
            return version.weights
        return None

    async def _fault_of_code(self, sha256: str) -> str:
        found = await self._objects.find(code_object(sha256))
        if found is None:
            return "this bundle has not been sent, or no job has named it for too long"
        return f"a bundle of {found.bytes} bytes is over {bundles.MAX_BYTES}" if found.bytes > bundles.MAX_BYTES else ""


def hashes_named(spec: JobSpec) -> set[str]:
    """What of the store a job still needs."""
    start = start_of(spec.start_from) if spec.start_from else None
    return {name for name in (spec.code, start.sha256 if isinstance(start, SentWeights) else None) if name}
