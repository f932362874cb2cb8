"""Traces and metrics through OpenTelemetry. With no endpoint it costs nothing; a trace context still passes through.

One process has one telemetry. Trace context travels as a W3C ``traceparent`` string: in headers, and in records and
leases where work is taken up again later or elsewhere.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.metrics import Counter, Histogram, Meter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanContext, SpanKind, TraceFlags

from hadare.runtime.spanfile import SpanFile

Kind = Literal["internal", "client", "server", "producer", "consumer"]
Attributes = Mapping[str, str | bool | int | float]

TRACEPARENT = "traceparent"

_TRACEPARENT = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_KINDS: dict[str, SpanKind] = {kind.name.lower(): kind for kind in SpanKind}
_EXPORT_TIMEOUT_S = 5
_METRICS_EVERY_MS = 10_000.0


class Telemetry:
    """What ``configure`` set up. Call ``shutdown`` once, at the end: it exports what is left, within seconds."""

    def __init__(self, spans: TracerProvider | None, metrics: MeterProvider | None) -> None:
        self._spans = spans
        self._metrics = metrics
        self.tracer = spans.get_tracer("hadare") if spans else None
        meter: Meter = (metrics or NoOpMeterProvider()).get_meter("hadare")
        self._meter = meter
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str) -> Counter:
        if name not in self._counters:
            self._counters[name] = self._meter.create_counter(name)
        return self._counters[name]

    def histogram(self, name: str, unit: str) -> Histogram:
        if name not in self._histograms:
            self._histograms[name] = self._meter.create_histogram(name, unit=unit)
        return self._histograms[name]

    def flush(self) -> None:
        """Exports what has been recorded so far."""
        if self._spans is not None:
            self._spans.force_flush(_EXPORT_TIMEOUT_S * 1000)
        if self._metrics is not None:
            self._metrics.force_flush(_EXPORT_TIMEOUT_S * 1000)

    def shutdown(self) -> None:
        global _active
        if _active is self:
            _active = _OFF
        if self._spans is not None:
            self._spans.shutdown()
        if self._metrics is not None:
            self._metrics.shutdown(_EXPORT_TIMEOUT_S * 1000)


_OFF = Telemetry(None, None)
_active = _OFF
_passed: ContextVar[str] = ContextVar("hadare_traceparent", default="")
"""Where tracing is off: the context that was given, so that it reaches the next process."""


def configure(service: str, instance: str, endpoint: str | None) -> Telemetry:
    """``endpoint``: OTLP over gRPC (``http://host:4317``), ``file:DIRECTORY`` for one file of spans a process, or None.

    Sampling follows the standard variables (``OTEL_TRACES_SAMPLER``); the default keeps every span.
    """
    global _active
    _active.shutdown()
    if not endpoint:
        _active = _OFF
        return _active
    resource = Resource.create({"service.name": f"hadare-{service}", "service.instance.id": instance})
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    metrics: MeterProvider | None = None
    if endpoint.startswith("file:"):
        spans.add_span_processor(_batching(SpanFile(endpoint.removeprefix("file:"), service, instance)))
    else:
        spans.add_span_processor(_batching(_otlp_spans(endpoint)))
        metrics = _otlp_metrics(endpoint, resource)
    _active = Telemetry(spans, metrics)
    return _active


def _batching(exporter: SpanExporter) -> BatchSpanProcessor:
    return BatchSpanProcessor(exporter, schedule_delay_millis=1000, export_timeout_millis=_EXPORT_TIMEOUT_S * 1000)


def _otlp_spans(endpoint: str) -> SpanExporter:
    # gRPC takes long to import, and most processes of a test or a demo never need it.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=endpoint, insecure=_insecure(endpoint), timeout=_EXPORT_TIMEOUT_S)


def _otlp_metrics(endpoint: str, resource: Resource) -> MeterProvider:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter(endpoint=endpoint, insecure=_insecure(endpoint), timeout=_EXPORT_TIMEOUT_S)
    reader = PeriodicExportingMetricReader(exporter, _METRICS_EVERY_MS, _EXPORT_TIMEOUT_S * 1000)
    return MeterProvider([reader], resource=resource, shutdown_on_exit=False)


def _insecure(endpoint: str) -> bool:
    return not endpoint.startswith("https://")


@contextmanager
def span(
    name: str,
    *,
    parent: str = "",
    links: Sequence[str] = (),
    kind: Kind = "internal",
    attributes: Attributes | None = None,
) -> Iterator[Span]:
    """A span around the block. Its parent is ``parent`` (a traceparent) if given, else the current span, else none.

    An exception that leaves the block is recorded and marks the span as failed.
    """
    tracer = _active.tracer
    if tracer is None:
        with continued(parent):
            yield trace.INVALID_SPAN
        return
    with tracer.start_as_current_span(
        name,
        context=_context_of(parent),
        kind=_KINDS[kind],
        links=[trace.Link(remote) for link in links if (remote := _parse(link)) is not None],
        attributes=attributes,
    ) as current:
        yield current


class Root:
    """The first span of a new trace, which is no task's current one: ``traceparent`` is its context, '' if none."""

    def __init__(self, name: str, attributes: Attributes) -> None:
        tracer = _active.tracer
        self._span = tracer.start_span(name, context=otel_context.Context(), attributes=attributes) if tracer else None
        self.traceparent = _render(self._span.get_span_context()) if self._span is not None else ""

    def end(self) -> None:
        if self._span is not None:
            self._span.end()


@contextmanager
def continued(parent: str) -> Iterator[None]:
    """Makes a remote context the current one, without a span of its own. '' changes nothing."""
    if not parent:
        yield
        return
    if _active.tracer is None:
        token = _passed.set(parent if _parse(parent) else "")
        try:
            yield
        finally:
            _passed.reset(token)
        return
    context = _context_of(parent)
    attached = otel_context.attach(context if context is not None else otel_context.get_current())
    try:
        yield
    finally:
        otel_context.detach(attached)


def traceparent() -> str:
    """The current trace context; '' if there is none."""
    if _active.tracer is None:
        return _passed.get()
    current = trace.get_current_span().get_span_context()
    return _render(current) if current.is_valid else ""


def new_traceparent() -> str:
    """The root of a new trace, for a caller that records no spans itself."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def inject(headers: dict[str, str]) -> dict[str, str]:
    """Adds the current context to ``headers`` and returns them."""
    current = traceparent()
    if current:
        headers[TRACEPARENT] = current
    return headers


def extract(headers: Mapping[str, str] | None) -> str:
    """The context that a message carries, '' if none that is valid."""
    given = (headers or {}).get(TRACEPARENT, "")
    return given if given and _TRACEPARENT.match(given) else ""


def count(name: str, amount: int = 1, attributes: Attributes | None = None) -> None:
    """Adds to the counter ``name``."""
    _active.counter(name).add(amount, dict(attributes or {}))


def observe(name: str, value: float, attributes: Attributes | None = None, unit: str = "s") -> None:
    """Records a value in the histogram ``name``."""
    _active.histogram(name, unit).record(value, dict(attributes or {}))


def shutdown() -> None:
    """Exports what is left and turns telemetry off. Takes seconds at most, whether a collector answers or not."""
    _active.shutdown()


def enabled() -> bool:
    """Whether spans are recorded."""
    return _active.tracer is not None


def _context_of(parent: str) -> otel_context.Context | None:
    remote = _parse(parent) if parent else None
    return None if remote is None else trace.set_span_in_context(trace.NonRecordingSpan(remote))


def _parse(given: str) -> SpanContext | None:
    match = _TRACEPARENT.match(given)
    if match is None:
        return None
    remote = SpanContext(
        int(match[1], 16), int(match[2], 16), is_remote=True, trace_flags=TraceFlags(int(match[3], 16))
    )
    return remote if remote.is_valid else None


def _render(current: SpanContext) -> str:
    return f"00-{current.trace_id:032x}-{current.span_id:016x}-{current.trace_flags & 0xFF:02x}"
