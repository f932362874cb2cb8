"""Batches of any nested structure of tensors: how many samples they have, and some of these samples alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hadare.model.errors import HadareError

_FINGERPRINT_BYTES = 2**16


class Indivisible(HadareError):
    """A batch cannot be split over the devices of a gang."""


def arrays_of(value: Any) -> Iterator[Tensor | np.ndarray[Any, Any]]:
    """The tensors and arrays in tuples, lists and dicts."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from arrays_of(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from arrays_of(each)


def samples_of(batch: Any) -> int:
    """The length of the first dimension, which all tensors must have in common. Raises ``Indivisible``."""
    lengths = {int(array.shape[0]) for array in arrays_of(batch) if array.ndim > 0}
    if len(lengths) == 1:
        return lengths.pop()
    what = f"its tensors have {sorted(lengths)} rows" if lengths else f"there is no tensor in a {type(batch).__name__}"
    raise Indivisible(f"cannot split a batch over a gang: {what}; override Task.samples and Task.split")


def rows_of(value: Any, start: int, stop: int, samples: int) -> Any:
    """Rows ``start`` to ``stop`` of every tensor, and of lists of other things that are as long as the batch."""
    if isinstance(value, Tensor | np.ndarray):
        return value[start:stop] if value.ndim > 0 else value
    if isinstance(value, dict):
        return {key: rows_of(each, start, stop, samples) for key, each in value.items()}
    if isinstance(value, tuple | list):
        if len(value) == samples and next(arrays_of(value), None) is None:
            return value[start:stop]
        cut = [rows_of(each, start, stop, samples) for each in value]
        if isinstance(value, list):
            return cut
        return type(value)(*cut) if hasattr(value, "_fields") else tuple(cut)
    return value


def fingerprint(batch: Any) -> int:
    """Tells two batches apart: a checksum of the beginning of every tensor; 0 if there is none."""
    found = 0
    for array in arrays_of(batch):
        tensor = torch.as_tensor(array).detach().reshape(-1)
        start = tensor[: _FINGERPRINT_BYTES // max(1, tensor.element_size())].cpu().contiguous()
        found = zlib.crc32(start.view(torch.uint8).numpy().tobytes(), found) if start.numel() else found
    return found
