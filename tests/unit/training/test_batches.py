from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from hadare.training.batches import Indivisible, fingerprint, rows_of, samples_of


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


def test_rows_of_a_tensor() -> None:
    assert rows_of(torch.arange(6), 2, 4, 6).tolist() == [2, 3]


def test_rows_of_nested_structures_keep_their_kinds() -> None:
    batch = {"pair": Pair(torch.arange(4), torch.arange(8).view(4, 2)), "more": [np.arange(4), (torch.arange(4),)]}
    cut = rows_of(batch, 1, 3, samples_of(batch))
    assert isinstance(cut["pair"], Pair)
    assert cut["pair"].y.tolist() == [[2, 3], [4, 5]]
    assert (cut["more"][0].tolist(), cut["more"][1][0].tolist()) == ([1, 2], [1, 2])


def test_a_list_of_as_many_other_things_is_cut_too() -> None:
    assert rows_of((torch.arange(3), ["a", "b", "c"], "epoch"), 1, 3, 3)[1:] == (["b", "c"], "epoch")


def test_a_scalar_belongs_to_every_part() -> None:
    batch = (torch.arange(4), torch.tensor(0.5))
    assert samples_of(batch) == 4
    assert float(rows_of(batch, 0, 2, 4)[1]) == 0.5


@pytest.mark.parametrize("batch", [(torch.zeros(4), torch.zeros(3)), object(), torch.tensor(1.0)])
def test_what_has_no_common_rows_cannot_be_split(batch: object) -> None:
    with pytest.raises(Indivisible, match=r"Task\.split"):
        samples_of(batch)


def test_a_fingerprint_tells_batches_apart() -> None:
    one, other = torch.zeros(5, 2), torch.zeros(5, 2)
    assert fingerprint(one) == fingerprint(other)
    other[4, 1] = 1e-3
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_batches_of_any_type_have_a_fingerprint(dtype: torch.dtype) -> None:
    assert fingerprint({"x": [torch.ones(3, dtype=dtype), torch.zeros(0, dtype=dtype)]})


def test_a_batch_without_tensors_has_none() -> None:
    assert fingerprint(["a", 1]) == 0
