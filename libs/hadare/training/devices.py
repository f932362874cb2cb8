"""Where a fork computes: the host's CPU for emulated devices, otherwise CUDA devices by their index on the node."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a forked process needs to compute on a lease's devices: its torch device, and what CUDA may show it."""

    device: str = "cpu"
    env: dict[str, str] = field(default_factory=dict)


def place(indices: Sequence[int], *, emulated: bool) -> Place:
    """The place of a fork. A process sees its own devices only, numbered from 0, in the order of the PCI bus.

    The environment works because nothing touches CUDA before the fork.
    """
    if emulated or not indices:
        return Place(env={"CUDA_VISIBLE_DEVICES": ""})
    visible = ",".join(str(index) for index in indices)
    return Place(device="cuda:0", env={"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


def mixed_precision(device: torch.device) -> tuple[torch.dtype, bool]:
    """The dtype of autocast on ``device`` and whether the loss must be scaled: float16 only where bfloat16 is slow."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16, False
    return torch.float16, True


class Stopwatch:
    """Steps/s without the warm-up: of CUDA by events on its stream, else by the monotonic clock."""

    def __init__(self, device: torch.device, warm_up: int) -> None:
        """The first ``warm_up`` steps are left out, if more are done."""
        self._cuda = device.type == "cuda"
        self._warm_up = warm_up
        self._steps = 0
        self._first = self._mark()
        self._warm = self._first

    def _mark(self) -> float | torch.cuda.Event:
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def step(self) -> None:
        """A step has ended (or, on CUDA, was queued)."""
        self._steps += 1
        if self._steps == self._warm_up:
            self._warm = self._mark()

    def steps_per_s(self) -> float:
        """Throughput so far; 0 before the first step. Waits for the device."""
        warm = self._steps > self._warm_up
        steps = self._steps - self._warm_up if warm else self._steps
        seconds = _between(self._warm if warm else self._first, self._mark())
        return steps / seconds if steps and seconds > 0 and math.isfinite(seconds) else 0.0


def _between(first: float | torch.cuda.Event, last: float | torch.cuda.Event) -> float:
    if isinstance(first, float):
        assert isinstance(last, float)
        return last - first
    assert not isinstance(last, float)
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3
