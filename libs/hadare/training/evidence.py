"""What the kernel learns of forks while it averages them: whether they are sound, how far they went, how they agree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hadare.forking.consolidation import Evidence
from hadare.model.errors import HadareError


class Unsound(HadareError):
    """These forks hold a value that is not finite: their mean is worth nothing."""

    def __init__(self, forks: Iterable[int]) -> None:
        self.forks = tuple(sorted(forks))
        super().__init__(f"forks {self.forks} are not finite")


class Ledger:
    """Squares of the forks' deltas from the base, and their products with the mean delta, over all parameters.

    A fork's delta is known by its distance e from the leader and the leader's own delta l:
    ``‖e + l‖² = ‖e‖² + 2 e·l + ‖l‖²``.
    """

    def __init__(self, steps: Mapping[int, int], leader: int) -> None:
        self._steps = steps
        self._leader = leader
        self._squares = dict.fromkeys(steps, 0.0)
        self._products = dict.fromkeys(steps, 0.0)
        self._mean_square = 0.0

    def add(self, rows: Tensor, offset: Tensor, shares: Sequence[float]) -> bool:
        """One chunk. ``rows``: the others' e in order of their ids, then l; ``offset``: how far the mean is from the
        leader, Σ w e of the others' ``shares`` w. False if it was left out, for a number in it is not finite or too
        large for its square to be."""
        *towards, length = torch.mv(rows, rows[-1]).tolist()
        # The mean delta is offset + l.
        *along, common = (o + t for o, t in zip(torch.mv(rows, offset).tolist(), [*towards, length], strict=True))
        own = torch.linalg.vector_norm(rows[:-1], dim=1).square().tolist()
        mean = common + sum(w * product for w, product in zip(shares, along, strict=True))
        if not math.isfinite(length + mean + sum(own) + sum(towards) + sum(along)):
            return False
        others = (fork for fork in self._steps if fork != self._leader)
        for fork, square, product, with_mean in zip(others, own, towards, along, strict=True):
            self._squares[fork] += max(0.0, square + 2 * product + length)
            self._products[fork] += with_mean + common
        self._squares[self._leader] += length
        self._products[self._leader] += common
        self._mean_square += max(0.0, mean)
        return True

    def add_squares(self, squares: Mapping[int, float]) -> None:
        """One chunk whose numbers are finite but huge: only the lengths count."""
        for fork, square in squares.items():
            self._squares[fork] += square

    def evidence(self, fork: int) -> Evidence:
        norm = math.sqrt(self._squares[fork])
        return Evidence(fork=fork, steps=self._steps[fork], finite=True, norm=norm)

    def agreement(self, fork: int) -> float:
        """Cosine of the fork's delta with the mean delta; 0 if one of them is zero."""
        length = math.sqrt(self._squares[fork]) * math.sqrt(self._mean_square)
        return max(-1.0, min(1.0, self._products[fork] / length)) if length > 0 else 0.0


def check_sound(parts: Mapping[int, Tensor | None]) -> None:
    """Raises ``Unsound`` naming the forks of which a value is not finite."""
    broken = [fork for fork, part in parts.items() if part is not None and not bool(torch.isfinite(part).all())]
    if broken:
        raise Unsound(broken)


def squares_in_double(parts: Mapping[int, Tensor | None], origin: Tensor) -> dict[int, float]:
    """‖part − origin‖² of each, where single precision overflows."""
    wide = origin.double()
    return {fork: float(torch.sum((part.double() - wide) ** 2)) for fork, part in parts.items() if part is not None}
