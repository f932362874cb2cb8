"""Publish, subscribe, ask and serve over core NATS, typed, with trace context in the headers.

A plain message makes no span (heartbeats would drown everything else), but carries the context of the span in which it
was published. A question makes two: one of the asker, and in it one of whoever answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from opentelemetry.trace import StatusCode

from hadare.model.errors import HadareError, Rejected, Unavailable
from hadare.runtime import telemetry
from hadare.runtime.bus import Identity, Route
from hadare.runtime.nats_link import Link, in_empty_context
from hadare.runtime.nats_micro import INBOX, Discovery, EndpointStats, describe
from hadare.wire import codec
from hadare.wire.codec import Format
from hadare.wire.subjects import Endpoint, Topic

M = TypeVar("M")
Q = TypeVar("Q")
A = TypeVar("A")

log = structlog.get_logger("hadare.bus")

ERROR = "Nats-Service-Error"
ERROR_CODE = "Nats-Service-Error-Code"
CONTENT_TYPE = "content-type"

DRAIN_S = 10.0
"""How long ``stop`` waits for handlers that are under way."""

_MAX_ERROR_HEADER = 512


class NatsBus:
    """The ``Bus`` of a cluster."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def prefix(self) -> str:
        return self._link.prefix

    async def publish(self, topic: Topic[M], message: M, **tokens: str) -> None:
        subject = self._whole(topic.template, topic.subject(**tokens))
        await self._link.publish(subject, codec.encode(message), headers=telemetry.inject({}))

    async def subscribe(
        self, topic: Topic[M], handler: Callable[[M], Awaitable[None]], *, group: str = "", **tokens: str
    ) -> NatsListener:
        async def receive(message: Msg) -> None:
            try:
                decoded = codec.decode(message.data, topic.message)
            except Rejected as fault:
                log.warning("message dropped", subject=message.subject, fault=fault.message)
                return
            try:
                with telemetry.continued(telemetry.extract(message.headers)):
                    await handler(decoded)
            except Exception:
                log.exception("handler failed", subject=message.subject)

        subscription = await self._link.subscribe(f"{self.prefix}.{topic.subject(**tokens)}", receive, group=group)
        await self._link.flush()
        return NatsListener(self._link, [subscription])

    async def ask(self, endpoint: Endpoint[Q, A], question: Q, *, timeout_s: float, **tokens: str) -> A:
        subject = self._whole(endpoint.template, endpoint.subject(**tokens))
        data = codec.encode(question)
        with telemetry.span(
            f"request {endpoint.template}", kind="client", attributes=_attributes("request", endpoint.template, subject)
        ) as span:
            headers = telemetry.inject({CONTENT_TYPE: Format.MSGPACK.value})
            reply = await self._link.request(subject, data, timeout_s=timeout_s, headers=headers)
            fault = _fault_of(reply)
            if fault is not None:
                span.set_attribute("error.type", str(getattr(fault, "code", 503)))
                raise fault
            return codec.decode(reply.data, endpoint.answer)

    async def serve(self, identity: Identity, routes: Sequence[Route[Any, Any]]) -> NatsServer:
        server = NatsServer(self._link, identity, routes)
        await server.start()
        return server

    def _whole(self, template: str, subject: str) -> str:
        if "*" in subject:
            raise Rejected(400, f"'{template}' needs all its parts, got '{subject}'")
        return f"{self.prefix}.{subject}"


class NatsListener:
    """A subscription: its handler sees one message at a time."""

    def __init__(self, link: Link, subscriptions: list[NatsSubscription]) -> None:
        self._link = link
        self._subscriptions = subscriptions

    async def stop(self) -> None:
        await asyncio.gather(*(self._link.drain(subscription, DRAIN_S) for subscription in self._subscriptions))


