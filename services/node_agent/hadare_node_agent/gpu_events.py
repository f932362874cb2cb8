"""What the driver says of a GPU by itself: critical Xid errors and memory errors that it could not correct.

Xids that a faulty program causes (NVIDIA's Xid catalogue: 13, 31, 43, 45, 68, 109) say nothing of the hardware, and
are not heard. Nothing but the operator's look can tell whether a GPU is well again: what was heard stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog

log = structlog.get_logger("hadare.node_agent")

PROGRAMS_OWN = frozenset({13, 31, 43, 45, 68, 109})

_KNOWN = {
    48: "double-bit memory error",
    63: "a page of its memory is retired",
    64: "a page of its memory could not be retired",
    74: "NVLink error",
    79: "it has fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "the GPU's system processor does not answer",
}


class GpuEvents:
    """``heard``: by index, what the driver has said of the devices so far. Deaf where the driver has no events."""

    def __init__(self, nvml: Any, indices: Iterable[int]) -> None:
        self._nvml = nvml
        self._set: Any = None
        self.heard: dict[int, str] = {}
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            log.info("the driver tells of no faults", reason=str(error))
            return
        for index in indices:
            self._register(index)

    def wait(self, limit_s: float) -> bool:
        """Blocks until something was heard, at most so long. True: there is something new in ``heard``."""
        if self._set is None:
            return False
        news, limit_ms = False, int(limit_s * 1000)
        while (event := self._next(limit_ms)) is not None:
            limit_ms = 0
            news |= self._hear(event)
        return news

    def _register(self, index: int) -> None:
        kinds = self._nvml.nvmlEventTypeXidCriticalError | self._nvml.nvmlEventTypeDoubleBitEccError
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            wanted = kinds & self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if wanted:
                self._nvml.nvmlDeviceRegisterEvents(handle, wanted, self._set)
        except self._nvml.NVMLError as error:
            log.warning("the driver tells of no faults of a device", device=index, reason=str(error))

    def _next(self, limit_ms: int) -> Any:
        try:
            return self._nvml.nvmlEventSetWait_v2(self._set, limit_ms)
        except self._nvml.NVMLError_Timeout:
            return None
        except self._nvml.NVMLError as error:  # a device has gone: the next look at each says which
            log.warning("the driver cannot be heard", reason=str(error))
            return None

    def _hear(self, event: Any) -> bool:
        reason = self._reason(event)
        try:
            index = int(self._nvml.nvmlDeviceGetIndex(event.device))
        except self._nvml.NVMLError:
            return bool(reason)  # it cannot even say which it is: the next look at each will
        if not reason or index in self.heard:
            return False
        log.error("device fault", device=index, reason=reason)
        self.heard[index] = reason
        return True

    def _reason(self, event: Any) -> str:
        if event.eventType != self._nvml.nvmlEventTypeXidCriticalError:
            return "uncorrected memory error"
        if event.eventData in PROGRAMS_OWN:
            return ""
        meaning = _KNOWN.get(event.eventData, "see NVIDIA's Xid catalogue")
        return f"Xid {event.eventData}: {meaning}"
