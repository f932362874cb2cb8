"""Starts the job tracker."""

from __future__ import annotations

import asyncio
import socket

from hadare.machines.job_book import TrackerSettings
from hadare.runtime.bus import Backplane
from hadare.runtime.service import run
from hadare.wire.subjects import WEIGHTS
from hadare_jobtracker.averager import WeightsAverager
from hadare_jobtracker.config import JobTrackerConfig
from hadare_jobtracker.service import JobTracker


async def main(backplane: Backplane, config: JobTrackerConfig) -> None:
    averager = WeightsAverager(backplane.objects(WEIGHTS), config.work_dir, config.averaging)
    settings = TrackerSettings(
        keep_versions=config.keep_versions,
        side_lease_s=config.side_lease_s,
        sweep_s=config.sweep_s,
        guard_s=config.guard_s,
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(averager.warm_up())
        await JobTracker(backplane, averager, settings, config.instance or f"jobtracker-{socket.gethostname()}").run()


if __name__ == "__main__":
    run("jobtracker", JobTrackerConfig, main)
