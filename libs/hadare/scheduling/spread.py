"""What is left of a gang's rate when it spans nodes, from measured data, until the job's own is known.

The table (``hadare/tables/gang_spread.csv``) holds geometric means, over batch sizes and device types, of the ratio of
unconsolidated to consolidated throughput that Gavel (OSDI'20, MIT licence, commit c4fa4009) published for gangs of 2, 4
and 8. The row without a model is the mean over all. Single cells scatter widely (0.1 to 1.35 for gangs of 8): the loss
depends on the network, which no table knows.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

ANY_MODEL = ""


def spread_factor(gang: int, model: str = ANY_MODEL) -> float:
    """Rate of a gang that spans nodes over that of one on a single node, at most 1; 1 for a single device.

    Of gang sizes that were not measured the next smaller one's counts. A model that the table does not know is taken
    for the mean of all.
    """
    if gang < 2:
        return 1.0
    table = _table()
    known = model if any(name == model for name, _ in table) else ANY_MODEL
    size = max(n for name, n in table if name == known and n <= gang)
    return min(1.0, table[known, size])


@lru_cache(maxsize=1)
def _table() -> Mapping[tuple[str, int], float]:
    text = resources.files("hadare.tables").joinpath("gang_spread.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return MappingProxyType({(row["model"], int(row["gang"])): float(row["factor"]) for row in rows})
