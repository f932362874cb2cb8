"""Every rule of the consolidation, on real files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn, tensor

from builders_training import Round, a_file
from hadare.forking.outer import Outer
from hadare.training.averaging import ForkFile, Options, consolidate
from hadare.training.tensorfile import Reader
from hadare.training.weights import load_state, read_meta, save_state


def test_the_version_is_the_mean_weighted_by_steps(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([1.0, 1.0])})
    made.fork(300, {"w": tensor([2.0, 1.0])}).fork(100, {"w": tensor([1.0, 5.0])})
    result = made.consolidate()
    assert made.tensor("w").tolist() == [1.75, 2.0]
    assert [a.weight for a in result.accepted] == [0.75, 0.25]


def test_one_fork_alone_is_the_version_bit_for_bit(tmp_path: Path) -> None:
    values = torch.randn(1000) * 1e-3
    made = Round(tmp_path, {"w": torch.randn(1000)}).fork(7, {"w": values})
    made.consolidate()
    assert torch.equal(made.tensor("w"), values)


def test_a_tensor_that_all_forks_agree_on_is_kept_bit_for_bit(tmp_path: Path) -> None:
    frozen, moved = torch.randn(1000), torch.randn(1000)
    made = Round(tmp_path, {"w": frozen, "v": torch.zeros(1000)})
    for steps in (1000, 600, 400, 300, 100):
        made.fork(steps, {"w": frozen, "v": moved})
    made.consolidate()
    assert torch.equal(made.tensor("w"), frozen)
    assert torch.equal(made.tensor("v"), moved)


def test_the_outer_rate_scales_the_mean_delta(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([1.0])}).fork(1, {"w": tensor([2.0])}).fork(1, {"w": tensor([4.0])})
    made.consolidate(Options(outer=Outer(rate=0.5)))
    assert made.tensor("w").tolist() == [2.0]


def test_the_outer_rate_leaves_buffers_alone(tmp_path: Path) -> None:
    made = Round(tmp_path, {"var": tensor([1.0])}, buffers=("var",)).fork(1, {"var": tensor([0.2])})
    made.consolidate(Options(outer=Outer(rate=2.0)))
    assert made.tensor("var").tolist() == pytest.approx([0.2])


def test_running_statistics_are_averaged_like_weights(tmp_path: Path) -> None:
    made = Round(tmp_path, {"norm.running_var": tensor([1.0])}, buffers=("norm.running_var",))
    made.fork(3, {"norm.running_var": tensor([2.0])}).fork(1, {"norm.running_var": tensor([6.0])})
    made.consolidate()
    assert made.tensor("norm.running_var").tolist() == [3.0]


def test_a_counter_adds_up_what_the_forks_counted(tmp_path: Path) -> None:
    name = "norm.num_batches_tracked"
    made = Round(tmp_path, {name: tensor(100)}).fork(5, {name: tensor(105)}).fork(3, {name: tensor(103)})
    made.consolidate()
    assert made.tensor(name).item() == 108


def test_a_large_integer_is_not_rounded(tmp_path: Path) -> None:
    value = tensor([2**53 + 1])
    made = Round(tmp_path, {"ids": value}).fork(5, {"ids": value}).fork(3, {"ids": value})
    result = made.consolidate()
    assert made.tensor("ids").tolist() == [2**53 + 1]
    assert result.notes == ()


def test_integers_that_differ_are_the_largest_forks_and_a_note_says_so(tmp_path: Path) -> None:
    made = Round(tmp_path, {"ids": tensor([1])}).fork(3, {"ids": tensor([4])}).fork(5, {"ids": tensor([7])})
    result = made.consolidate()
    assert made.tensor("ids").tolist() == [7]
    assert "model.ids differs" in result.notes[0]


def test_a_boolean_mask_is_followed_not_averaged(tmp_path: Path) -> None:
    made = Round(tmp_path, {"mask": tensor([True, True])})
    made.fork(1, {"mask": tensor([True, True])}).fork(2, {"mask": tensor([True, False])})
    made.consolidate()
    assert made.tensor("mask").tolist() == [True, False]


def test_a_tensor_without_dimensions_keeps_none(tmp_path: Path) -> None:
    made = Round(tmp_path, {"scale": tensor(1.0)}).fork(1, {"scale": tensor(2.0)}).fork(1, {"scale": tensor(3.0)})
    made.consolidate()
    assert made.tensor("scale").shape == ()
    assert made.tensor("scale").item() == 2.5


def test_an_empty_tensor_stays_empty(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(0, 3)}).fork(1, {"w": torch.zeros(0, 3)})
    made.consolidate()
    assert made.tensor("w").shape == (0, 3)


def test_half_precision_is_summed_in_single_and_rounded_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    forks = [torch.randn(4096).bfloat16() for _ in range(5)]
    steps = [1000, 600, 400, 300, 100]
    made = Round(tmp_path, {"w": torch.zeros(4096).bfloat16()})
    for n, values in zip(steps, forks, strict=True):
        made.fork(n, {"w": values})
    made.consolidate()
    exact = sum(n * v.double() for n, v in zip(steps, forks, strict=True)) / sum(steps)
    assert made.tensor("w").dtype == torch.bfloat16
    off_by_more_than_a_rounding = (made.tensor("w").double() - exact).abs() > exact.abs() * 2**-8 + 1e-6
    assert not off_by_more_than_a_rounding.any()


def test_half_precision_does_not_overflow_by_step_counts(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([300.0]).half()})
    made.fork(5000, {"w": tensor([300.0]).half()}).fork(5000, {"w": tensor([302.0]).half()})
    made.consolidate()
    assert made.tensor("w").tolist() == [301.0]


def test_double_precision_is_averaged_in_double(tmp_path: Path) -> None:
    small = 1.0 + 2**-40
    made = Round(tmp_path, {"w": tensor([1.0]).double()})
    made.fork(1, {"w": tensor([small], dtype=torch.float64)}).fork(1, {"w": tensor([1.0]).double()})
    made.consolidate()
    assert made.tensor("w").item() == 1.0 + 2**-41


def test_complex_numbers_are_averaged_by_their_parts(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0j, 0j]).to(torch.complex64)})
    made.fork(3, {"w": tensor([4 + 0j, 0j]).to(torch.complex64)}).fork(1, {"w": tensor([0j, 8j]).to(torch.complex64)})
    made.consolidate()
    assert made.tensor("w").tolist() == [3 + 0j, 2j]


def test_a_fork_with_nan_is_dropped_and_the_rest_reweighted(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])})
    made.fork(900, {"w": tensor([float("nan")])}).fork(50, {"w": tensor([2.0])}).fork(50, {"w": tensor([4.0])})
    result = made.consolidate()
    assert made.tensor("w").tolist() == [3.0]
    assert result.rejected == {0: "not finite"}


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["optim.w.exp_avg", "optim.w.max_exp_avg_sq"])
def test_a_broken_optimiser_state_rejects_its_fork(tmp_path: Path, name: str, value: float) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])})
    made.fork(9, {"w": tensor([1.0]), name: tensor([value])}).fork(1, {"w": tensor([2.0]), name: tensor([0.5])})
    assert list(made.consolidate().rejected) == [0]


def test_huge_but_finite_numbers_are_finite(tmp_path: Path) -> None:
    """Their square overflows float32."""
    huge = tensor([1e30])
    made = Round(tmp_path, {"w": huge}, buffers=("w",)).fork(1, {"w": huge}).fork(1, {"w": huge})
    assert made.consolidate().rejected == {}


@pytest.mark.parametrize("buffers", [(), ("w",)])
def test_finite_numbers_whose_difference_is_not_have_a_finite_mean(tmp_path: Path, buffers: tuple[str, ...]) -> None:
    made = Round(tmp_path, {"w": tensor([0.0, 1.0])}, buffers=buffers)
    made.fork(3, {"w": tensor([3e38, 1.0])}).fork(1, {"w": tensor([-3e38, 5.0])})
    assert made.consolidate().rejected == {}
    assert made.tensor("w").tolist() == pytest.approx([1.5e38, 2.0])


def test_a_fork_with_which_an_outer_step_leads_to_infinity_is_left_out(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(3, {"w": tensor([3e38])}).fork(1, {"w": tensor([2.0])})
    assert made.consolidate(Options(outer=Outer(rate=2.0))).rejected == {0: "not finite"}
    assert made.tensor("w").tolist() == [4.0]


def test_a_blown_up_fork_is_an_outlier(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(4)})
    for scale in (1.0, 1.1, 50.0):
        made.fork(10, {"w": torch.ones(4) * scale})
    assert list(made.consolidate().rejected) == [2]


def test_a_fork_with_no_steps_is_not_even_read(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(4, {"w": tensor([1.0])})
    made.files.append(ForkFile(fork=1, path=tmp_path / "does-not-exist", steps=0))
    result = made.consolidate()
    assert result.rejected == {1: "no steps"}
    assert made.tensor("w").tolist() == [1.0]


def test_when_all_are_rejected_the_base_stays(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(0, {"w": tensor([1.0])}).fork(3, {"w": tensor([float("inf")])})
    result = made.consolidate()
    assert (result.accepted, result.bytes, len(result.rejected)) == ((), 0, 2)
    assert not made.out.exists()


def test_no_forks_at_all_keep_the_base(tmp_path: Path) -> None:
    assert Round(tmp_path, {"w": tensor([0.0])}).consolidate().bytes == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"w": torch.zeros(1)},  # would broadcast
        {"w": torch.zeros(5, 1)},
        {"w": torch.zeros(5).double()},
        {"v": torch.zeros(5)},
        {"w": torch.zeros(5), "v": torch.zeros(1)},
        {},
    ],
)
def test_a_fork_of_other_tensors_is_rejected_whole(tmp_path: Path, odd: dict[str, torch.Tensor]) -> None:
    made = Round(tmp_path, {"w": torch.zeros(5)}).fork(1, {"w": torch.ones(5)}).fork(9, odd)
    result = made.consolidate()
    assert result.rejected == {1: "its tensors are not those of the base"}
    assert made.tensor("w").tolist() == [1.0] * 5


def test_a_fork_whose_ties_differ_is_rejected(tmp_path: Path) -> None:
    base = a_file(tmp_path / "base", {"model.a": tensor([0.0])}, aliases={"model.b": "model.a"})
    loose = a_file(tmp_path / "loose", {"model.a": tensor([1.0])})
    result = consolidate(base, [ForkFile(fork=0, path=loose, steps=1)], tmp_path / "out")
    assert list(result.rejected) == [0]


def test_ties_are_kept(tmp_path: Path) -> None:
    aliases = {"model.b": "model.a"}
    base = a_file(tmp_path / "base", {"model.a": tensor([0.0])}, aliases=aliases)
    fork = a_file(tmp_path / "fork", {"model.a": tensor([1.0])}, aliases=aliases)
    consolidate(base, [ForkFile(fork=0, path=fork, steps=1)], tmp_path / "out")
    made = Reader(tmp_path / "out")
    assert (read_meta(made).aliases, list(made.specs)) == (aliases, ["model.a"])


def test_a_fork_of_another_version_is_rejected(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])})
    made.fork(1, {"w": tensor([1.0])}, base="a" * 64).fork(1, {"w": tensor([9.0])}, base="b" * 64)
    result = made.consolidate(Options(base_sha256="a" * 64))
    assert result.rejected == {1: "trained from another base"}


def test_a_file_that_is_not_a_weights_file_rejects_its_fork_only(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(1, {"w": tensor([1.0])})
    (tmp_path / "broken").write_bytes(b"\x80\x04not a tensor file")
    made.files.append(ForkFile(fork=1, path=tmp_path / "broken", steps=5))
    result = made.consolidate()
    assert "unreadable" in result.rejected[1]
    assert made.tensor("w").tolist() == [1.0]


def test_a_truncated_file_rejects_its_fork_only(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": torch.zeros(100)}).fork(1, {"w": torch.ones(100)}).fork(1, {"w": torch.ones(100)})
    whole = made.files[1].path.read_bytes()
    made.files[1].path.write_bytes(whole[:-10])
    assert list(made.consolidate().rejected) == [1]


def test_an_optimisers_state_is_averaged_and_its_step_is_the_maximum(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])})
    for steps, moment, step in ((3, 4.0, 10.0), (1, 8.0, 4.0)):
        made.fork(steps, {"w": tensor([0.0]), "optim.w.exp_avg": tensor([moment]), "optim.w.step": tensor(step)})
    made.consolidate()
    assert made.tensor("optim.w.exp_avg").tolist() == [5.0]
    assert made.tensor("optim.w.step").item() == 10.0


def test_a_running_maximum_of_the_optimiser_stays_one(tmp_path: Path) -> None:
    name = "optim.w.max_exp_avg_sq"
    made = Round(tmp_path, {"w": torch.zeros(2)})
    made.fork(3, {"w": torch.zeros(2), name: tensor([1.0, 5.0])}).fork(
        1, {"w": torch.zeros(2), name: tensor([2.0, 3.0])}
    )
    made.consolidate()
    assert made.tensor(name).tolist() == [2.0, 5.0]


def test_a_state_that_a_fork_has_not_created_is_zero(tmp_path: Path) -> None:
    name = "optim.w.momentum_buffer"
    made = Round(tmp_path, {"w": tensor([0.0])})
    made.fork(1, {"w": tensor([1.0]), name: tensor([4.0])}).fork(3, {"w": tensor([1.0])})
    made.consolidate()
    assert made.tensor(name).tolist() == [1.0]


def test_an_optimiser_state_of_another_shape_rejects_its_fork(tmp_path: Path) -> None:
    name = "optim.w.exp_avg"
    made = Round(tmp_path, {"w": torch.zeros(2)})
    made.fork(9, {"w": torch.zeros(2), name: torch.zeros(2)}).fork(1, {"w": torch.zeros(2), name: torch.zeros(1)})
    assert list(made.consolidate().rejected) == [1]


def test_forks_whose_optimiser_states_differ_where_the_largest_has_none_are_told_apart(tmp_path: Path) -> None:
    name = "optim.w.exp_avg"
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(9, {"w": tensor([1.0])})
    made.fork(2, {"w": tensor([1.0]), name: tensor([1.0])}).fork(1, {"w": tensor([1.0]), name: torch.ones(2)})
    assert list(made.consolidate().rejected) == [2]


def test_an_optimisers_counter_begins_at_nothing(tmp_path: Path) -> None:
    name = "optim.w.n_averaged"
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(9, {"w": tensor([1.0]), name: tensor([3])})
    made.fork(2, {"w": tensor([1.0]), name: tensor([2])}).fork(1, {"w": tensor([1.0])})
    made.consolidate()
    assert Reader(made.out).tensor(name).tolist() == [5]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_of_the_optimiser_that_is_not_finite_rejects_its_fork(tmp_path: Path, value: float) -> None:
    base = a_file(tmp_path / "base", {"model.w": tensor([0.0])})
    files = [
        a_file(tmp_path / f"fork{n}", {"model.w": tensor([1.0])}, scalars={"optim.w.rate": rate})
        for n, rate in enumerate([value, 0.5])
    ]
    forks = [ForkFile(fork=n, path=path, steps=9 - n) for n, path in enumerate(files)]
    result = consolidate(base, forks, tmp_path / "out")
    assert result.rejected == {0: "its optimiser state optim.w.rate is not finite"}
    assert read_meta(Reader(tmp_path / "out")).scalars == {"optim.w.rate": 0.5}


def test_wide_complex_states_that_the_largest_fork_lacks_stay_complex(tmp_path: Path) -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    base, largest, other = (tmp_path / name for name in ("base", "largest", "other"))
    save_state(base, model, optimizer)
    save_state(largest, model, optimizer)
    model.w.grad = torch.full((2,), 1 + 2j, dtype=torch.complex128)
    optimizer.step()
    save_state(other, model, optimizer)
    forks = [ForkFile(fork=0, path=largest, steps=3), ForkFile(fork=1, path=other, steps=1)]
    consolidate(base, forks, tmp_path / "out")
    load_state(tmp_path / "out", model, optimizer)
    assert optimizer.state[model.w]["momentum_buffer"].tolist() == [0.25 + 0.5j] * 2


def test_the_scale_of_mixed_precision_is_the_smallest(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])})
    made.fork(1, {"w": tensor([1.0])}, scaler=65536.0).fork(1, {"w": tensor([1.0])}, scaler=1024.0)
    made.consolidate()
    assert read_meta(Reader(made.out)).scaler == 1024.0


def test_norm_and_agreement_describe_each_forks_delta(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([1.0, 1.0])})
    made.fork(1, {"w": tensor([4.0, 1.0])}).fork(1, {"w": tensor([1.0, 5.0])})
    first, second = made.consolidate().accepted
    # Deltas (3, 0) and (0, 4), their mean (1.5, 2): cosines 0.6 and 0.8.
    assert (first.delta_norm, second.delta_norm) == (3.0, 4.0)
    assert (first.agreement, second.agreement) == (pytest.approx(0.6), pytest.approx(0.8))


def test_a_fork_that_goes_the_other_way_disagrees(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(3, {"w": tensor([1.0])}).fork(1, {"w": tensor([-1.0])})
    assert [a.agreement for a in made.consolidate().accepted] == [pytest.approx(1.0), pytest.approx(-1.0)]


def test_norms_and_agreements_are_those_of_double_precision_over_many_chunks(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(300_001, generator=generator)
    steps = (100, 1000, 10, 300)
    deltas = [torch.randn(300_001, generator=generator) * 1e-3 * n**0.5 + 1e-3 for n in steps]
    made = Round(tmp_path, {"w": base})
    for n, delta in zip(steps, deltas, strict=True):
        made.fork(n, {"w": base + delta})
    true = [(base + delta).double() - base.double() for delta in deltas]
    mean = sum(n * delta for n, delta in zip(steps, true, strict=True)) / sum(steps)
    for accepted, delta in zip(made.consolidate().accepted, true, strict=True):
        assert accepted.delta_norm == pytest.approx(float(delta.norm()), rel=1e-4)
        assert accepted.agreement == pytest.approx(float(torch.cosine_similarity(delta, mean, dim=0)), abs=1e-4)


def test_a_broken_fork_leaves_the_rest_as_if_it_had_never_been(tmp_path: Path) -> None:
    tensors = [torch.randn(200_000) for _ in range(3)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    clean, dirty = (Round(tmp_path / name, {"w": torch.zeros(200_000)}) for name in "ab")
    broken = tensors[2].clone()
    broken[199_999] = float("inf")
    for made, last in ((clean, None), (dirty, broken)):
        made.fork(3, {"w": tensors[0]}).fork(2, {"w": tensors[1]})
        if last is not None:
            made.fork(5, {"w": last})
    assert clean.consolidate().accepted == dirty.consolidate().accepted
    assert torch.equal(clean.tensor("w"), dirty.tensor("w"))


def test_buffers_do_not_count_in_a_deltas_norm(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0]), "var": tensor([0.0])}, buffers=("var",))
    made.fork(1, {"w": tensor([2.0]), "var": tensor([1e6])})
    assert made.consolidate().accepted[0].delta_norm == 2.0


def test_a_tensor_of_many_chunks_is_averaged_like_one(tmp_path: Path) -> None:
    torch.manual_seed(1)
    size = 2**20 * 2 + 17
    base, forks = torch.randn(size), [torch.randn(size) for _ in range(3)]
    made = Round(tmp_path, {"w": base})
    for steps, values in zip((5, 3, 2), forks, strict=True):
        made.fork(steps, {"w": values})
    result = made.consolidate()
    exact = sum(w * f.double() for w, f in zip((0.5, 0.3, 0.2), forks, strict=True))
    assert torch.allclose(made.tensor("w").double(), exact, atol=1e-6)
    assert result.accepted[0].delta_norm == pytest.approx(float((forks[0] - base).double().norm()), rel=1e-5)


def test_the_length_is_that_of_the_file(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(1, {"w": tensor([1.0])})
    assert made.consolidate().bytes == made.out.stat().st_size


def test_the_same_fork_twice_counts_once(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(1, {"w": tensor([1.0])}).fork(1, {"w": tensor([3.0])})
    made.files.append(ForkFile(fork=0, path=made.files[1].path, steps=1, attempt=1))
    made.consolidate()
    assert made.tensor("w").tolist() == [2.0]


def test_the_order_of_the_forks_changes_no_bit(tmp_path: Path) -> None:
    torch.manual_seed(2)
    made = Round(tmp_path, {"w": torch.randn(999)})
    for steps in (10, 7, 5, 3, 1):
        made.fork(steps, {"w": torch.randn(999)})
    made.consolidate()
    first = made.out.read_bytes()
    made.files.reverse()
    made.consolidate()
    assert made.out.read_bytes() == first


def test_nothing_is_left_of_a_version_that_could_not_be_written(tmp_path: Path) -> None:
    made = Round(tmp_path, {"w": tensor([0.0])}).fork(1, {"w": tensor([1.0])})
    made.out = tmp_path / "nowhere" / "out"
    with pytest.raises(FileNotFoundError):
        made.consolidate()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base", "fork0"]
