"""Which devices a node has, what they are called, and whether each is fit to be given to a fork.

Real ones are found by NVML, without CUDA: a fork server must not have touched CUDA before it forks.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import structlog

from hadare.model.devices import Device
from hadare.scheduling.devices import canonical_type, relative_speed, spec_of
from hadare_node_agent.gpu_events import GpuEvents

log = structlog.get_logger("hadare.node_agent")

CPU = "CPU"

_COUNT_FIRST = re.compile(r"(\d{1,4}):([A-Za-z0-9][A-Za-z0-9_ -]{0,31})")
_TYPE_FIRST = re.compile(r"([A-Za-z0-9][A-Za-z0-9_ -]{0,31}?)(?:x(\d{1,2}))?")
_MOST_DEVICES = 64
_RELEASE_S = 10.0
_POLL_S = 0.2
_SLICE_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """``count`` devices of one type."""

    type: str
    count: int


def parse_devices(text: str) -> tuple[DeviceGroup, ...] | None:
    """``auto`` (None), ``cpu`` (no group), or ``1:V100,2:T4``; ``emulated:V100x1,T4x2`` means the same.

    Raises ``ValueError``.
    """
    if text == "auto":
        return None
    if text == "cpu":
        return ()
    groups = tuple(_group(term.strip()) for term in text.removeprefix("emulated:").split(","))
    if not 1 <= sum(group.count for group in groups) <= _MOST_DEVICES:
        raise ValueError(f"devices: a node has 1 to {_MOST_DEVICES} devices")
    return groups


def _group(term: str) -> DeviceGroup:
    if match := _COUNT_FIRST.fullmatch(term):
        return DeviceGroup(type=canonical_type(match[2]), count=int(match[1]))
    if match := _TYPE_FIRST.fullmatch(term):
        return DeviceGroup(type=canonical_type(match[1]), count=int(match[2] or 1))
    raise ValueError(f"devices: '{term}' is not COUNT:TYPE, as in 2:T4")


class Probe(Protocol):
    """What an agent can find out about its devices."""

    async def devices(self) -> tuple[Device, ...]:
        """All of them, each with its health as it is now."""
        ...

    async def free(self, indices: Sequence[int]) -> str:
        """Waits until nothing is left on the devices; '' then, else what still holds one."""
        ...

    async def faults(self, in_use: Set[int]) -> dict[int, str]:
        """What is wrong with each device that can be asked; '' if nothing is. Those in use may be occupied."""
        ...

    async def alarm(self, limit_s: float) -> None:
        """Returns when a device has told of a fault by itself, at the latest after ``limit_s`` seconds."""
        ...


class FixedProbe:
    """Emulated devices, or the host's CPU: there is no hardware to ask."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)

    async def devices(self) -> tuple[Device, ...]:
        return self._devices

    async def free(self, indices: Sequence[int]) -> str:
        del indices
        return ""

    async def faults(self, in_use: Set[int]) -> dict[int, str]:
        del in_use
        return {}

    async def alarm(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)


def emulated(groups: Sequence[DeviceGroup]) -> FixedProbe:
    """Devices that exist on paper alone: the CPU trains, held to their rate."""
    types = [group.type for group in groups for _ in range(group.count)]
    return FixedProbe(
        [
            Device(index=index, type=kind, memory_gb=spec_of(kind).memory_gb, emulated=True)
            for index, kind in enumerate(types)
        ]
    )


def host_cpu() -> FixedProbe:
    """The CPU as one device, as fast as it is."""
    memory_gb = psutil.virtual_memory().total / 2**30
    return FixedProbe([Device(index=0, type=CPU, memory_gb=round(memory_gb, 1))])


