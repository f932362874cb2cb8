"""What an exception that leaves a fork means to its job."""

from __future__ import annotations

import traceback

import torch

from hadare.model.errors import text_of
from hadare.model.leases import Failure, FailureKind
from hadare.training.gang import GangBroken
from hadare.training.granted import NotFinite
from hadare.training.task import WorkloadError
from hadare.training.tensorfile import WeightsError

_TAIL_CHARACTERS = 8000
# What torch says when memory is short without raising its own exception for it.
_HOST_ALLOCATOR = "DefaultCPUAllocator"
_MEMORY_SIGNS = (_HOST_ALLOCATOR, "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


class BadBase(Exception):
    """The version that the agent named cannot be loaded."""


class Unsaved(Exception):
    """What was trained cannot be written: the node's disk is full, say."""


def failure_of(error: BaseException) -> Failure:
    """What an exception of a fork means to its job.

    A device's memory is the same on every device of its type; the host's, which emulated devices use, is the node's.
    """
    tail = "".join(traceback.format_exception(error))[-_TAIL_CHARACTERS:]
    if isinstance(error, WorkloadError):
        return error.failure
    kind = _kind_of(error)
    message = f"{type(error).__name__}: {text_of(error)}"[:4096]
    of_type = kind == "out_of_memory" and not _of_host(error)
    of_node = kind in ("import", "out_of_memory") and not of_type
    return Failure(kind=kind, message=message, tail=tail, node_specific=of_node, type_specific=of_type)


def _kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "out_of_memory"
    if isinstance(error, RuntimeError) and any(sign in text_of(error) for sign in _MEMORY_SIGNS):
        return "out_of_memory"
    if isinstance(error, NotFinite):
        return "not_finite"
    if isinstance(error, GangBroken):
        return "gang"
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, Unsaved):
        return "upload"
    return "fetch" if isinstance(error, BadBase | WeightsError) else "exception"


def _of_host(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or _HOST_ALLOCATOR in text_of(error)
