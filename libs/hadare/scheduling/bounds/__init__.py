"""Lower bounds of whole runs: no schedule of a workload, whoever makes it, can end sooner than these say."""

from hadare.scheduling.bounds.fluid import shortest_duration
from hadare.scheduling.bounds.indexed import indexed_mean_jct
from hadare.scheduling.bounds.ordered import ordered_mean_jct
from hadare.scheduling.bounds.pooled import Pooled, best_pooled_mean_jct, pooled_mean_jct
from hadare.scheduling.bounds.workload import Workload

__all__ = [
    "Pooled",
    "Workload",
    "best_pooled_mean_jct",
    "indexed_mean_jct",
    "ordered_mean_jct",
    "pooled_mean_jct",
    "shortest_duration",
]
