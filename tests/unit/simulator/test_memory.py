"""A longer simulation is not a larger one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MEASURE = """
import gc, sys, tracemalloc
sys.path.insert(0, sys.argv[1])
from builders_simulator import a_sim_job, a_sim_node, simulated

def kept_bytes(rounds):
    tracemalloc.start()
    outcome = simulated([a_sim_job(total_steps=rounds * 100)], [a_sim_node()], round_s=10.0, detail=True)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.rounds == rounds
    return held

kept_bytes(20)  # what is imported and cached once
short = kept_bytes(50)
print(kept_bytes(2000) - short)
"""


def test_memory_does_not_grow_with_the_number_of_rounds() -> None:
    """Measured in a process of its own: what other tests left running allocates too."""
    builders = str(Path(__file__).parents[2])
    told = subprocess.run([sys.executable, "-c", MEASURE, builders], check=True, capture_output=True, text=True)
    # Four bytes a round are the time of its decision; so many rounds make little of what numpy keeps once, some 4 kB.
    assert int(told.stdout) < 8 * 1950
