"""Small builders for simulations: plain rates, few nodes, and a run in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hadare.simulator.engine import PlanSeen, Simulation
from hadare.simulator.jobs import SimJob
from hadare.simulator.record import Outcome
from hadare.simulator.settings import Settings, SimNode


def a_sim_job(job_id: str = "job-a", total_steps: int = 36_000, **changes: Any) -> SimJob:
    """Ten steps a second on a V100: an hour of work, if nothing else is said."""
    rates = changes.pop("rates", {"V100": 10.0, "P100": 5.0, "K80": 1.0})
    return SimJob(
        **{
            "job_id": job_id,
            "arrival_s": 0.0,
            "model": "a model",
            "batch_size": 32,
            "total_steps": total_steps,
            "fork_rates": rates,
            "gang_rates": rates,
            **changes,
        }
    )


def a_sim_node(name: str = "n1", **devices: int) -> SimNode:
    return SimNode(name=name, devices=devices or {"V100": 1})


def simulated(
    jobs: Sequence[SimJob],
    nodes: Sequence[SimNode],
    policy: str = "hadare",
    seen: PlanSeen | None = None,
    **settings: Any,
) -> Outcome:
    return Simulation(jobs, nodes, policy, Settings(**{"oracle": True, **settings}), seen).run()


def finish_s(outcome: Outcome, job_id: str = "job-a") -> float:
    finished = outcome.stories[job_id].finish_s
    assert finished is not None
    return finished
