"""What user code implements: a ``Task`` builds a model, its optimiser and its data, and says what loss and quality are.

The trainer owns the loop, the device, precision, the learning-rate schedule and the weights files.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from hadare.model.errors import HadareError, text_of
from hadare.model.leases import Failure
from hadare.training.artifacts import artifacts
from hadare.training.batches import rows_of, samples_of

Batch = TypeVar("Batch")

Precision = Literal["full", "amp"]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a job's ``config`` that the trainer reads itself; a task does not see them.

    ``precision: amp`` is autocast (float16 with loss scaling on CUDA devices without bfloat16, else bfloat16).
    ``accumulate`` steps make one optimiser update. ``batch_norm_batches``: so many batches measure the statistics of
    BatchNorm layers anew whenever a version is loaded; 0: they are the forks' averaged.
    """

    precision: Precision = "full"
    accumulate: int = 1
    batch_norm_batches: int = 0

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise ValueError("accumulate must be at least 1")
        if self.batch_norm_batches < 0:
            raise ValueError("batch_norm_batches must be at least 0")


class Task(ABC, Generic[Batch]):
    """A model and how to train it. One instance lives in one fork; the same class runs in every fork of the job.

    ``metric`` names the entry of ``evaluate``'s result that the job is judged by, ``better`` its direction.
    """

    metric: ClassVar[str] = "loss"
    better: ClassVar[Literal["higher", "lower"]] = "lower"

    def __init__(self, config: Mapping[str, Any], batch_size: int, seed: int) -> None:
        """``batch_size`` samples are a step. ``seed`` is the job's: the same in all forks."""
        self.config = dict(config)
        self.batch_size = batch_size
        self.seed = seed

    @property
    def artifacts(self) -> Path:
        """A folder for files to keep beside the model: pictures, vocabularies, … At most 256, 16 MiB together."""
        return artifacts()

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new model on the CPU. torch's generator has been seeded with the job's seed."""

    @abstractmethod
    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A new optimiser for ``model``, whose parameters are on their device by now."""

    @abstractmethod
    def batches(self, data_seed: int) -> Iterator[Batch]:
        """Batches of ``batch_size`` samples in an order that ``data_seed`` alone decides.

        Never the same order for two seeds. If it ends, the trainer asks again with a seed derived from this one.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of the batch, a scalar to differentiate."""

    @abstractmethod
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Metrics of the model, which is in evaluation mode; gradients are off. Deterministic."""

    def learning_rate_factor(self, position: float) -> float:
        """What the optimiser's learning rates are multiplied by at ``position`` (0…1) of the job's budget."""
        del position
        return 1.0

    def to_device(self, batch: Batch, device: torch.device) -> Batch:
        """The batch on ``device``. Handles tensors in tuples, lists and dicts; override it for other batches."""
        moved: Batch = move(batch, device)
        return moved

    # For gangs, whose devices take parts of each batch. See docs/explanation/gangs.md.

    def samples(self, batch: Batch) -> int:
        """How many samples a batch has: by default the first dimension of its tensors."""
        return samples_of(batch)

    def split(self, batch: Batch, start: int, stop: int) -> Batch:
        """Samples ``start`` to ``stop`` of a batch. Handles tensors in tuples, lists and dicts, by their rows."""
        part: Batch = rows_of(batch, start, stop, self.samples(batch))
        return part

    def weight(self, batch: Batch) -> float:
        """What ``loss`` is the mean over: samples, unless overridden (of a language model, say, tokens that count)."""
        return self.samples(batch)


def move(value: Any, device: torch.device) -> Any:
    """Tensors of a nested structure, on ``device``; anything else unchanged."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        moved = [move(v, device) for v in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    if isinstance(value, list):
        return [move(v, device) for v in value]
    if isinstance(value, dict):
        return {k: move(v, device) for k, v in value.items()}
    return value


class WorkloadError(HadareError):
    """A workload cannot be used here; ``failure`` says why in the words of a lease's result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def missing_data(what: str) -> WorkloadError:
    """For tasks: the data set is not on this node, another node may have it."""
    return WorkloadError(Failure(kind="missing_data", message=what[:4096], node_specific=True))


def load_workload(workload: str) -> Any:
    """What ``pkg.module:Name`` names: a ``Task`` class, or a script's function.

    Raises ``WorkloadError`` (kind ``import``) if it is not there.
    """
    module_name, _, name = workload.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise _not_importable(workload, f"{type(error).__name__}: {text_of(error)}") from error
    found = getattr(module, name, None)
    if found is None:
        raise _not_importable(workload, f"{module_name} has no {name!r}")
    fits = issubclass(found, Task) if isinstance(found, type) else callable(found)
    if not fits:
        raise _not_importable(workload, f"{name} is neither a hadare.training.task.Task nor a function")
    return found


def load_task_class(workload: str) -> type[Task[Any]]:
    """The class that ``pkg.module:Class`` names. Raises ``WorkloadError`` (kind ``import``) if it is not one."""
    found = load_workload(workload)
    if not isinstance(found, type):
        raise _not_importable(workload, "it is a function, not a hadare.training.task.Task")
    return found


def _not_importable(workload: str, why: str) -> WorkloadError:
    message = f"cannot import {workload} here: {why}"
    return WorkloadError(Failure(kind="import", message=message[:4096], node_specific=True))


def build_task(workload: str, config: Mapping[str, Any], batch_size: int, seed: int) -> tuple[Task[Any], RunOptions]:
    """The task and the options that the trainer takes out of its config."""
    own = {name: config[name] for name in RunOptions.__struct_fields__ if name in config}
    options = msgspec.convert(own, RunOptions)
    rest = {name: value for name, value in config.items() if name not in own}
    return load_task_class(workload)(rest, batch_size, seed), options


def package_file(package: str, relative: str, *, extra: str = "workloads") -> Path:
    """A data file inside an installed package. Raises ``missing_data``, which says what installs it."""
    path = package_folder(package, extra=extra) / relative
    if not path.is_file():
        raise missing_data(f"package {package} has no {relative} here: pip install 'hadare[{extra}]'")
    return path


def package_folder(package: str, *, extra: str = "workloads") -> Path:
    """Where a package is installed, found without importing it. Raises ``missing_data``."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        raise missing_data(f"package {package} is not installed: {error}") from error
    if spec is None or not spec.submodule_search_locations:
        raise missing_data(f"package {package} is not installed on this node: pip install 'hadare[{extra}]'")
    return Path(next(iter(spec.submodule_search_locations)))
