from __future__ import annotations

import pytest
import torch

from hadare.training.devices import Place, Stopwatch, mixed_precision, place


def test_an_emulated_device_computes_on_the_cpu_and_sees_no_gpu() -> None:
    assert place([2], emulated=True) == Place(device="cpu", env={"CUDA_VISIBLE_DEVICES": ""})


def test_a_lease_without_devices_runs_on_the_cpu() -> None:
    assert place([], emulated=False).device == "cpu"


def test_a_fork_sees_only_its_own_gpu_as_the_first() -> None:
    found = place([3], emulated=False)
    assert found.device == "cuda:0"
    assert found.env == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_mixed_precision_on_a_cpu_is_bfloat16_without_scaling() -> None:
    assert mixed_precision(torch.device("cpu")) == (torch.bfloat16, False)


@pytest.mark.parametrize(("capability", "dtype"), [((7, 0), torch.float16), ((8, 0), torch.bfloat16)])
def test_old_gpus_use_float16(capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert mixed_precision(torch.device("cuda:0")) == (dtype, dtype is torch.float16)


def test_warm_up_steps_are_left_out_of_the_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 10.0, 12.0])  # start, end of the warm-up, now
    monkeypatch.setattr("hadare.training.devices.time.monotonic", lambda: next(moments))
    watch = Stopwatch(torch.device("cpu"), warm_up=2)
    for _ in range(10):
        watch.step()
    assert watch.steps_per_s() == 4.0


def test_a_few_steps_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 2.0])
    monkeypatch.setattr("hadare.training.devices.time.monotonic", lambda: next(moments))
    watch = Stopwatch(torch.device("cpu"), warm_up=5)
    watch.step()
    assert watch.steps_per_s() == 0.5


def test_no_steps_have_no_throughput() -> None:
    assert Stopwatch(torch.device("cpu"), warm_up=5).steps_per_s() == 0.0
