"""An OTLP collector in the process of the test: what was exported over gRPC, as spans to assert on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class SeenSpan:
    """One exported span."""

    service: str
    instance: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    status: int
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans and metrics; ``endpoint`` is where to send them."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._spans: list[SeenSpan] = []
        self._metrics: set[str] = set()
        self._changed = threading.Condition()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        with self._changed:
            for group in request.resource_spans:
                resource = _attributes(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans.extend(_seen(span, resource) for span in scope.spans)
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[SeenSpan]:
        with self._changed:
            return list(self._spans)

    @property
    def metrics(self) -> set[str]:
        with self._changed:
            return set(self._metrics)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> SeenSpan:
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans are called '{name}' among {sorted(s.name for s in self.spans)}"
        return found[0]

    def wait_for(self, *names: str, timeout_s: float = 10.0) -> None:
        """Until a span of each name has been exported."""
        wanted = set(names)
        with self._changed:
            arrived = self._changed.wait_for(lambda: wanted <= {span.name for span in self._spans}, timeout_s)
        assert arrived, f"missing: {sorted(wanted - {span.name for span in self.spans})}"

    def note_metrics(self, names: set[str]) -> None:
        with self._changed:
            self._metrics |= names
            self._changed.notify_all()


class _MetricsService(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        scopes = (scope for group in request.resource_metrics for scope in group.scope_metrics)
        self._collector.note_metrics({metric.name for scope in scopes for metric in scope.metrics})
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of the loopback interface, for as long as the block runs."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_MetricsService(collector), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(grace=None).wait()


def _seen(span: Any, resource: dict[str, Any]) -> SeenSpan:
    return SeenSpan(
        service=resource.get("service.name", ""),
        instance=resource.get("service.instance.id", ""),
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        status=span.status.code,
        attributes=_attributes(span.attributes),
        links=tuple(link.trace_id.hex() for link in span.links),
        events=tuple(event.name for event in span.events),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
