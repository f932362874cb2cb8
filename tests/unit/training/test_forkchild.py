from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from full_disks import no_file_over
from hadare.training.forkchild import BadBase, Unsaved, _saving, failure_of
from hadare.training.task import missing_data
from hadare.training.tensorfile import WeightsError
from hadare.training.trainer import NotFinite
from hadare.training.weights import save_state


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
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory", False),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory", True),
        (WeightsError("the file's tensors are not the model's"), "fetch", False),
        (ModuleNotFoundError("No module named 'x'"), "import", True),
        (BadBase("cannot load v3"), "fetch", False),
        (Unsaved("p1-1.safetensors cannot be written: No space left on device"), "upload", False),
        (OSError(28, "No space left on device"), "exception", False),
        (missing_data("no csv"), "missing_data", True),
    ],
)
def test_an_exception_means_something_to_the_job(error: BaseException, kind: str, node_specific: bool) -> None:
    failure = failure_of(raised(error))
    assert (failure.kind, failure.node_specific) == (kind, node_specific)


@pytest.mark.parametrize(
    ("error", "of_type"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), False),
        (ZeroDivisionError("oops"), False),
    ],
)
def test_too_little_memory_on_a_device_is_a_fault_of_its_type(error: BaseException, of_type: bool) -> None:
    assert failure_of(raised(error)).type_specific is of_type


def test_a_disk_that_does_not_take_the_result_is_no_fault_of_the_job(tmp_path: Path) -> None:
    out = tmp_path / "p1-1.safetensors"
    with (
        no_file_over(10),
        pytest.raises(Unsaved, match=r"p1-1.safetensors cannot be written: .*File too large"),
        _saving(out),
    ):
        save_state(out, nn.Linear(2, 2), None)


def test_a_failing_allocation_of_torch_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    failure = failure_of(caught.value)
    assert (failure.kind, failure.node_specific, failure.type_specific) == ("out_of_memory", True, False)


def test_a_failure_has_the_tail_of_the_traceback() -> None:
    failure = failure_of(raised(ZeroDivisionError("oops")))
    assert failure.message == "ZeroDivisionError: oops"
    assert failure.tail.startswith("Traceback")
    assert "test_forkchild.py" in failure.tail


def test_an_endless_message_is_bounded() -> None:
    failure = failure_of(raised(ValueError("x" * 10**6)))
    assert len(failure.message) <= 4096
    assert len(failure.tail) <= 65536