class NatsServer:
    """Served endpoints. Each handles up to ``concurrency`` questions at once; the others wait in its queue."""

    def __init__(self, link: Link, identity: Identity, routes: Sequence[Route[Any, Any]]) -> None:
        self._link = link
        self._identity = identity
        self._routes = list(routes)
        self._stats = describe(routes, link.prefix)
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: list[NatsSubscription] = []
        self._discovery = Discovery(link, identity, self._stats, link.new_id())

    async def start(self) -> None:
        for route, stats in zip(self._routes, self._stats, strict=True):
            receive = self._bounded(route, stats)
            self._subscriptions.append(await self._link.subscribe(stats.subject, receive, group=route.group))
        await self._discovery.start()
        await self._link.flush()

    async def stop(self) -> None:
        await asyncio.gather(*(self._link.drain(subscription, DRAIN_S) for subscription in self._subscriptions))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        for task in list(self._tasks):
            log.warning("question dropped at stop", service=self._identity.name, task=task.get_name())
            task.cancel()
        await self._discovery.stop()
        if self._link.client.is_connected:
            await self._link.flush()

    def _bounded(self, route: Route[Any, Any], stats: EndpointStats) -> Callable[[Msg], Awaitable[None]]:
        slots = asyncio.Semaphore(route.concurrency)

        async def handle(message: Msg) -> None:
            try:
                await self._answer(route, stats, message)
            finally:
                slots.release()

        async def receive(message: Msg) -> None:
            if not INBOX.match(message.reply):
                log.warning("reply subject refused", subject=message.subject, reply=message.reply[:256])
                return
            await slots.acquire()
            task = in_empty_context(handle(message), f"{self._identity.name}:{stats.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return receive

    async def _answer(self, route: Route[Any, Any], stats: EndpointStats, message: Msg) -> None:
        template = route.endpoint.template
        form = codec.format_of(message.data)
        began = time.perf_counter_ns()
        with telemetry.span(
            f"process {template}",
            parent=telemetry.extract(message.headers),
            kind="server",
            attributes=_attributes("process", template, message.subject, route.group),
        ) as span:
            headers = {CONTENT_TYPE: form.value}
            fault: Rejected | None = None
            try:
                answer = await route.handler(codec.decode(message.data, route.endpoint.question))
                body = codec.encode(answer, form)
            except Exception as error:  # noqa: BLE001 - whatever it is, the asker gets an answer and we stay up
                fault = _to_asker(error, self._identity.name, template)
                span.set_attribute("error.type", str(fault.code))
                if fault.code >= 500:
                    span.set_status(StatusCode.ERROR)
                headers |= {ERROR: fault.message[:_MAX_ERROR_HEADER], ERROR_CODE: str(fault.code)}
                body = _error_body(fault, form)
            stats.record(began, f"{fault.code}:{fault.message}" if fault else "")
            await self._reply(message, body, headers)

    async def _reply(self, message: Msg, body: bytes, headers: dict[str, str]) -> None:
        try:
            await self._link.publish(message.reply, body, headers=headers)
        except HadareError as error:
            log.warning("answer lost", subject=message.subject, error=str(error))


def _to_asker(error: Exception, service: str, template: str) -> Rejected:
    """What the asker may know of a failure. Never the text of an exception that was not meant for it."""
    match error:
        case Rejected():
            return error
        case HadareError():
            log.warning("handler failed", service=service, endpoint=template, error=str(error))
            return Rejected(503, str(error))
        case _:
            log.error("handler failed", service=service, endpoint=template, exc_info=error)
            return Rejected(500, "internal error")


def _error_body(fault: Rejected, form: Format) -> bytes:
    try:
        return codec.encode({"code": fault.code, "message": fault.message, "details": fault.details}, form)
    except (Rejected, TypeError) as error:  # details too large, or of a type that cannot travel
        log.warning("details of an error dropped", code=fault.code, why=str(error))
        return codec.encode({"code": fault.code, "message": fault.message[:4096], "details": {}}, form)


def _fault_of(reply: Msg) -> HadareError | None:
    headers = reply.headers or {}
    if ERROR_CODE not in headers:
        return None
    try:
        body = codec.unpack(reply.data) if reply.data else {}
    except Rejected:
        body = {}
    if not isinstance(body, dict):
        body = {}
    code = int(headers[ERROR_CODE]) if headers[ERROR_CODE].isdigit() else 500
    message = str(body.get("message") or headers.get(ERROR, "refused"))
    if code == 503:
        return Unavailable(message)
    details = body.get("details")
    return Rejected(code, message, details if isinstance(details, dict) else None)


def _attributes(operation: str, template: str, subject: str, group: str = "") -> dict[str, str]:
    """OpenTelemetry's messaging conventions; ``nats`` is no member of the list of systems yet, but what others send."""
    found = {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": "process" if operation == "process" else "send",
        "messaging.destination.name": subject,
        "messaging.destination.template": template,
    }
    if group:
        found["messaging.consumer.group.name"] = group
    return found
