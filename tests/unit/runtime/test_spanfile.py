"""Spans in a file, which does not grow for ever."""

from __future__ import annotations

import json
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from hadare.runtime.spanfile import SpanFile


def test_a_process_keeps_its_newest_spans_and_twice_the_bound_at_most(tmp_path: Path) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SpanFile(str(tmp_path), "allocator", "a", most_bytes=5_000)))
    tracer = provider.get_tracer("test")
    for number in range(200):
        tracer.start_span(f"span {number}").end()
    provider.shutdown()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 2
    assert sum(path.stat().st_size for path in files) < 2 * 6_000
    names = {json.loads(line)["name"] for path in files for line in path.read_text().splitlines()}
    assert "span 199" in names
    assert "span 0" not in names
