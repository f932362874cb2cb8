from __future__ import annotations

import pytest
import torch

from hadare.training.forkchild import BadBase, failure_of
from hadare.training.task import missing_data
from hadare.training.trainer import NotFinite


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - any of them
        return caught


@pytest.mark.parametrize(
    ("error", "kind", "node_specific"),
    [
        (ZeroDivisionError("oops"), "exception", False),
        (NotFinite("the loss is nan"), "not_finite", False),
        (MemoryError(), "out_of_memory", True),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory", True),
        (ModuleNotFoundError("No module named 'x'"), "import", True),
        (BadBase("cannot load v3"), "fetch", False),
        (missing_data("no csv"), "missing_data", True),
    ],
)
def test_an_exception_means_something_to_the_job(error: BaseException, kind: str, node_specific: bool) -> None:
    failure = failure_of(raised(error))
    assert (failure.kind, failure.node_specific) == (kind, node_specific)


def test_a_failure_has_the_tail_of_the_traceback() -> None:
    failure = failure_of(raised(ZeroDivisionError("oops")))
    assert failure.message == "ZeroDivisionError: oops"
    assert failure.tail.startswith("Traceback")
    assert "test_forkchild.py" in failure.tail


def test_an_endless_message_is_bounded() -> None:
    failure = failure_of(raised(ValueError("x" * 10**6)))
    assert len(failure.message) <= 4096
    assert len(failure.tail) <= 65536
