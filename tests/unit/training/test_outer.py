"""The outer step, the average of versions and the guard's candidates, on real files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, tensor

from builders_training import Round, a_file
from hadare.forking.outer import AUTO, AVERAGE, DILOCO, Outer
from hadare.training.averaging import ForkFile, Options, consolidate, consolidate_candidates
from hadare.training.exporting import state_dict_of
from hadare.training.tensorfile import Reader, WeightsError
from hadare.training.weights import load_state, save_state

NESTEROV = Options(outer=Outer(rate=0.7, momentum=0.5))


def rounds(folder: Path, changes: list[list[float]], options: Options) -> Path:
    """A version after one fork has added these changes to a parameter ``w`` and a buffer ``var``, round by round."""
    base = a_file(folder / "v0", {"model.w": torch.zeros(2), "model.var": torch.ones(2)}, buffers=("model.var",))
    for number, change in enumerate(changes, start=1):
        reader = Reader(base)
        tensors = {n: reader.tensor(n) + tensor(change) for n in ("model.w", "model.var")}
        fork = a_file(folder / "fork", tensors, buffers=("model.var",))
        version = folder / f"v{number}"
        consolidate(base, [ForkFile(fork=0, path=fork, steps=10)], version, options)
        base = version
    return base


def of(path: Path, name: str) -> list[float]:
    return [float(v) for v in Reader(path).tensor(name).flatten()]


def test_the_outer_step_is_that_of_sgd_with_nesterov_momentum(tmp_path: Path) -> None:
    changes = [[1.0, -2.0], [0.5, 0.0], [-1.0, 3.0]]
    weight = torch.nn.Parameter(torch.zeros(2))
    sgd = torch.optim.SGD([weight], lr=0.7, momentum=0.5, nesterov=True)
    for change in changes:
        weight.grad = -tensor(change)
        sgd.step()
    assert of(rounds(tmp_path, changes, NESTEROV), "model.w") == pytest.approx(weight.tolist())


def test_the_momentum_is_kept_with_the_version(tmp_path: Path) -> None:
    version = rounds(tmp_path, [[1.0, -2.0], [0.5, 0.0]], NESTEROV)
    assert of(version, "outer.momentum.w") == pytest.approx([1.0, -1.0])


def test_buffers_have_no_momentum_and_no_outer_step(tmp_path: Path) -> None:
    version = rounds(tmp_path, [[1.0, 2.0]], NESTEROV)
    assert of(version, "model.var") == [2.0, 3.0]
    assert "outer.momentum.var" not in Reader(version).specs


def test_the_average_keeps_no_momentum(tmp_path: Path) -> None:
    specs = Reader(rounds(tmp_path, [[1.0, 2.0]], Options())).specs
    assert set(specs) == {"model.w", "model.var"}


def test_an_average_of_versions_starts_at_the_first_trained_one_and_follows(tmp_path: Path) -> None:
    version = rounds(tmp_path, [[1.0, 2.0], [1.0, 2.0]], Options(ema_half_life=10))
    assert of(version, "ema.w") == pytest.approx([1.5, 3.0])
    assert of(version, "ema.var") == pytest.approx([2.5, 4.0])
    assert of(version, "model.w") == [2.0, 4.0]


def test_an_average_of_versions_is_of_what_the_outer_step_made(tmp_path: Path) -> None:
    version = rounds(tmp_path, [[1.0, 2.0], [1.0, 2.0]], Options(outer=Outer(rate=2.0), ema_half_life=10))
    assert of(version, "ema.w") == pytest.approx([3.0, 6.0])


def test_an_average_of_versions_may_halve_each_round_whatever_its_steps(tmp_path: Path) -> None:
    version = rounds(tmp_path, [[1.0, 2.0], [2.0, 4.0]], Options(ema_half_life="round"))
    assert of(version, "ema.w") == pytest.approx([2.0, 4.0])


def test_a_step_that_keeps_pace_moves_by_what_the_fastest_fork_does_in_the_long_run(tmp_path: Path) -> None:
    base = Round(tmp_path, {"w": torch.zeros(1)})
    base.fork(10, {"w": tensor([10.0])}).fork(2, {"w": tensor([2.0])})
    base.consolidate(Options(outer=AUTO))
    mean = (10 * 10 + 2 * 2) / 12
    assert float(base.tensor("w")) == pytest.approx(0.5 * (10 / mean) * mean * 1.5)


def test_one_fork_alone_keeps_pace_with_itself(tmp_path: Path) -> None:
    assert of(rounds(tmp_path, [[1.0, 2.0], [1.0, 2.0]], Options(outer=AUTO)), "model.w") == [2.0, 4.0]


def test_the_average_of_versions_can_be_taken_out_in_the_models_types(tmp_path: Path) -> None:
    half, count = torch.zeros(2, dtype=torch.bfloat16), tensor([3])
    made = Round(tmp_path, {"w": half, "n": count}).fork(10, {"w": half + 2, "n": count})
    made.consolidate(Options(ema_half_life=10))
    assert Reader(made.out).specs["ema.w"].dtype == "F32"
    state = state_dict_of(made.out, ema=True)
    assert (state["w"].dtype, state["w"].tolist(), state["n"].tolist()) == (torch.bfloat16, [2.0, 2.0], [3])


def test_a_job_without_an_average_says_how_to_get_one(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(2)}).fork(1, {"w": torch.ones(2)})
    made.consolidate()
    with pytest.raises(WeightsError, match="ema_half_life"):
        state_dict_of(made.out, ema=True)


def test_complex_parameters_have_momentum_and_average(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(3, dtype=torch.complex64)})
    made.fork(10, {"w": torch.full((3,), 1 + 2j, dtype=torch.complex64)})
    made.consolidate(Options(outer=NESTEROV.outer, ema_half_life=10))
    assert torch.allclose(made.tensor("w"), torch.full((3,), 1.05 + 2.1j, dtype=torch.complex64))
    assert torch.allclose(Reader(made.out).tensor("outer.momentum.w"), torch.full((3,), 1 + 2j).to(torch.complex64))


def test_a_version_with_momentum_and_average_loads_as_any_other(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    save_state(tmp_path / "v0", model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_state(tmp_path / "fork", model, optimizer)
    options = Options(outer=DILOCO, ema_half_life=5)
    consolidate(tmp_path / "v0", [ForkFile(fork=0, path=tmp_path / "fork", steps=1)], tmp_path / "v1", options)
    load_state(tmp_path / "v1", model, optimizer)
    assert float(optimizer.state[model.weight]["step"]) == 1.0


def test_the_order_of_the_forks_changes_no_bit_of_momentum_and_average(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.randn(100)})
    for steps in (7, 5, 3):
        made.fork(steps, {"w": torch.randn(100)})
    options = Options(outer=DILOCO, ema_half_life=5)
    made.consolidate(options)
    first = made.out.read_bytes()
    made.files.reverse()
    made.consolidate(options)
    assert made.out.read_bytes() == first


def candidates(folder: Path, forks: list[tuple[int, Tensor]]) -> dict[str, list[float]]:
    made = Round(folder, {"w": torch.zeros(1)})
    for steps, values in forks:
        made.fork(steps, {"w": values})
    found = consolidate_candidates(made.base, made.files, folder)
    return {name: of(path, "model.w") for name, (path, _) in found.items()}


def test_the_guard_has_four_candidates(tmp_path: Path) -> None:
    found = candidates(tmp_path, [(3, tensor([2.0])), (1, tensor([6.0]))])
    assert found == {
        "average": [3.0],
        "longer": [4.5],
        "nesterov": pytest.approx([0.7 * 1.5 * 3.0]),
        "fastest": [2.0],
    }


def test_every_candidate_carries_the_momentum_on(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(1)}).fork(3, {"w": tensor([2.0])}).fork(1, {"w": tensor([6.0])})
    found = consolidate_candidates(made.base, made.files, tmp_path)
    assert {name: of(path, "outer.momentum.w") for name, (path, _) in found.items()} == {
        "average": [3.0],
        "longer": [3.0],
        "nesterov": [3.0],
        "fastest": [2.0],
    }


def test_one_fork_is_its_own_average(tmp_path: Path) -> None:
    assert set(candidates(tmp_path, [(3, tensor([2.0]))])) == {"average", "longer", "nesterov"}


def test_without_a_sound_fork_there_is_the_average_alone_and_nobody_in_it(tmp_path: Path) -> None:
    base = Round(tmp_path, {"w": torch.zeros(1)}).fork(3, {"w": tensor([float("nan")])})
    found = consolidate_candidates(base.base, base.files, tmp_path)
    assert {name: made.accepted for name, (_, made) in found.items()} == {AVERAGE: ()}


def test_a_candidate_whose_step_leads_to_infinity_is_left_out_and_the_others_stand(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(3, {"w": tensor([3e38])}).fork(2, {"w": tensor([3e38])})
    found = consolidate_candidates(made.base, made.files, tmp_path)
    assert (AVERAGE in found, "longer" in found) == (True, False)
    assert not (tmp_path / "longer.safetensors").exists()
    assert all(bool(torch.isfinite(Reader(path).tensor("model.w")).all()) for path, _ in found.values())


def test_no_momentum_is_kept_of_differences_that_are_not_finite(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(3, {"w": tensor([3e38])}).fork(1, {"w": tensor([-3e38])})
    path, done = consolidate_candidates(made.base, made.files, tmp_path)[AVERAGE]
    assert done.rejected == {0: "not finite"}
    assert all(bool(torch.isfinite(Reader(path).tensor(name)).all()) for name in Reader(path).specs)
