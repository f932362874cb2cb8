"""What an operator can set of a node agent; see ``runtime.config`` for how a field's environment variable is called."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hadare.machines.lease_state import LeaseLimits
from hadare.runtime.service import ServiceConfig
from hadare.training.bounds import MEMORY_PART, MOST_PROCESSES, Bounds, machine_memory
from hadare_node_agent.devices import DeviceGroup, parse_devices
from hadare_node_agent.gangs import parse_ports

_NODE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WORKLOAD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,62}")


@dataclass(frozen=True, kw_only=True)
class NodeAgentConfig(ServiceConfig):
    """A node agent's settings.

    ``devices``: ``auto`` (the GPUs that NVML finds, else the CPU), ``cpu``, or emulated ones: ``1:V100,2:T4``.
    ``labels``: ``rack=a,disk=fast``. ``workloads``: what forks may import, ``auto`` stands for the built-in ones.
    ``base_rate`` is the emulated V100's steps/s, ``base_rates`` overrides it: ``pkg.module:Class=50,…``.
    ``work_dir`` keeps weights, results and scratch files; default ``agents/<node>`` in the current directory.
    ``python`` is the interpreter of the forks, in a virtual environment that has hadare of the same version; default
    the agent's own. ``loop_patience_s``: after so long without a turn of the event loop the heartbeat stops.
    ``gang_address``: a name or IP address at which other nodes reach this one, for gangs that span nodes; without it
    only gangs within the node meet here. ``gang_ports``: ``29400-29407``, one for each device; default: free ones that
    are found at the start. Whoever reaches them can disturb a gang: a private network, or a firewall.
    ``fork_processes`` and ``fork_memory_gb``: what a fork may have at once of both, with all that it starts; default of
    the memory: nine tenths of the machine's, or of its container's.
    """

    node: str
    devices: str = "auto"
    labels: str = ""
    workloads: str = "auto"
    base_rate: float = 100.0
    base_rates: str = ""
    gang_address: str = ""
    gang_ports: str = ""
    work_dir: Path | None = None
    python: Path | None = None
    threads: int = 1
    cpu_slots: int = 1
    cache_gb: float = 8.0
    gpu_free_gb: float = 1.0
    fork_processes: int = MOST_PROCESSES
    fork_memory_gb: float | None = None
    heartbeat_s: float = 1.0
    health_s: float = 10.0
    loop_patience_s: float = 15.0
    start_limit_s: float = 120.0
    stop_grace_s: float = 15.0
    transfer_patience_s: float = 60.0
    drain_s: float = 6.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _NODE.fullmatch(self.node):
            raise ValueError(f"node '{self.node}' must have lower-case letters, digits and '-', at most 63")
        if min(self.base_rate, self.heartbeat_s, self.health_s, self.cache_gb, self.transfer_patience_s) <= 0:
            raise ValueError("base_rate, heartbeat_s, health_s, cache_gb and transfer_patience_s must be above 0")
        if min(self.threads, self.cpu_slots, self.fork_processes) < 1:
            raise ValueError("threads, cpu_slots and fork_processes must be at least 1")
        if self.fork_memory_gb is not None and self.fork_memory_gb <= 0:
            raise ValueError("fork_memory_gb must be above 0")
        if not 0 < self.drain_s < self.stop_timeout_s:
            raise ValueError("drain_s must be above 0 and below stop_timeout_s")
        self.device_groups()
        self.label_map()
        self.workload_names()
        self.workload_rates()
        self.ports()
        if self.gang_address and not _ADDRESS.fullmatch(self.gang_address):
            raise ValueError(f"gang_address '{self.gang_address}' is not a host name or an IP address, without a port")

    def directory(self) -> Path:
        return self.work_dir or Path("agents") / self.node

    def limits(self) -> LeaseLimits:
        """A process has one device: a gang has a lease for every rank."""
        return LeaseLimits(
            cpu_slots=self.cpu_slots, start_limit_s=self.start_limit_s, stop_grace_s=self.stop_grace_s, max_devices=1
        )

    def bounds(self) -> Bounds:
        memory = self.fork_memory_gb * 2**30 if self.fork_memory_gb else MEMORY_PART * machine_memory()
        return Bounds(processes=self.fork_processes, memory_bytes=int(memory))

    def device_groups(self) -> tuple[DeviceGroup, ...] | None:
        """The emulated devices; None: discover. Raises ``ValueError``."""
        return parse_devices(self.devices)

    def ports(self) -> tuple[int, ...]:
        """Where gangs meet; none: to be found. Raises ``ValueError``."""
        return parse_ports(self.gang_ports)

    def label_map(self) -> dict[str, str]:
        labels = dict(_pairs(self.labels, "labels"))
        for text in (*labels, *labels.values()):
            if not _LABEL.fullmatch(text):
                raise ValueError(f"labels: '{text}' is not a label")
        return labels

    def workload_names(self) -> tuple[str, ...]:
        """What the configuration lists beside ``auto``. Raises ``ValueError``."""
        names = tuple(name for name in _terms(self.workloads) if name != "auto")
        for name in names:
            _check_workload(name, "workloads")
        return names

    @property
    def builtin_workloads(self) -> bool:
        return "auto" in _terms(self.workloads)

    def workload_rates(self) -> dict[str, float]:
        """Emulated base rates by workload, in steps/s. Raises ``ValueError``."""
        rates = {}
        for name, text in _pairs(self.base_rates, "base_rates"):
            _check_workload(name, "base_rates")
            rates[name] = _rate(text)
        return rates


def _terms(text: str) -> list[str]:
    return [term.strip() for term in text.split(",") if term.strip()]


def _pairs(text: str, what: str) -> list[tuple[str, str]]:
    pairs = []
    for term in _terms(text):
        name, equals, value = term.partition("=")
        if not equals:
            raise ValueError(f"{what}: '{term}' is not NAME=VALUE")
        pairs.append((name.strip(), value.strip()))
    return pairs


def _check_workload(name: str, what: str) -> None:
    if not _WORKLOAD.fullmatch(name):
        raise ValueError(f"{what}: '{name}' is not pkg.module:Class")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise ValueError(f"base_rates: '{text}' is not a rate in steps/s")
    return rate
