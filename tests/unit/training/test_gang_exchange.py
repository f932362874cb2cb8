from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from builders_gangs import ThreadGang, in_a_gang
from hadare.training.gang_exchange import GradientSum, average_buffers


def parameters(*grads: Tensor | None, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Two parameters of 2×3 and 4 elements, with these gradients."""
    made = [nn.Parameter(torch.zeros(2, 3, dtype=dtype)), nn.Parameter(torch.zeros(4, dtype=dtype))]
    for parameter, grad in zip(made, grads, strict=True):
        parameter.grad = None if grad is None else grad.to(dtype)
    return made


def summed(gang: ThreadGang, own: list[nn.Parameter], *numbers: float, bucket_bytes: int = 2**20) -> list[float]:
    return GradientSum(gang, own, len(numbers), bucket_bytes)(list(numbers))


@pytest.mark.parametrize("bucket_bytes", [4, 12, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_gradients_are_summed_in_buckets_of_any_size(dtype: torch.dtype, bucket_bytes: int) -> None:
    def work(gang: ThreadGang) -> list[nn.Parameter]:
        own = parameters(torch.full((2, 3), gang.rank + 1.0), torch.arange(4.0), dtype=dtype)
        summed(gang, own, 1.0, bucket_bytes=bucket_bytes)
        return own

    for one, other in in_a_gang((1, 1, 1), work):
        assert torch.equal(one.grad, torch.full((2, 3), 6.0, dtype=dtype))
        assert torch.equal(other.grad, 3 * torch.arange(4.0).to(dtype))


def test_numbers_are_summed_beside_them_in_one_go() -> None:
    def work(gang: ThreadGang) -> tuple[list[float], int]:
        return summed(gang, parameters(torch.ones(2, 3), torch.ones(4)), gang.rank + 0.5, 2.0), gang.sums

    assert in_a_gang((1, 1), work) == [([2.0, 4.0], 1)] * 2


def test_a_bucket_is_no_longer_than_is_said() -> None:
    def work(gang: ThreadGang) -> tuple[int, int]:
        summed(gang, parameters(torch.ones(2, 3), torch.ones(4)), 1.0, bucket_bytes=16)
        return gang.sums, gang.longest

    head = 1 + 2 * 2
    assert in_a_gang((1, 1), work) == [(3, head + 4)] * 2


def test_a_parameter_that_one_rank_has_no_gradient_of_has_the_others() -> None:
    def work(gang: ThreadGang) -> list[nn.Parameter]:
        own = parameters(torch.ones(2, 3) if gang.rank else None, None)
        summed(gang, own, 0.0)
        return own

    for one, other in in_a_gang((1, 1, 1), work):
        assert torch.equal(one.grad, torch.full((2, 3), 2.0))
        assert other.grad is None


def test_what_was_summed_before_is_not_the_gradient_of_a_rank_that_has_none_now() -> None:
    def work(gang: ThreadGang) -> nn.Parameter:
        own = parameters(torch.ones(2, 3), torch.ones(4))
        exchange = GradientSum(gang, own, 1)
        exchange([0.0])
        own[0].grad = torch.ones(2, 3) if gang.rank else None
        exchange([0.0])
        return own[0]

    for parameter in in_a_gang((1, 1), work):
        assert torch.equal(parameter.grad, torch.ones(2, 3))


def test_gradients_that_are_not_contiguous_are_summed() -> None:
    def work(gang: ThreadGang) -> nn.Parameter:
        own = parameters(torch.arange(6.0).view(3, 2).T, None)
        summed(gang, own, 0.0)
        return own[0]

    for parameter in in_a_gang((1, 1), work):
        assert torch.equal(parameter.grad, 2 * torch.arange(6.0).view(3, 2).T)


def sparse(rows: list[int], value: float) -> Tensor:
    values = torch.full((len(rows), 3), value)
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, (2, 3), check_invariants=True)


def test_sparse_gradients_stay_sparse_though_a_rank_has_none() -> None:
    def work(gang: ThreadGang) -> nn.Parameter:
        grad = [sparse([0, 0], 1.0), None, sparse([1], 5.0)][gang.rank]
        own = parameters(grad, None)
        summed(gang, own, 0.0)
        return own[0]

    for parameter in in_a_gang((1, 1, 1), work):
        assert parameter.grad.is_sparse
        assert torch.equal(parameter.grad.to_dense(), torch.tensor([[2.0] * 3, [5.0] * 3]))


def test_sparse_and_dense_gradients_of_one_parameter_add_up() -> None:
    def work(gang: ThreadGang) -> nn.Parameter:
        own = parameters(sparse([1], 5.0) if gang.rank else torch.ones(2, 3), None)
        summed(gang, own, 0.0)
        return own[0]

    for parameter in in_a_gang((1, 1), work):
        assert torch.equal(parameter.grad, torch.tensor([[1.0] * 3, [6.0] * 3]))


def test_statistics_are_averaged_by_shares_and_counters_left_alone() -> None:
    def work(gang: ThreadGang) -> nn.BatchNorm1d:
        model = nn.BatchNorm1d(2)
        model.running_mean.fill_(float(gang.rank))
        model.num_batches_tracked.fill_(7 + gang.rank)
        average_buffers(gang, model)
        return model

    first, second = in_a_gang((3, 1), work)
    assert first.running_mean.tolist() == second.running_mean.tolist() == [0.25, 0.25]
    assert int(second.num_batches_tracked) == 8


def test_statistics_that_agree_stay_exactly_as_they_are() -> None:
    before = nn.BatchNorm1d(64)
    before.running_var.uniform_()

    def work(gang: ThreadGang) -> nn.BatchNorm1d:
        model = copy.deepcopy(before)
        average_buffers(gang, model)
        return model

    for model in in_a_gang((5, 3, 9), work):
        assert torch.equal(model.running_var, before.running_var)
