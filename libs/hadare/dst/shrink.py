"""Makes a failing scenario small: which faults does it take to break the law?"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations

from hadare.dst.scenario import Fault, Scenario
from hadare.dst.world import Verdict

Run = Callable[[Scenario], Verdict]

_MOST_RUNS = 300
_FEW = 2
"""So many faults are tried in every combination."""


def shrink(failed: Verdict, run: Run) -> Verdict:
    """The smallest verdict found with the same first law broken.

    No fault at all is tried, then each alone, then every two; then halves of the faults are left out, at last single
    ones.

    A scenario that breaks no law is returned as it is.
    """
    if not failed.violations:
        return failed
    return _Shrinking(failed, run).shrunk()


class _Shrinking:
    def __init__(self, failed: Verdict, run: Run) -> None:
        self._best = failed
        self._law = failed.violations[0].law
        self._run = run
        self._runs = 0

    def shrunk(self) -> Verdict:
        few = chain.from_iterable(combinations(self._faults, size) for size in range(_FEW + 1))
        if any(self._still_fails(faults) for faults in few):
            return self._best
        size = max(1, len(self._faults) // 2)
        while self._runs < _MOST_RUNS:
            if self._leave_out(size):
                continue
            if size == 1:
                break
            size //= 2
        return self._best

    @property
    def _faults(self) -> tuple[Fault, ...]:
        return self._best.scenario.faults

    def _leave_out(self, size: int) -> bool:
        """True if ``size`` faults in a row could be left out somewhere."""
        for start in range(0, len(self._faults), size):
            if self._still_fails((*self._faults[:start], *self._faults[start + size :])):
                return True
        return False

    def _still_fails(self, faults: tuple[Fault, ...]) -> bool:
        if self._runs >= _MOST_RUNS:
            return False
        self._runs += 1
        verdict = self._run(self._best.scenario.with_faults(faults))
        if verdict.violations and verdict.violations[0].law == self._law:
            self._best = verdict
            return True
        return False
