"""The devices of a node as its leases see them: which exist, of which type, and which may be used. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hadare.model.devices import Device
from hadare.model.leases import Lease


class Devices:
    """A node's devices with their health; an unfit one stays in the inventory, with the reason."""

    def __init__(self, devices: Iterable[Device], max_devices: int) -> None:
        self._devices = {device.index: device for device in devices}
        self._max_devices = max_devices

    def all(self) -> tuple[Device, ...]:
        return tuple(self._devices[index] for index in sorted(self._devices))

    def fault(self, lease: Lease) -> str:
        """Why the lease cannot have its devices, whoever else wants them, or ''."""
        if len(lease.devices) > self._max_devices:
            return f"a lease has at most {self._max_devices} devices here, not {len(lease.devices)}"
        gang = lease.gang
        if gang is not None and (len(lease.devices), gang.rank) != (1, lease.key.rank):
            return f"rank {lease.key.rank} of a gang has one device and is rank {gang.rank} in its gang"
        if gang is not None and gang.rank >= gang.world:
            return f"there is no rank {gang.rank} in a gang of {gang.world}"
        if len(set(lease.devices)) != len(lease.devices):
            return "a device is named twice"
        return next((fault for index in lease.devices if (fault := self._fault(index, lease.device_type))), "")

    def change(self, index: int, *, healthy: bool, reason: str) -> bool:
        """True if that is news."""
        device = self._devices.get(index)
        if device is None or (device.healthy, device.reason) == (healthy, reason):
            return False
        self._devices[index] = replace(device, healthy=healthy, reason=reason)
        return True

    def _fault(self, index: int, kind: str) -> str:
        device = self._devices.get(index)
        if device is None:
            return f"there is no device {index} here"
        if device.type != kind:
            return f"device {index} is a {device.type}, not a {kind}"
        return "" if device.healthy else f"device {index} is unhealthy: {device.reason}"
