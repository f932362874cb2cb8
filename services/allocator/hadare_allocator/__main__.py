"""Starts the allocator."""

from __future__ import annotations

import socket
from importlib.metadata import entry_points

from hadare.machines.cluster import Costs
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.runtime.bus import Backplane
from hadare.runtime.service import run
from hadare.scheduling.policies import ENTRY_POINT_GROUP, register
from hadare_allocator.config import AllocatorConfig
from hadare_allocator.service import Allocator


async def main(backplane: Backplane, config: AllocatorConfig) -> None:
    for found in entry_points(group=ENTRY_POINT_GROUP):
        register(found.load())
    settings = RoundSettings(
        epoch=0,  # set when the allocator has taken over
        round_s=config.round_s,
        policy=config.policy,
        utility=config.utility,
        grace_s=config.grace,
        settle_s=config.settle_s,
        keep_rounds=config.keep_rounds,
        boundary_s=config.boundary,
        costs=Costs(restart_s=config.restart_s, transfer_bytes_s=config.transfer_mb_s * 1e6),
    )
    times = NodeTimes(suspect_s=config.suspect_s, lost_s=config.lost_s)
    await Allocator(backplane, settings, config.instance or f"allocator-{socket.gethostname()}", times).run()


if __name__ == "__main__":
    run("allocator", AllocatorConfig, main)
