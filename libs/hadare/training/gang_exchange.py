"""Sums the gradients of a gang's ranks, and a few numbers with them, through buffers of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hadare.training.gang import Gang

BUCKET_BYTES = 2**25


@dataclass(slots=True)
class _Bucket:
    """Stretches of gradients, one after the other: (parameter, first, last) of its elements."""

    dtype: torch.dtype
    head: int = 0
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    length: int = 0


class GradientSum:
    """The sum over all ranks of the gradients of a model, which become it, in place.

    Half-precision gradients are summed in float32. A parameter that has a gradient on some ranks only has one on all
    afterwards; one without any has none. Sparse gradients stay sparse.
    """

    def __init__(
        self, gang: Gang, parameters: Sequence[nn.Parameter], numbers: int, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        """``numbers``: how many numbers are summed beside the gradients."""
        self._gang = gang
        self._parameters = list(parameters)
        self._numbers = numbers
        self._buckets = _plan(self._parameters, numbers + 2 * len(self._parameters), bucket_bytes)
        longest: dict[torch.dtype, int] = {}
        for bucket in self._buckets:
            longest[bucket.dtype] = max(longest.get(bucket.dtype, 0), bucket.length)
        self._buffers = {d: torch.zeros(length, dtype=d, device=gang.device) for d, length in longest.items()}

    def __call__(self, numbers: Sequence[float]) -> list[float]:
        """The sums of the numbers; the gradients have become theirs."""
        own = [parameter.grad for parameter in self._parameters]
        dense = [None if grad is None or grad.is_sparse else _flat(grad) for grad in own]
        summed: list[float] = []
        for bucket in self._buckets:
            buffer = self._buffers[bucket.dtype][: bucket.length]
            if bucket.head:
                buffer[: bucket.head] = torch.tensor([*numbers, *_flags(own)], dtype=bucket.dtype)
            _pack(buffer, bucket, dense)
            self._gang.sum(buffer)
            if bucket.head:
                summed = buffer[: bucket.head].tolist()
                self._make_room(summed[self._numbers :], own, dense)
            _unpack(buffer, bucket, dense)
        self._sum_sparse(summed[self._numbers + len(own) :], own)
        return summed[: self._numbers]

    def _make_room(self, flags: Sequence[float], own: Sequence[Tensor | None], dense: list[Tensor | None]) -> None:
        """A gradient of zeros wherever another rank has one that is dense and this has none."""
        for number, parameter in enumerate(self._parameters):
            grad, flat = own[number], dense[number]
            if flags[number] and flat is None:
                parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                dense[number] = _flat(parameter.grad)
            elif grad is not None and flat is not None and not grad.is_contiguous():
                parameter.grad = _shaped(flat, parameter)

    def _sum_sparse(self, flags: Sequence[float], own: Sequence[Tensor | None]) -> None:
        for number, parameter in enumerate(self._parameters):
            if not flags[number]:
                continue
            grad = own[number]
            found = self._gathered(parameter, grad if grad is not None and grad.is_sparse else None)
            others = parameter.grad
            parameter.grad = found if others is None or others.is_sparse else others + found

    def _gathered(self, parameter: nn.Parameter, grad: Tensor | None) -> Tensor:
        """The sum of every rank's sparse gradient, of rows of the parameter (embeddings), as they are."""
        rows, values = _rows(parameter, grad)
        counts = [count for (count,) in self._gang.numbers(len(rows))]
        most = max(counts)
        padded_rows = rows.new_zeros(most, device=self._gang.device)
        padded = values.new_zeros(most, *values.shape[1:], device=self._gang.device)
        padded_rows[: len(rows)], padded[: len(rows)] = rows.to(self._gang.device), values.to(self._gang.device)
        all_rows, all_values = self._gang.gather(padded_rows), self._gang.gather(padded)
        index = torch.cat([part[:count] for part, count in zip(all_rows, counts, strict=True)])
        value = torch.cat([part[:count] for part, count in zip(all_values, counts, strict=True)])
        place = parameter.device
        total = torch.sparse_coo_tensor(index.to(place)[None], value.to(place), parameter.shape, check_invariants=True)
        return total.coalesce()


