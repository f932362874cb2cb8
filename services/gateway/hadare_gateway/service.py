"""The gateway: the only door for users. It checks, stores what they want, and joins what the other services say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import structlog

from hadare import __version__
from hadare.machines.validation import read
from hadare.model.errors import Unavailable
from hadare.runtime.bus import Backplane, Identity, Route
from hadare.runtime.discovery import Found, discover
from hadare.wire import api, api_cluster, subjects
from hadare.wire.subjects import Endpoint
from hadare_gateway.cluster import Cluster, Discover
from hadare_gateway.config import GatewayConfig
from hadare_gateway.jobs import Jobs
from hadare_gateway.sent import Sent, hashes_named
from hadare_gateway.submissions import Submissions
from hadare_gateway.views import Views
from hadare_gateway.weights import Weights

Q = TypeVar("Q")
A = TypeVar("A")

CONTROL_SERVICES = ("allocator", "gateway", "jobtracker", "pricing")

IDENTITY = Identity(
    name="hadare-gateway",
    version=__version__,
    description="HadarE: submit and control jobs, and see what the cluster does",
    metadata={"formats": "application/json, application/msgpack", "docs": "docs/reference/message-api.md"},
)

log = structlog.get_logger("hadare.gateway")


class GatewayService:
    """Serves the message API. Any number of gateways can serve the same cluster."""

    def __init__(
        self,
        backplane: Backplane,
        discover: Discover,
        *,
        sweep_s: float,
        keep_code_s: float = 3600.0,
        weights_url: str | None = None,
    ) -> None:
        self._backplane = backplane
        self._views = Views(backplane)
        self._jobs = Jobs(backplane, self._views)
        self._cluster = Cluster(backplane, self._views, discover)
        self._weights = Weights(backplane, self._jobs, weights_url)
        self._sent = Sent(backplane, self._weights, keep_code_s)
        self._submissions = Submissions(self._jobs.intake, self._sent)
        self._sweep_s = sweep_s

    async def run(self, ready: Callable[[], None]) -> None:
        """Serves until it is cancelled, then answers what it has begun; ends with an error if a watch does."""
        async with asyncio.TaskGroup() as tasks:
            for follower in self._views.followers():
                tasks.create_task(follower)
            reports = await self._backplane.bus.subscribe(subjects.STEP_REPORT, self._views.on_report)
            await self._views.caught_up()
            tasks.create_task(self._sweep_for_ever())
            served = await self._backplane.bus.serve(IDENTITY, self.routes())
            ready()
            try:
                await asyncio.Event().wait()
            finally:
                await served.stop()
                await reports.stop()

    def routes(self) -> list[Route[Any, Any]]:
        """Every endpoint with its handler."""
        jobs, cluster, weights = self._jobs, self._cluster, self._weights
        return [
            Route(_raw(api.SUBMIT), self._submissions.submit),
            checked(api.GET, jobs.get),
            checked(api.LIST, jobs.list),
            checked(api.CANCEL, jobs.cancel),
            checked(api.PAUSE, jobs.pause),
            checked(api.RESUME, jobs.resume),
            checked(api.DELETE, jobs.delete),
            checked(api.WATCH, jobs.watch),
            checked(api.LOGS, jobs.logs),
            checked(api.HISTORY, weights.history),
            checked(api.LIST_WEIGHTS, weights.list),
            checked(api.GET_WEIGHTS, weights.get),
            checked(api_cluster.LIST_NODES, cluster.nodes),
            checked(api_cluster.DRAIN, cluster.drain),
            checked(api_cluster.UNDRAIN, cluster.undrain),
            checked(api_cluster.FORGET, cluster.forget),
            checked(api_cluster.GET_PRICES, cluster.prices),
            checked(api_cluster.LIST_ROUNDS, cluster.rounds),
            checked(api_cluster.GET_ROUND, cluster.round),
            checked(api_cluster.STATUS, cluster.status),
        ]

    async def sweep(self) -> None:
        """Finishes what crashed gateways have begun: intents without a job, names that nobody holds, code of no job."""
        jobs, requests = self._views.jobs.records, self._views.requests.records
        for key in sorted(key for key, job_id in requests.items() if job_id not in jobs):
            await self._jobs.intake.finish_dangling(key)
        names = self._views.names.records
        stale = [n for n, claim in names.items() if claim.request not in requests and claim.job_id not in jobs]
        for name in sorted(stale):
            await self._jobs.intake.free_stale(name)
        await self._sent.sweep({sha256 for job in jobs.values() for sha256 in hashes_named(job.spec)})

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.sweep()
            except Unavailable as error:
                log.warning("sweep put off", cause=str(error))
            await asyncio.sleep(self._sweep_s)


async def main(backplane: Backplane, config: GatewayConfig) -> None:
    """The gateway's life: ready once it knows what the others have stored."""

    async def discovered() -> list[api_cluster.ServiceSeen]:
        return control_services(await discover(backplane))

    service = GatewayService(
        backplane,
        discovered,
        sweep_s=config.sweep_s,
        keep_code_s=config.keep_code_s,
        weights_url=config.weights_url,
    )
    await service.run(lambda: log.info("ready", endpoints=len(api.ENDPOINTS)))


def control_services(found: list[Found]) -> list[api_cluster.ServiceSeen]:
    """The four that a cluster needs, each with the instances of it that answer."""
    instances = {name: [one for one in found if one.name == f"hadare-{name}"] for name in CONTROL_SERVICES}
    return [
        api_cluster.ServiceSeen(
            name=name,
            instances=len(answering),
            version=max((one.version for one in answering), default=""),
            ok=bool(answering),
        )
        for name, answering in instances.items()
    ]


def checked(endpoint: Endpoint[Q, A], handler: Callable[[Q], Awaitable[A]]) -> Route[Any, A]:
    """A route that refuses a question with every fault in it, unknown fields with a suggestion."""

    async def handle(plain: dict[str, Any]) -> A:
        return await handler(read(plain, endpoint.question, "the request"))

    return Route(_raw(endpoint), handle)


def _raw(endpoint: Endpoint[Any, A]) -> Endpoint[dict[str, Any], A]:
    """The endpoint, before its question is checked."""
    return Endpoint(endpoint.template, cast(type[dict[str, Any]], dict), endpoint.answer)