class NvmlProbe:
    """NVIDIA's devices. One is offered only while no more than ``free_gb`` of its memory is in use by others.

    ``nvml`` is the module ``pynvml``, initialised. ``visible`` is the agent's own CUDA_VISIBLE_DEVICES,
    indices or UUIDs: what it leaves out belongs to others.
    """

    def __init__(self, nvml: Any, free_gb: float, visible: str | None = None) -> None:
        self._nvml = nvml
        self._free_gb = free_gb
        self._visible = None if visible is None else frozenset(visible.replace(" ", "").split(","))
        self._events: GpuEvents | None = None

    async def devices(self) -> tuple[Device, ...]:
        return await asyncio.to_thread(lambda: tuple(self._device(index) for index in self._all()))

    async def free(self, indices: Sequence[int]) -> str:
        return await asyncio.to_thread(self._wait_free, indices)

    async def faults(self, in_use: Set[int]) -> dict[int, str]:
        return await asyncio.to_thread(lambda: {index: self._fault(index, index in in_use) for index in self._all()})

    async def alarm(self, limit_s: float) -> None:
        """Waits in slices: a thread that blocks in the driver cannot be cancelled."""
        if self._events is None:
            self._events = await asyncio.to_thread(lambda: GpuEvents(self._nvml, self._all()))
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while (left_s := until - loop.time()) > 0:
            began = loop.time()
            if await asyncio.to_thread(self._events.wait, min(_SLICE_S, left_s)):
                return
            await asyncio.sleep(max(0.0, min(_SLICE_S, left_s) - (loop.time() - began)))  # where there are no events

    def _all(self) -> list[int]:
        return [index for index in range(int(self._nvml.nvmlDeviceGetCount())) if self._is_ours(index)]

    def _is_ours(self, index: int) -> bool:
        if self._visible is None or str(index) in self._visible:
            return True
        if all(name.isdigit() for name in self._visible):
            return False
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return _text(self._nvml.nvmlDeviceGetUUID(handle)) in self._visible

    def _wait_free(self, indices: Sequence[int]) -> str:
        """The driver gives memory back a moment after a process has gone."""
        deadline = time.monotonic() + _RELEASE_S
        while held := next((fault for index in indices if (fault := self._occupied(index))), ""):
            if time.monotonic() >= deadline:
                return held
            time.sleep(_POLL_S)
        return ""

    def _device(self, index: int) -> Device:
        name, memory_gb = "unknown", 0.0
        fault = self._fault(index, in_use=False)
        with suppress(self._nvml.NVMLError):  # the fault says it already
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(self._nvml.nvmlDeviceGetName(handle))
            memory_gb = self._nvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30
        kind = canonical_type(name)
        return Device(index=index, type=kind, memory_gb=round(memory_gb, 1), healthy=not fault, reason=fault)

    def _fault(self, index: int, in_use: bool) -> str:
        told = self._events.heard.get(index, "") if self._events is not None else ""
        return told or self._broken(index) or ("" if in_use else self._occupied(index))

    def _occupied(self, index: int) -> str:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            used_gb = self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30
            if used_gb <= self._free_gb:
                return ""
            holders = sorted(process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        who = f" by processes {', '.join(map(str, holders[:8]))}" if holders else ""
        return f"{used_gb:.1f} GiB in use{who}"

    def _broken(self, index: int) -> str:
        """A device that does not answer, or with double-bit memory errors; one that cannot count those is sound."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        try:
            errors = self._nvml.nvmlDeviceGetTotalEccErrors(
                handle, self._nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._nvml.NVML_VOLATILE_ECC
            )
        except self._nvml.NVMLError:
            return ""
        return f"{errors} uncorrected memory errors" if errors else ""


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


async def find_probe(groups: tuple[DeviceGroup, ...] | None, free_gb: float, visible: str | None) -> Probe:
    """What the configuration asks for: emulated devices, the CPU, or whatever this machine has."""
    if groups is not None:
        return emulated(groups) if groups else host_cpu()
    nvml = _load_nvml()
    if nvml is not None:
        probe = NvmlProbe(nvml, free_gb, visible)
        if await probe.devices():
            return probe
    return host_cpu()


def _load_nvml() -> Any | None:
    """``pynvml``, initialised, if it is installed and there is a driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        log.info("no GPU found", reason=str(error))
        return None
    return pynvml


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """Nominal rates of emulated devices: a base rate in steps/s on a V100, times the type's relative speed."""

    base_rate: float
    workloads: dict[str, float]

    def rate(self, workload: str, device: Device) -> float:
        """0: the device is real and not held to anything."""
        if not device.emulated:
            return 0.0
        return self.workloads.get(workload, self.base_rate) * relative_speed(device.type)
