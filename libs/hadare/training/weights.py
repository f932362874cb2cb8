"""A job's state as one safetensors file: the model (``model.…``), the optimiser (``optim.<parameter>.<key>``), and
JSON for what is not a tensor. Nothing is ever pickled.

Tied tensors are stored once, under the first of their names; the others are in the file's ``aliases``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from hadare.forking.consolidation import MODEL_PREFIX, OPTIMIZER_PREFIX, Scalar
from hadare.training.tensorfile import NAMES, Reader, TensorSpec, WeightsError, Writer, layout

# Kept with a version beside the model and optimiser, by the model's names: the outer momentum, the average of versions.
MOMENTUM_PREFIX = "outer.momentum."
EMA_PREFIX = "ema."

# Wrappers that training code puts around a model; they are not part of its tensors' names.
_WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeta:
    """The JSON part of a weights file.

    ``spec`` is ``spec_hash`` of the model's tensors. ``buffers`` names those that are not parameters, ``wide_complex``
    the complex128 ones, which are stored as pairs of F64. ``scalars`` are optimiser states that are not tensors.
    ``scaler`` is the scale of a mixed-precision loss, 0 without one. ``user`` is the writer's own (job, version, …).
    ``deltas`` names tensors that are stored as changes of the base, ``rounded`` others that were float32, both for the
    way to the tracker only (``transport``), and ``transport_error`` what that cost.
    """

    schema: int = 1
    spec: str = ""
    aliases: dict[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    wide_complex: tuple[str, ...] = ()
    scalars: dict[str, Scalar] = field(default_factory=dict)
    scaler: float = 0.0
    base: str = ""
    deltas: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    transport_error: float = 0.0
    user: dict[str, Scalar] = field(default_factory=dict)


def read_meta(reader: Reader) -> FileMeta:
    """The typed JSON part. Raises ``WeightsError`` with the path of what is wrong."""
    try:
        return msgspec.convert(reader.meta, FileMeta)
    except msgspec.ValidationError as error:
        raise WeightsError(f"bad metadata: {error}") from error


def meta_document(meta: FileMeta) -> dict[str, object]:
    document: dict[str, object] = msgspec.to_builtins(meta)
    return document


def spec_hash(specs: Mapping[str, TensorSpec], aliases: Mapping[str, str]) -> str:
    """What forks must agree on: the model's tensor names, dtypes, shapes and ties. The optimiser's states come later
    in a job than its model, so they are not part of it."""
    rows = [[name, spec.dtype, list(spec.shape)] for name, spec in sorted(specs.items()) if _of_model(name)]
    text = json.dumps([rows, sorted(aliases.items())], separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _of_model(name: str) -> bool:
    return name.startswith(MODEL_PREFIX)


def save_state(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    meta: FileMeta | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> int:
    """Writes model and optimiser, and says how many bytes.

    ``meta`` may carry ``user``, ``base`` and ``scaler``; the rest is filled in.

    ``extra``: more tensors, by names of their own (``artifacts``).
    """
    given = meta or FileMeta()
    tensors, aliases = _model_tensors(model)
    parameters = {MODEL_PREFIX + _plain(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    buffers = tuple(sorted(name for name in tensors if name not in parameters))
    states = dict(_optimizer_items(model, optimizer))
    tensors.update({name: value for name, value in states.items() if isinstance(value, Tensor)})
    stored = {name: _stored(name, tensor) for name, tensor in {**tensors, **(extra or {})}.items()}
    specs = {name: TensorSpec(NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in stored.items()}
    full = replace(
        given,
        spec=spec_hash(specs, aliases),
        aliases=aliases,
        buffers=buffers,
        wide_complex=tuple(sorted(n for n, tensor in tensors.items() if tensor.dtype == torch.complex128)),
        scalars={name: value for name, value in states.items() if not isinstance(value, Tensor)},
    )
    with (writer := Writer(path, specs, meta_document(full))):
        for name in layout(specs):
            writer.append(stored[name])
    return writer.bytes


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> FileMeta:
    """Loads a file into a model and, if given, its optimiser, in place.

    Raises ``WeightsError`` if the file's model tensors are not exactly the model's. Hyperparameters of the optimiser
    stay as they are: they are the job's config, not its state.
    """
    reader = Reader(path)
    meta = read_meta(reader)
    _load_model(reader, meta, model)
    if optimizer is not None:
        _load_optimizer(reader, meta, model, optimizer)
    return meta


@torch.no_grad()
def load_average(path: Path, model: nn.Module) -> bool:
    """Puts the average of versions that a file holds into the model; false, and nothing is changed, if it holds none.

    Integers stay as they are in the model. Raises ``WeightsError`` if it is another model's.
    """
    reader = Reader(path)
    meta = read_meta(reader)
    kept = {MODEL_PREFIX + name.removeprefix(EMA_PREFIX): name for name in reader.specs if name.startswith(EMA_PREFIX)}
    targets, _ = _model_tensors(model)
    if odd := sorted(set(kept) - set(targets)):
        raise WeightsError(f"the average of versions is not of this model: {odd[:3]}")
    for name, stored in kept.items():
        value = reader.tensor(stored)
        targets[name].copy_(torch.view_as_complex(value) if name in meta.wide_complex else value)
    return bool(kept)


def load_model(path: Path, model: nn.Module) -> None:
    """Loads a file into a model alone. Raises ``WeightsError`` if the file's model tensors are not exactly these."""
    reader = Reader(path)
    _load_model(reader, read_meta(reader), model)


