"""Discovery, health and nominal rates of devices; NVML is played by a fake with its names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hadare_node_agent import devices as module
from hadare_node_agent.devices import DeviceGroup, Emulation, NvmlProbe, emulated, find_probe, host_cpu

GIB = 2**30


@dataclass
class Gpu:
    name: str = "Tesla V100-SXM2-16GB"
    total_gb: float = 16.0
    used_gb: float = 0.3
    ecc: int | None = 0
    lost: bool = False
    uuid: str = "GPU-0"
    pids: list[int] = field(default_factory=list)


class FakeNvml:
    """As much of ``pynvml`` as the probe uses."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    nvmlEventTypeDoubleBitEccError = 2  # noqa: N815

    class NVMLError(Exception):
        pass

    class NVMLError_Timeout(NVMLError):  # noqa: N801
        pass

    def __init__(self, *gpus: Gpu, has_events: bool = True) -> None:
        self.gpus = gpus
        self.has_events = has_events
        self.registered: list[Gpu] = []
        self.events: list[Any] = []

    def say(self, index: int, data: int, kind: int = 8) -> None:
        """The driver tells of a fault, if somebody listens."""
        if self.gpus[index] in self.registered:
            self.events.append(SimpleNamespace(device=self.gpus[index], eventType=kind, eventData=data))

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        if not self.has_events:
            raise self.NVMLError("not supported")
        return "set"

    def nvmlDeviceGetSupportedEventTypes(self, _gpu: Gpu) -> int:  # noqa: N802
        return 15

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, _kinds: int, _set: str) -> None:  # noqa: N802
        self.registered.append(gpu)

    def nvmlEventSetWait_v2(self, _set: str, _limit_ms: int) -> Any:  # noqa: N802
        if not self.events:
            raise self.NVMLError_Timeout("timeout")
        return self.events.pop(0)

    def nvmlDeviceGetIndex(self, gpu: Gpu) -> int:  # noqa: N802
        return next(index for index, known in enumerate(self.gpus) if known is gpu)

    def nvmlInit(self) -> None:  # noqa: N802
        return

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if self.gpus[index].lost:
            raise self.NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: Gpu) -> bytes:  # noqa: N802
        return gpu.name.encode()

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:  # noqa: N802
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Any:  # noqa: N802
        return SimpleNamespace(total=gpu.total_gb * GIB, used=gpu.used_gb * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, _kind: int, _counter: int) -> int:  # noqa: N802
        if gpu.ecc is None:
            raise self.NVMLError("not supported")
        return gpu.ecc


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RELEASE_S", 0.0)


async def test_a_gpu_is_found_with_its_canonical_type_and_memory() -> None:
    (device,) = await NvmlProbe(FakeNvml(Gpu()), free_gb=1.0).devices()
    assert (device.index, device.type, device.memory_gb, device.healthy, device.emulated) == (
        0,
        "V100",
        16.0,
        True,
        False,
    )


async def test_a_gpu_whose_memory_others_use_is_not_offered() -> None:
    probe = NvmlProbe(FakeNvml(Gpu(), Gpu(used_gb=9.5, pids=[7, 3])), free_gb=1.0)
    first, second = await probe.devices()
    assert first.healthy
    assert (second.healthy, second.reason) == (False, "9.5 GiB in use by processes 3, 7")


async def test_a_gpu_that_fell_off_the_bus_is_reported_and_the_others_still_offered() -> None:
    lost, sound = await NvmlProbe(FakeNvml(Gpu(lost=True), Gpu()), free_gb=1.0).devices()
    assert (lost.healthy, lost.reason) == (False, "NVML: GPU is lost")
    assert sound.healthy


async def test_memory_errors_make_a_gpu_unfit_and_a_gpu_that_cannot_count_them_is_sound() -> None:
    bad, cannot_count = await NvmlProbe(FakeNvml(Gpu(ecc=2), Gpu(ecc=None)), free_gb=1.0).devices()
    assert bad.reason == "2 uncorrected memory errors"
    assert cannot_count.healthy


async def test_of_a_gpu_in_use_only_the_hardware_is_judged() -> None:
    probe = NvmlProbe(FakeNvml(Gpu(used_gb=15.0), Gpu(used_gb=15.0)), free_gb=1.0)
    assert await probe.faults({0}) == {0: "", 1: "15.0 GiB in use"}


