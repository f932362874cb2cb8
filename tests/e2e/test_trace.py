"""One job, one trace: from the submission through every service to its end, as an OTLP collector receives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from local_clusters import digits, local_cluster
from otlp import Collector, SeenSpan, collecting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """The spans of a cluster of two nodes that has trained one job to its end and was then taken down."""
    with collecting() as collector, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADARE_OTLP_ENDPOINT", collector.endpoint)
        folder: Path = tmp_path_factory.mktemp("traced")
        for cluster in local_cluster(folder):
            cluster.up("--cluster", "1x1:V100,1x1:T4", "--round", "2")
            job = cluster.json("submit", cluster.write_job(digits("traced", 300)), "--wait")
            assert job["state"] == "completed"
            cluster.hadare("down")  # each service flushes its spans as it ends
            yield collector


@pytest.fixture
def trace(seen: Collector) -> list[SeenSpan]:
    """The spans of the job's own trace."""
    root = seen.only("submit job")
    return [span for span in seen.spans if span.trace_id == root.trace_id]


def named(trace: list[SeenSpan], name: str) -> list[SeenSpan]:
    found = [span for span in trace if span.name == name]
    assert found, f"no span '{name}' among {sorted({span.name for span in trace})}"
    return found


def ancestors(trace: list[SeenSpan], span: SeenSpan) -> list[str]:
    by_id = {known.span_id: known for known in trace}
    names = []
    while span.parent_id:
        span = by_id[span.parent_id]
        names.append(span.name)
    return names


def test_the_trace_passes_through_every_service(trace: list[SeenSpan]) -> None:
    services = {span.service.removeprefix("hadare-") for span in trace}
    assert {"gateway", "allocator", "pricing", "jobtracker", "node-agent"} <= {s.replace("_", "-") for s in services}


def test_it_begins_with_the_submission_and_reaches_the_completion(trace: list[SeenSpan]) -> None:
    assert named(trace, "submit job")[0].parent_id == ""
    assert ancestors(trace, named(trace, "job completed")[0])[-1] == "submit job"


@pytest.mark.parametrize("name", ["price job", "place job", "grant lease", "train", "consolidate job"])
def test_each_part_of_a_round_is_a_descendant_of_the_submission(trace: list[SeenSpan], name: str) -> None:
    assert all(ancestors(trace, span)[-1] == "submit job" for span in named(trace, name))


def test_every_parent_of_the_trace_was_exported_too(trace: list[SeenSpan]) -> None:
    ids = {span.span_id for span in trace}
    assert [span.name for span in trace if span.parent_id and span.parent_id not in ids] == []


def test_a_round_has_a_trace_of_its_own_with_its_steps_and_links_to_the_jobs_that_it_placed(
    seen: Collector, trace: list[SeenSpan]
) -> None:
    job = trace[0].trace_id
    dispatched = [span for span in seen.named("dispatch") if job in span.links]
    assert dispatched
    round_trace = [span for span in seen.spans if span.trace_id == dispatched[0].trace_id]
    assert {"round", "price", "place", "store", "open", "dispatch"} <= {span.name for span in round_trace}
    assert dispatched[0].trace_id in {link for span in named(trace, "place job") for link in span.links}


def test_a_training_span_says_what_was_trained_where(trace: list[SeenSpan]) -> None:
    spans = named(trace, "train")
    assert {span.attributes["hadare.device_type"] for span in spans} == {"V100", "T4"}
    assert sum(int(span.attributes["hadare.steps"]) for span in spans) >= 300
