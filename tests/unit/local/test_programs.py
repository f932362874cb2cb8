from pathlib import Path

import pytest

from hadare.local import lifecycle
from hadare.local.directory import LocalCluster
from hadare.local.processes import Program
from hadare.local.programs import programs
from hadare.local.spec import cluster_from
from hadare.model.errors import Rejected
from hadare.runtime import config
from hadare_allocator.config import AllocatorConfig
from hadare_jobtracker.config import JobTrackerConfig
from hadare_node_agent.config import NodeAgentConfig

SPEC = cluster_from(
    {
        "nodes": [
            {"name": "a", "devices": [{"type": "V100", "count": 2}, {"type": "T4"}], "labels": {"zone": "x"}},
            {"name": "b"},
        ],
        "emulation": {"base_rate": 40, "workloads": {"m.n:C": 7}},
    },
    "spec",
)


@pytest.fixture
def found(tmp_path: Path) -> dict[str, Program]:
    cluster = LocalCluster(port=4321, spec=SPEC, policy="hadar", round_s=6.0, prefix="lab")
    return {program.name: program for program in programs(cluster, tmp_path)}


def test_the_bus_comes_first_and_ends_last(tmp_path: Path) -> None:
    listed = programs(LocalCluster(port=4321, spec=SPEC), tmp_path)
    assert [p.name for p in listed] == ["nats", "gateway", "pricing", "allocator", "jobtracker", "a", "b"]
    agents, services, bus = {p.stage for p in listed[5:]}, {p.stage for p in listed[1:5]}, {listed[0].stage}
    assert max(agents) < min(services) <= max(services) < min(bus)


def test_an_agent_understands_what_it_is_told(found: dict[str, Program]) -> None:
    agent = config.load(NodeAgentConfig, found["a"].env)
    assert agent.nats_url == "nats://127.0.0.1:4321"
    assert agent.prefix == "lab"
    assert [(g.type, g.count) for g in agent.device_groups() or ()] == [("V100", 2), ("T4", 1)]
    assert agent.label_map() == {"zone": "x"}
    assert (agent.base_rate, agent.workload_rates()) == (40.0, {"m.n:C": 7.0})


def test_an_agent_has_longer_to_end_than_it_may_take(found: dict[str, Program]) -> None:
    assert found["a"].grace_s > config.load(NodeAgentConfig, found["a"].env).stop_timeout_s


def test_a_node_without_devices_discovers_them(found: dict[str, Program]) -> None:
    assert config.load(NodeAgentConfig, found["b"].env).device_groups() is None


def test_the_allocator_gets_round_and_policy(found: dict[str, Program]) -> None:
    allocator = config.load(AllocatorConfig, found["allocator"].env)
    assert (allocator.round_s, allocator.policy) == (6.0, "hadar")


def test_every_file_lies_in_the_directory_of_the_cluster(found: dict[str, Program], tmp_path: Path) -> None:
    assert config.load(JobTrackerConfig, found["jobtracker"].env).work_dir.is_relative_to(tmp_path)
    assert config.load(NodeAgentConfig, found["a"].env).directory().is_relative_to(tmp_path)
    for program in found.values():
        assert program.env.get("TMPDIR", str(tmp_path)).startswith(str(tmp_path))


def test_settings_of_an_operator_reach_every_program_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADARE_WEIGHTS_URL", "file:///shared/hadare")
    monkeypatch.setenv("HADARE_KEEP_ROUNDS", "7")
    monkeypatch.setenv("HADARE_NATS_URL", "nats://elsewhere:4222")
    started = {p.name: p.env for p in programs(LocalCluster(port=4321, spec=SPEC), tmp_path)}
    assert started["a"]["HADARE_WEIGHTS_URL"] == started["gateway"]["HADARE_WEIGHTS_URL"] == "file:///shared/hadare"
    assert config.load(AllocatorConfig, started["allocator"]).keep_rounds == 7
    assert started["a"]["HADARE_NATS_URL"] == "nats://127.0.0.1:4321"


def test_allocator_and_tracker_can_have_standbys_with_names_and_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADARE_REPLICAS", "2")
    found = {p.name: p for p in programs(LocalCluster(port=4321, spec=SPEC), tmp_path)}
    assert {"allocator-2", "jobtracker-2"} <= found.keys()
    trackers = [config.load(JobTrackerConfig, found[name].env) for name in ("jobtracker", "jobtracker-2")]
    assert len({tracker.work_dir for tracker in trackers}) == len({tracker.instance for tracker in trackers}) == 2


@pytest.mark.parametrize("text", ["0", "many", "100", "²"])
def test_a_number_of_replicas_that_makes_no_sense_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADARE_REPLICAS", text)
    with pytest.raises(Rejected, match="HADARE_REPLICAS"):
        programs(LocalCluster(port=4321, spec=SPEC), tmp_path)
    with pytest.raises(Rejected, match="HADARE_REPLICAS"):
        lifecycle.prepare(tmp_path)
