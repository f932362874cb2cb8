"""The control services for simulations."""

from __future__ import annotations

from collections.abc import Awaitable

from hadare.dst.plane import SimPlane
from hadare.dst.weights import SimAverager
from hadare.machines.job_book import TrackerSettings
from hadare.machines.nodes import NodeTimes
from hadare.machines.round_phases import RoundSettings
from hadare.runtime.election import Term
from hadare_allocator.service import Allocator
from hadare_jobtracker.service import JobTracker
from hadare_pricing.service import Pricing


class RealServices:
    """The shells as they run live."""

    def pricing(self, plane: SimPlane) -> Awaitable[None]:
        return Pricing(plane).run()

    def tracker(
        self, plane: SimPlane, averager: SimAverager, settings: TrackerSettings, instance: str, term: Term
    ) -> Awaitable[None]:
        return JobTracker(plane, averager, settings, instance, term).run()

    def allocator(
        self, plane: SimPlane, settings: RoundSettings, instance: str, times: NodeTimes, term: Term, tick_s: float
    ) -> Awaitable[None]:
        return Allocator(plane, settings, instance, times, term, tick_s).run()