def _plan(parameters: Sequence[nn.Parameter], head: int, bucket_bytes: int) -> list[_Bucket]:
    """The numbers come first. float64 has buckets of its own; all else goes through float32."""
    first = _Bucket(torch.float32, head=head, length=head)
    buckets, current = [first], {torch.float32: first}
    for number, parameter in enumerate(parameters):
        wide = parameter.dtype in (torch.float64, torch.complex128)
        dtype = torch.float64 if wide else torch.float32
        room = max(1, bucket_bytes // dtype.itemsize)
        begin, size = 0, parameter.numel() * (2 if parameter.is_complex() else 1)
        while begin < size:
            bucket = current.get(dtype)
            if bucket is None or bucket.length - bucket.head >= room:
                bucket = current[dtype] = _Bucket(dtype)
                buckets.append(bucket)
            end = min(size, begin + room - (bucket.length - bucket.head))
            bucket.stretches.append((number, begin, end))
            bucket.length += end - begin
            begin = end
    return buckets


def _flags(own: Sequence[Tensor | None]) -> list[float]:
    """Of each parameter whether it has a dense gradient, then whether it has a sparse one."""
    dense = [float(grad is not None and not grad.is_sparse) for grad in own]
    return dense + [float(grad is not None and grad.is_sparse) for grad in own]


def _flat(grad: Tensor) -> Tensor:
    """All elements in one row: a view, if the memory allows it."""
    grad = grad.detach().contiguous()
    return (torch.view_as_real(grad) if grad.is_complex() else grad).view(-1)


def _shaped(flat: Tensor, parameter: nn.Parameter) -> Tensor:
    """The other way round."""
    if parameter.is_complex():
        return torch.view_as_complex(flat.view(*parameter.shape, 2))
    return flat.view(parameter.shape)


def _pack(buffer: Tensor, bucket: _Bucket, dense: Sequence[Tensor | None]) -> None:
    place, into, out = bucket.head, [], []
    for number, begin, end in bucket.stretches:
        target, grad = buffer[place : place + end - begin], dense[number]
        place += end - begin
        if grad is None:
            target.zero_()
        else:
            into.append(target)
            out.append(grad[begin:end])
    if into:
        torch._foreach_copy_(into, out)


def _unpack(buffer: Tensor, bucket: _Bucket, dense: Sequence[Tensor | None]) -> None:
    place, into, out = bucket.head, [], []
    for number, begin, end in bucket.stretches:
        grad = dense[number]
        if grad is not None:
            into.append(grad[begin:end])
            out.append(buffer[place : place + end - begin])
        place += end - begin
    if into:
        torch._foreach_copy_(into, out)


def _rows(parameter: nn.Parameter, grad: Tensor | None) -> tuple[Tensor, Tensor]:
    """Indices and values of a gradient that is sparse in its first dimension."""
    if grad is None:
        return (
            torch.zeros(0, dtype=torch.int64, device=parameter.device),
            parameter.new_zeros(0, *parameter.shape[1:]).detach(),
        )
    if grad.sparse_dim() != 1:
        raise ValueError(f"a gang sums gradients that are sparse in their first dimension, not in {grad.sparse_dim()}")
    whole = grad.coalesce()
    return whole.indices()[0], whole.values()


@torch.no_grad()
def average_buffers(gang: Gang, model: nn.Module) -> None:
    """Makes each floating-point buffer (the statistics of batch normalisation) the ranks' mean, weighted by shares.

    In delta form about rank 0's, so that what the ranks agree on stays as it is. Other buffers stay each rank's own.
    """
    buffers = [b for b in model.buffers() if b.is_floating_point() and b.numel()]
    if not buffers or gang.world == 1:
        return
    weight = gang.part.shares[gang.rank] / sum(gang.part.shares)
    for buffer in buffers:
        own = buffer.detach().to(gang.device, torch.float64 if buffer.dtype == torch.float64 else torch.float32)
        first = own.clone() if gang.rank == 0 else torch.zeros_like(own)
        gang.sum(first)
        delta = (own - first) * weight
        gang.sum(delta)
        buffer.copy_(first + delta)
