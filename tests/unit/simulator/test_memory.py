"""A longer simulation is not a larger one."""

from __future__ import annotations

import gc
import tracemalloc

from builders_simulator import a_sim_job, a_sim_node, simulated

ROUND_S = 10.0


def kept_bytes(rounds: int) -> int:
    """What is held when a run of so many rounds has just ended, pictures included."""
    tracemalloc.start()
    outcome = simulated(
        [a_sim_job(total_steps=int(rounds * ROUND_S * 10))], [a_sim_node()], round_s=ROUND_S, detail=True
    )
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.rounds == rounds
    return held


def test_memory_does_not_grow_with_the_number_of_rounds() -> None:
    kept_bytes(20)  # what is imported and cached once
    short, long = kept_bytes(50), kept_bytes(500)
    assert long - short < 16 * 450  # four bytes a round are the time of its decision; any message would be more