async def listening(nvml: FakeNvml) -> NvmlProbe:
    probe = NvmlProbe(nvml, free_gb=1.0)
    await probe.alarm(0.001)
    return probe


async def test_a_critical_xid_takes_its_device_out_at_once_and_for_good_and_leaves_the_others() -> None:
    nvml = FakeNvml(Gpu(), Gpu())
    probe = await listening(nvml)
    nvml.say(1, 79)
    async with asyncio.timeout(5.0):
        await probe.alarm(60.0)
    assert await probe.faults({1}) == {0: "", 1: "Xid 79: it has fallen off the bus"}
    await probe.alarm(0.001)
    assert (await probe.faults(set()))[1].startswith("Xid 79")


async def test_a_double_bit_error_takes_its_device_out() -> None:
    nvml = FakeNvml(Gpu())
    probe = await listening(nvml)
    nvml.say(0, 0, kind=nvml.nvmlEventTypeDoubleBitEccError)
    await probe.alarm(0.001)
    assert await probe.faults(set()) == {0: "uncorrected memory error"}


async def test_an_xid_that_a_program_causes_is_no_fault_of_the_device() -> None:
    nvml = FakeNvml(Gpu())
    probe = await listening(nvml)
    nvml.say(0, 13)
    nvml.say(0, 31)
    await probe.alarm(0.001)
    assert await probe.faults(set()) == {0: ""}


async def test_where_the_driver_has_no_events_devices_are_still_looked_at() -> None:
    probe = await listening(FakeNvml(Gpu(ecc=3), has_events=False))
    assert await probe.faults(set()) == {0: "3 uncorrected memory errors"}


async def test_a_device_is_free_when_its_memory_is_given_back() -> None:
    nvml = FakeNvml(Gpu(used_gb=4.0))
    probe = NvmlProbe(nvml, free_gb=1.0)
    assert await probe.free([0]) == "4.0 GiB in use"
    nvml.gpus[0].used_gb = 0.2
    assert await probe.free([0]) == ""


@pytest.mark.parametrize("visible", ["1", "GPU-b", " 1 , 7"])
async def test_devices_that_are_hidden_from_the_agent_are_not_offered(visible: str) -> None:
    nvml = FakeNvml(Gpu(uuid="GPU-a"), Gpu(uuid="GPU-b"))
    assert [device.index for device in await NvmlProbe(nvml, 1.0, visible).devices()] == [1]


async def test_without_a_gpu_the_cpu_is_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load_nvml", lambda: None)
    (device,) = await (await find_probe(None, 1.0, None)).devices()
    assert (device.type, device.emulated, device.memory_gb > 0) == ("CPU", False, True)


async def test_hidden_gpus_leave_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_load_nvml", lambda: FakeNvml(Gpu()))
    (device,) = await (await find_probe(None, 1.0, "")).devices()
    assert device.type == "CPU"


async def test_emulated_devices_are_numbered_through_and_have_their_types_memory() -> None:
    probe = emulated((DeviceGroup(type="V100", count=1), DeviceGroup(type="T4", count=2)))
    found = await probe.devices()
    assert [(device.index, device.type, device.memory_gb) for device in found] == [
        (0, "V100", 16.0),
        (1, "T4", 16.0),
        (2, "T4", 16.0),
    ]
    assert all(device.emulated for device in found)


async def test_a_nominal_rate_is_the_workloads_base_rate_times_the_types_speed() -> None:
    emulation = Emulation(base_rate=100.0, workloads={"a:B": 40.0})
    v100, t4 = await emulated((DeviceGroup(type="V100", count=1), DeviceGroup(type="T4", count=1))).devices()
    assert emulation.rate("x:Y", v100) == 100.0
    assert emulation.rate("a:B", v100) == 40.0
    assert emulation.rate("x:Y", t4) < 60.0


async def test_a_real_device_is_held_to_no_rate() -> None:
    (cpu,) = await host_cpu().devices()
    assert Emulation(base_rate=100.0, workloads={}).rate("x:Y", cpu) == 0.0