@torch.no_grad()
def _load_model(reader: Reader, meta: FileMeta, model: nn.Module) -> None:
    targets, aliases = _model_tensors(model)
    stored = {name for name in reader.specs if _of_model(name)}
    if stored != set(targets) or meta.aliases != aliases:
        odd = sorted(stored ^ set(targets)) or sorted({*meta.aliases} ^ {*aliases})
        raise WeightsError(f"the file's tensors are not the model's: {odd[:3]} …")
    for name, target in targets.items():
        value = _restored(reader, meta, name)
        if value.shape != target.shape or value.dtype != target.dtype:
            raise WeightsError(f"{name} is {value.dtype} {tuple(value.shape)}, the model has {tuple(target.shape)}")
        target.copy_(value)


def _load_optimizer(reader: Reader, meta: FileMeta, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    states: dict[int, dict[str, Any]] = {}
    numbers = {name: number for number, (name, _) in enumerate(_parameters(model, optimizer))}
    for name in [n for n in reader.specs if n.startswith(OPTIMIZER_PREFIX)] + list(meta.scalars):
        parameter, _, key = name.removeprefix(OPTIMIZER_PREFIX).rpartition(".")
        if parameter not in numbers:
            raise WeightsError(f"the optimiser has no parameter {parameter!r}")
        value = meta.scalars[name] if name in meta.scalars else _restored(reader, meta, name).clone()
        states.setdefault(numbers[parameter], {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    _keep_types(optimizer, [parameter for _, parameter in _parameters(model, optimizer)], states)


def _keep_types(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], states: Mapping[int, Mapping[str, Any]]
) -> None:
    """torch gives every loaded state but ``step`` the type of its parameter: counters would become fractions, and
    moments of a model in half precision lose theirs."""
    for number, state in states.items():
        loaded = optimizer.state[parameters[number]]
        for key, value in state.items():
            if isinstance(value, Tensor) and key != "step" and loaded[key].dtype != value.dtype:
                loaded[key] = value.to(parameters[number].device)


def _restored(reader: Reader, meta: FileMeta, name: str) -> Tensor:
    value = reader.tensor(name)
    return torch.view_as_complex(value) if name in meta.wide_complex else value


def _stored(name: str, tensor: Tensor) -> Tensor:
    _check_layout(name, tensor)
    if tensor.dtype == torch.complex128:
        return torch.view_as_real(tensor.detach())
    if tensor.dtype not in NAMES:
        raise ValueError(f"{name} has the unsupported type {tensor.dtype}")
    return tensor.detach()


def _model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Persistent tensors by their plain name, each memory once, and the other names of those that are tied."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for raw, tensor in sorted(model.state_dict(keep_vars=True).items()):
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{raw} is extra state of type {type(tensor).__name__}: only tensors can be consolidated")
        name = MODEL_PREFIX + _plain(raw)
        _check_layout(name, tensor)
        first = seen.setdefault(_memory(tensor), name) if tensor.numel() else name
        if first == name:
            tensors[name] = tensor
        else:
            aliases[name] = first
    return tensors, aliases


def _check_layout(name: str, tensor: Tensor) -> None:
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} is sparse: only dense tensors can be consolidated")


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _plain(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def _parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    """The optimiser's parameters in the order of its numbering, named as in the model."""
    names = {id(parameter): _plain(name) for name, parameter in model.named_parameters()}
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            yield names.get(id(parameter), f"group{g}.{i}"), parameter


def _optimizer_items(
    model: nn.Module, optimizer: torch.optim.Optimizer | None
) -> Iterator[tuple[str, Tensor | Scalar]]:
    if optimizer is None:
        return
    for name, parameter in _parameters(model, optimizer):
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if value is None:
                continue
            if not isinstance(value, Tensor | bool | int | float | str):
                raise ValueError(f"optimiser state {key!r} of {name} is a {type(value).__name__}")
            yield f"{OPTIMIZER_PREFIX}{name}.{key}", value
