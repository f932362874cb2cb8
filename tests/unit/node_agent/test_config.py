"""What an operator may set of a node agent, and what is refused at the start."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from hadare.runtime.config import BadConfig, load
from hadare.training.gang_meeting import listen
from hadare_node_agent.config import NodeAgentConfig
from hadare_node_agent.devices import DeviceGroup, parse_devices
from hadare_node_agent.gangs import reserve, taken


def config(**fields: str) -> NodeAgentConfig:
    return load(NodeAgentConfig, {f"HADARE_{name.upper()}": value for name, value in {"node": "n1", **fields}.items()})


def test_a_node_needs_a_name() -> None:
    with pytest.raises(BadConfig, match="HADARE_NODE is not set"):
        load(NodeAgentConfig, {})


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"node": "North"}, "node 'North' must have lower-case letters"),
        ({"devices": "V100:1"}, "devices: 'V100:1' is not COUNT:TYPE"),
        ({"devices": "0:V100"}, "1 to 64 devices"),
        ({"devices": "65:V100"}, "1 to 64 devices"),
        ({"labels": "rack"}, "labels: 'rack' is not NAME=VALUE"),
        ({"labels": "rack=a b"}, "labels: 'a b' is not a label"),
        ({"workloads": "digits"}, "workloads: 'digits' is not pkg.module:Class"),
        ({"base_rates": "a.b:C=fast"}, "base_rates: 'fast' is not a rate"),
        ({"base_rates": "a.b:C=-1"}, "base_rates: '-1' is not a rate"),
        ({"base_rate": "0"}, "must be above 0"),
        ({"cpu_slots": "0"}, "must be at least 1"),
        ({"drain_s": "30"}, "drain_s must be above 0 and below stop_timeout_s"),
        ({"gang_ports": "a"}, "gang_ports: 'a' is neither PORT nor FIRST-LAST"),
        ({"gang_ports": "29407-29400"}, "'29407-29400' is not a range"),
        ({"gang_ports": "70000"}, "from 1 to 65535"),
        ({"gang_ports": "29400,29400-29401"}, "a port is named twice"),
        ({"gang_address": "node-1:29400"}, "is not a host name or an IP address, without a port"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_the_reason(fields: dict[str, str], fault: str) -> None:
    with pytest.raises(BadConfig, match=fault):
        config(**fields)


def test_lists_are_taken_apart() -> None:
    made = config(labels="rack=a, disk=fast", base_rates="a.b:C=50,d:E=2.5", workloads="auto,my.tasks:Mine")
    assert made.label_map() == {"rack": "a", "disk": "fast"}
    assert made.workload_rates() == {"a.b:C": 50.0, "d:E": 2.5}
    assert (made.workload_names(), made.builtin_workloads) == (("my.tasks:Mine",), True)


def test_the_work_directory_is_named_by_the_node_unless_it_is_given() -> None:
    assert config().directory() == Path("agents/n1")
    assert config(work_dir="/somewhere").directory() == Path("/somewhere")


@pytest.mark.parametrize("text", ["1:V100,2:T4", "emulated:V100x1,T4x2", "v100,2:Tesla T4"])
def test_devices_are_written_as_counts_of_canonical_types(text: str) -> None:
    assert parse_devices(text) == (DeviceGroup(type="V100", count=1), DeviceGroup(type="T4", count=2))


def test_auto_and_cpu_are_no_emulated_devices() -> None:
    assert parse_devices("auto") is None
    assert parse_devices("cpu") == ()


def test_gangs_meet_at_the_ports_that_are_named() -> None:
    given = config(gang_address="10.0.0.7", gang_ports="29400-29402,29500")
    assert (given.gang_address, given.ports()) == ("10.0.0.7", (29400, 29401, 29402, 29500))


def test_ports_that_are_not_named_are_found_one_a_device() -> None:
    assert config().ports() == ()
    with ExitStack() as held:
        found = [reserve(held) for _ in range(5)]
    assert len(set(found)) == 5
    assert all(1024 <= port <= 65535 for port in found)


def test_nobody_else_gets_a_port_that_is_kept_for_gangs_but_a_gang_does() -> None:
    with ExitStack() as held:
        port = reserve(held)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        for host in ("127.0.0.1", "node-1"):
            with listen(host, port) as door, socket.create_connection(("127.0.0.1", port)):
                door.accept()[0].close()


def test_ports_that_another_program_has_are_named() -> None:
    with socket.create_server(("", 0)) as other, ExitStack() as held:
        with ExitStack() as briefly:
            free = reserve(briefly)
        port = other.getsockname()[1]
        assert taken(held, (port, free)) == (port,)
