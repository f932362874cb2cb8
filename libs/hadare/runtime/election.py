"""Which of several allocators or trackers acts: the one that holds the newest epoch. Every take-over raises it."""

from __future__ import annotations

from hadare.model.errors import Conflict
from hadare.model.rounds import Leader
from hadare.runtime.backoff import retrying
from hadare.runtime.bus import Table


async def take_over(leaders: Table[Leader], holder: str) -> int:
    """The epoch of ``holder``'s reign, higher than any before. Raises ``Unavailable`` if the store cannot be reached.

    Whoever reigned before finds out at its next compare-and-set, or when its epoch is refused.
    """

    async def claim() -> int:
        known = await leaders.get("")
        if known is None:
            await leaders.create("", Leader(holder=holder, epoch=1))
            return 1
        epoch = known.record.epoch + 1
        await leaders.update("", Leader(holder=holder, epoch=epoch), known.revision)
        return epoch

    return await retrying(claim, what="take over", patience_s=60.0, on=(Conflict,))
