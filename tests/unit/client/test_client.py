"""The client where the network is not kind: lost wake-ups, lost answers, weights that are replaced meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders_gateway import Others, a_client, a_gateway, a_spec
from hadare.client import HadareClient
from hadare.model.errors import Rejected, Unavailable
from hadare.model.events import Event
from hadare.model.jobs import JobState, ObjectRef
from hadare.runtime.memory import MemoryHub, Parcel
from hadare.runtime.virtual import run_virtually
from hadare.wire import api, codec, subjects


def in_a_cluster(hub: MemoryHub, act: Callable[[HadareClient, Others], Awaitable[None]]) -> None:
    """Runs ``act`` in virtual time against a gateway on ``hub``."""

    async def main() -> None:
        async with a_gateway(hub), a_client(hub) as client:
            await act(client, Others(hub))

    run_virtually(main())


async def tell(others: Others, job_id: str, what: str) -> None:
    await others.backplane.journal.append(Event(kind="job", id=job_id, what=what), f"{job_id}:{what}")


def without_events(parcel: Parcel) -> Sequence[float]:
    return () if ".event.v1." in parcel.subject else (0.0,)


def test_a_watch_misses_nothing_although_every_wake_up_is_lost() -> None:
    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        seen = []
        async for news in client.watch(job.job_id):
            if isinstance(news, api.JobStatus):
                continue
            seen.append(news.event.what)
            if news.event.what == "submitted":
                asyncio.get_running_loop().call_later(5.0, lambda: asyncio.ensure_future(end(others, job.job_id)))
        assert seen == ["submitted", "started", "completed"]

    async def end(others: Others, job_id: str) -> None:
        await tell(others, job_id, "started")
        await others.progress(job_id, JobState.COMPLETED)
        await tell(others, job_id, "completed")

    in_a_cluster(MemoryHub(without_events), act)


def test_a_watch_of_more_events_than_an_answer_holds_tells_each_once() -> None:
    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        for number in range(450):
            await tell(others, job.job_id, f"step-{number}")
        await tell(others, job.job_id, "completed")
        await others.progress(job.job_id, JobState.COMPLETED)
        told = [news async for news in client.watch(job.job_id)]
        sequences = [news.sequence for news in told if not isinstance(news, api.JobStatus)]
        assert sequences == list(range(1, 453))

    in_a_cluster(MemoryHub(), act)


def test_a_watch_waits_for_the_last_events_of_a_job_that_has_ended() -> None:
    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        await others.progress(job.job_id, JobState.COMPLETED)
        asyncio.get_running_loop().call_later(2.0, lambda: asyncio.ensure_future(tell(others, job.job_id, "completed")))
        told = [news.event.what async for news in client.watch(job.job_id) if not isinstance(news, api.JobStatus)]
        assert told[-1] == "completed"

    in_a_cluster(MemoryHub(), act)


def test_a_watch_ends_although_the_last_events_never_come() -> None:
    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        await others.progress(job.job_id, JobState.FAILED)
        assert len([news async for news in client.watch(job.job_id)]) == 2

    in_a_cluster(MemoryHub(), act)


def test_followed_logs_end_with_the_job_and_hold_what_it_printed_last() -> None:
    from hadare.model.events import LogLine

    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())

        async def end() -> None:
            line = LogLine(job_id=job.job_id, round=1, fork=0, node="n1", text="the last words")
            await others.backplane.journal.log(line)
            await others.progress(job.job_id, JobState.COMPLETED)

        asyncio.get_running_loop().call_later(3.0, lambda: asyncio.ensure_future(end()))
        assert [line.text async for line in client.logs(job.job_id, follow=True)] == ["the last words"]

    in_a_cluster(MemoryHub(), act)


class Losing:
    """A network that loses the answer to every first attempt: the request is handled, nobody hears of it."""

    def __init__(self, hub: MemoryHub, template: str) -> None:
        self.attempts = 0
        self._hub = hub
        self._template = template

    def install(self, client: HadareClient) -> None:
        bus: Any = client._bus
        real = bus.ask

        async def ask(endpoint: Any, question: Any, **options: Any) -> Any:
            answer = await real(endpoint, question, **options)
            if endpoint.template == self._template:
                self.attempts += 1
                if self.attempts == 1:
                    raise Unavailable("the answer was lost")
            return answer

        bus.ask = ask


def test_a_submission_whose_answer_is_lost_makes_one_job() -> None:
    hub = MemoryHub()

    async def act(client: HadareClient, _others: Others) -> None:
        losing = Losing(hub, api.SUBMIT.template)
        losing.install(client)
        job = await client.submit(a_spec())
        assert losing.attempts == 2
        assert [one.job_id async for one in client.list()] == [job.job_id]

    in_a_cluster(hub, act)


def test_a_deletion_whose_answer_is_lost_is_a_deletion() -> None:
    hub = MemoryHub()

    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        await others.progress(job.job_id, JobState.COMPLETED)
        losing = Losing(hub, api.DELETE.template)
        losing.install(client)
        assert (await client.delete(job.name)).job_id == job.job_id
        assert losing.attempts == 1

    in_a_cluster(hub, act)


def test_weights_that_are_replaced_while_they_are_fetched_are_asked_for_again(tmp_path: Path) -> None:
    hub = MemoryHub()

    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        source = tmp_path / "source"
        source.write_bytes(b"new")
        ref = await others.backplane.objects(subjects.WEIGHTS).put(source, "label")
        gone = ObjectRef(name="gone", sha256=ref.sha256, bytes=3)
        await others.version(job.job_id, 1, gone)
        await others.version(job.job_id, 2, ref)
        await others.progress(job.job_id, JobState.RUNNING, version=1)
        bus: Any = client._bus
        real = bus.ask

        async def ask(endpoint: Any, question: Any, **options: Any) -> Any:
            answer = await real(endpoint, question, **options)
            if endpoint.template == api.GET_WEIGHTS.template:
                await others.progress(job.job_id, JobState.RUNNING, version=2)
            return answer

        bus.ask = ask
        assert (await client.weights_get(job.job_id, tmp_path / "copy")).version == 2
        assert (tmp_path / "copy").read_bytes() == b"new"

    in_a_cluster(hub, act)


def test_a_version_that_was_asked_for_by_number_is_not_replaced_by_another(tmp_path: Path) -> None:
    async def act(client: HadareClient, others: Others) -> None:
        job = await client.submit(a_spec())
        await others.version(job.job_id, 1, ObjectRef(name="gone", sha256="0" * 64, bytes=3))
        await others.progress(job.job_id, JobState.RUNNING, version=1)
        with pytest.raises(Rejected):
            await client.weights_get(job.job_id, tmp_path / "copy", version=1)

    in_a_cluster(MemoryHub(), act)


def test_a_spec_can_be_submitted_as_an_object() -> None:
    from hadare.machines.admission import read_spec

    async def act(client: HadareClient, _others: Others) -> None:
        spec = read_spec(a_spec(config={"lr": 0.1}))
        assert codec.to_plain(spec)["config"] == {"lr": 0.1}
        assert (await client.submit(spec, "r")).job_id == (await client.submit(a_spec(config={"lr": 0.1}), "r")).job_id

    in_a_cluster(MemoryHub(), act)
