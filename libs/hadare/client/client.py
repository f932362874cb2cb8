"""The Python client of the message API. Every question is repeated safely while the cluster cannot be reached."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from hadare.client import weights_file
from hadare.client.following import Follower
from hadare.machines.belongings import SENT_CODE, SENT_WEIGHTS
from hadare.model.errors import Rejected, Unavailable
from hadare.model.events import StoredEvent
from hadare.model.jobs import JobSpec, JobState
from hadare.runtime import telemetry
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Backplane
from hadare.runtime.fsspec_objects import FsspecObjects
from hadare.runtime.nats_connection import NatsConfig, connect_nats
from hadare.wire import api, api_cluster, bundles, codec
from hadare.wire.subjects import CODE, WEIGHTS, Endpoint

Q = TypeVar("Q")
A = TypeVar("A")


async def connect(
    url: str = "nats://127.0.0.1:4222",
    prefix: str = "hadare",
    *,
    seed_file: Path | None = None,
    tls_ca: Path | None = None,
    timeout_s: float = 10.0,
) -> HadareClient:
    """A client of the cluster behind ``url``. Raises ``Unavailable`` if no server answers in time."""
    config = NatsConfig(url=url, prefix=prefix, name="client", seed_file=seed_file, tls_ca=tls_ca, declare=False)
    return HadareClient(await connect_nats(config, timeout_s))


class HadareClient:
    """Asks the gateway. A job is named by its ``job_id`` or its name.

    Errors: ``Rejected`` (its ``code`` says why: 400, 404, 409, 413), ``Unavailable`` once ``patience_s`` is over.
    """

    def __init__(self, backplane: Backplane, *, timeout_s: float = 10.0, patience_s: float = 30.0) -> None:
        self._backplane = backplane
        self._bus = backplane.bus
        self._timeout_s = timeout_s
        self._patience_s = patience_s

    async def __aenter__(self) -> HadareClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._backplane.close()

    # Jobs

    async def submit(self, spec: JobSpec | Mapping[str, Any], request_id: str | None = None) -> api.Submitted:
        """Submits a job once, however often the request has to be repeated."""
        plain = codec.to_plain(spec) if isinstance(spec, JobSpec) else dict(spec)
        request = api.Submit(spec=plain, request_id=request_id or secrets.token_hex(16))
        with telemetry.span("submit job", attributes={"hadare.request_id": request.request_id or ""}):
            return await self.ask(api.SUBMIT, request)

    async def get(self, job: str) -> api.JobStatus:
        return await self.ask(api.GET, api.JobRef(job_id=job))

    async def list(self, state: JobState | None = None, page: int = 100) -> AsyncIterator[api.JobStatus]:
        """All jobs (or those in one state), in the order of submission."""
        cursor = ""
        while True:
            answer = await self.ask(api.LIST, api.ListJobs(state=state, limit=page, cursor=cursor))
            for job in answer.jobs:
                yield job
            cursor = answer.cursor
            if not cursor:
                return

    async def cancel(self, job: str) -> api.JobStatus:
        return await self.ask(api.CANCEL, api.JobRef(job_id=job))

    async def pause(self, job: str) -> api.JobStatus:
        return await self.ask(api.PAUSE, api.JobRef(job_id=job))

    async def resume(self, job: str) -> api.JobStatus:
        return await self.ask(api.RESUME, api.JobRef(job_id=job))

    async def delete(self, job: str) -> api.Deleted:
        """Removes an ended job and its weights."""
        known = await self.get(job)
        try:
            return await self.ask(api.DELETE, api.JobRef(job_id=known.job_id))
        except Rejected as gone:
            if gone.code != 404:
                raise
        # It was there a moment ago: the answer to an earlier attempt was lost.
        return api.Deleted(job_id=known.job_id, name=known.name)

    async def watch(self, job: str, from_seq: int = 0) -> AsyncIterator[api.JobStatus | StoredEvent]:
        """The job's status, then every event after ``from_seq`` without a gap; ends when the job has ended."""
        async for news in self._follower().watch(job, from_seq):
            yield news

    async def wait(
        self, job: str, *, timeout_s: float | None = None, on_status: Callable[[api.JobStatus], None] | None = None
    ) -> api.JobStatus:
        """Waits until the job has ended; ``on_status`` hears how it does meanwhile. Raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s):
            return await self._follower().wait(job, on_status)

    async def logs(
        self, job: str, *, follow: bool = False, from_seq: int = 0, round_no: int | None = None, fork: int | None = None
    ) -> AsyncIterator[api.LogEntry]:
        """What the job's forks printed, oldest first. ``follow``: goes on until the job has ended."""
        question = api.ReadLogs(job_id=job, from_seq=from_seq, round=round_no, fork=fork)
        async for line in self._follower().logs(question, follow=follow):
            yield line

    async def history(self, job: str) -> AsyncIterator[api.HistoryPoint]:
        """The versions that were made and evaluated, oldest first, as far back as events are kept."""
        question = api.ReadHistory(job_id=job)
        while True:
            answer = await self.ask(api.HISTORY, question)
            for point in answer.points:
                yield point
            if not answer.more:
                return
            question = api.ReadHistory(job_id=answer.job_id, from_seq=answer.last_seq)

    # What a job brings along

    async def send_code(self, folder: Path, but: Path | None = None) -> str:
        """Sends a folder as a code bundle, unless the cluster has it; what a spec's ``code`` is then.

        ``but``: a file in it that is not sent, such as a job file, which may hold secrets. Raises ``Rejected``
        (400, 413) naming what cannot be sent.
        """
        bundle = await asyncio.to_thread(bundles.pack, folder, but)
        with tempfile.TemporaryDirectory(prefix="hadare-") as scratch:
            path = Path(scratch) / "bundle.tar"
            await asyncio.to_thread(path.write_bytes, bundle.data)
            await self._backplane.objects(CODE).put(path, SENT_CODE)
        return bundle.sha256

    async def send_weights(self, path: Path) -> str:
        """Sends a safetensors file, unless the cluster has it; what a spec's ``start_from`` is then.

        Raises ``Rejected`` (400) if it can be none by its header.
        """
        if fault := await asyncio.to_thread(weights_file.fault_of, path):
            raise Rejected(400, f"start_from: {path} is no weights file: {fault}")
        sent = await self._backplane.objects(CODE).put(path, SENT_WEIGHTS)
        return f"sha256:{sent.sha256}"

    # Weights

    async def weights_list(self, job: str) -> AsyncIterator[api.VersionInfo]:
        """The versions of a job's model, newest first."""
        cursor = ""
        while True:
            answer = await self.ask(api.LIST_WEIGHTS, api.ListWeights(job_id=job, cursor=cursor))
            for version in answer.versions:
                yield version
            cursor = answer.cursor
            if not cursor:
                return

    async def weights_get(self, job: str, path: Path, version: int | None = None) -> api.WeightsRef:
        """Downloads a version (default: the newest) as a safetensors file; its hash is checked."""
        for attempt in range(3):
            found = await self.ask(api.GET_WEIGHTS, api.GetWeights(job_id=job, version=version))
            try:
                store = FsspecObjects(found.url) if found.url else self._backplane.objects(WEIGHTS)
                await store.get(found.weights, path)
            except Rejected as gone:
                # A newer version may have replaced the newest one since it was named.
                if gone.code != 404 or version is not None or attempt == 2:
                    raise
            else:
                return found
        raise Unavailable(f"the newest weights of '{job}' change faster than they can be fetched")

    # The cluster

    async def nodes(self) -> tuple[api_cluster.NodeInfo, ...]:
        """All nodes, by name."""
        found: tuple[api_cluster.NodeInfo, ...] = ()
        cursor = ""
        while True:
            answer = await self.ask(api_cluster.LIST_NODES, api_cluster.Page(cursor=cursor))
            found += answer.nodes
            cursor = answer.cursor
            if not cursor:
                return found

    async def drain(self, node: str, reason: str = "") -> api_cluster.NodeInfo:
        return await self.ask(api_cluster.DRAIN, api_cluster.NodeRef(node=node, reason=reason))

    async def undrain(self, node: str, reason: str = "") -> api_cluster.NodeInfo:
        return await self.ask(api_cluster.UNDRAIN, api_cluster.NodeRef(node=node, reason=reason))

    async def forget(self, node: str, reason: str = "") -> api_cluster.NodeInfo:
        """Takes a lost node off the list. Raises ``Rejected`` (404 unknown, 409 not lost)."""
        return await self.ask(api_cluster.FORGET, api_cluster.NodeRef(node=node, reason=reason))

    async def prices(self) -> api_cluster.Prices:
        """The newest price curves. Pages of one book: a change in between starts anew."""
        while True:
            first = await self.ask(api_cluster.GET_PRICES, api_cluster.Page())
            cells, cursor, same = first.cells, first.cursor, True
            while cursor and same:
                answer = await self.ask(api_cluster.GET_PRICES, api_cluster.Page(cursor=cursor))
                cells, cursor, same = cells + answer.cells, answer.cursor, answer.round == first.round
            if same:
                return api_cluster.Prices(round=first.round, cells=cells)

    async def rounds(self, limit: int = 20) -> api_cluster.RoundList:
        """The newest rounds, in numbers."""
        return await self.ask(api_cluster.LIST_ROUNDS, api_cluster.Page(limit=limit))

    async def round(self, number: int | None = None) -> api_cluster.RoundView:
        """A round's whole plan (default: the newest round's)."""
        first = await self.ask(api_cluster.GET_ROUND, api_cluster.GetRound(round=number))
        rest = [api_cluster.GetRound(round=first.round, page=page) for page in range(1, first.pages)]
        pages = [first, *[await self.ask(api_cluster.GET_ROUND, question) for question in rest]]
        return api_cluster.RoundView(
            round=first.round,
            epoch=first.epoch,
            page=0,
            pages=1,
            state=first.state,
            policy=first.policy,
            forks=tuple(fork for page in pages for fork in page.forks),
            decisions=tuple(decision for page in pages for decision in page.decisions),
        )

    async def status(self) -> api_cluster.ClusterStatus:
        return await self.ask(api_cluster.STATUS, api_cluster.Empty())

    async def ask(self, endpoint: Endpoint[Q, A], question: Q) -> A:
        """One question. All questions of this API can be repeated: asking twice is as good as asking once."""
        return await retrying(
            lambda: self._bus.ask(endpoint, question, timeout_s=self._timeout_s),
            what=endpoint.template,
            patience_s=self._patience_s,
        )

    def _follower(self) -> Follower:
        return Follower(self._bus, self.ask)
