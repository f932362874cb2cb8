from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from builders_gangs import ThreadGang, in_a_gang
from hadare.model.leases import GangRank
from hadare.training import trainer as trainer_module
from hadare.training.batches import Indivisible
from hadare.training.gang import Alone, Gang, Limits
from hadare.training.gang_exchange import GradientSum
from hadare.training.gang_training import GangMismatch, Lockstep, Stream
from hadare.training.granted import Grant, NotFinite
from hadare.training.task import RunOptions, Task
from hadare.training.trainer import Trainer

Rows = tuple[Tensor, Tensor]


class Words(Task[Rows]):
    """Predicts a class a row; rows of class 0 are padding, which the loss leaves out. Config: ``short``, ``drops``."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Dropout(self.config.get("drops", 0.0)))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5)

    def batches(self, data_seed: int) -> Iterator[Rows]:
        while True:
            size = self.batch_size - self.config.get("short", 0)
            yield torch.randn(size, 3), torch.randint(0, 4, (size,))  # torch's own generator, as loaders use it

    def loss(self, model: nn.Module, batch: Rows) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], ignore_index=0) * self.config.get("factor", 1.0)

    def weight(self, batch: Rows) -> float:
        return int((batch[1] != 0).sum())

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(task: type[Task[Any]] = Words, **config: Any) -> Trainer:
        own = RunOptions(accumulate=config.pop("accumulate", 1), precision=config.pop("precision", "full"))
        monkeypatch.setattr(trainer_module, "build_task", lambda *_: (task(config, 8, 0), own))
        return Trainer("x:Words", config, 8, 0)

    return make


def a_grant(quota: int = 1, **more: Any) -> Grant:
    return Grant(quota=quota, data_seed=3, **more)


def batches_of(trainer: Trainer, count: int) -> list[Rows]:
    return Stream(trainer.task, 3).take(count)


def by_hand(trainer: Trainer, groups: list[list[Rows]]) -> list[Tensor]:
    """Parameters after an update for each group of batches, by plain PyTorch."""
    model = trainer.task.build_model()
    model.load_state_dict(trainer.model.state_dict())
    optimizer = trainer.task.build_optimizer(model)
    for group in groups:
        rows, classes = (torch.cat(column) for column in zip(*group, strict=True))
        optimizer.zero_grad()
        trainer.task.loss(model, (rows, classes)).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def close(trainer: Trainer, expected: list[Tensor]) -> bool:
    own = [p.detach() for p in trainer.model.parameters()]
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(own, expected, strict=True))


def test_an_update_of_several_batches_is_that_of_all_their_samples_at_once(build: Any) -> None:
    trainer = build()
    batches = batches_of(trainer, 6)
    expected = by_hand(trainer, [batches[:3], batches[3:]])
    done = trainer.train_in_gang(a_grant(6), Alone(24))
    assert (done.steps, done.samples, done.updates, done.reason) == (6, 48, 2, "quota")
    assert close(trainer, expected)


def test_accumulation_multiplies_the_batch_of_a_gang(build: Any) -> None:
    trainer = build(accumulate=2)
    batches = batches_of(trainer, 8)
    expected = by_hand(trainer, [batches[:4], batches[4:]])
    done = trainer.train_in_gang(a_grant(8), Alone(16))
    assert (done.steps, done.updates) == (8, 2)
    assert close(trainer, expected)


def test_the_last_update_takes_the_batches_that_are_left(build: Any) -> None:
    trainer = build()
    batches = batches_of(trainer, 5)
    expected = by_hand(trainer, [batches[:3], batches[3:]])
    done = trainer.train_in_gang(a_grant(5), Alone(24))
    assert (done.steps, done.updates, done.reason) == (5, 2, "quota")
    assert close(trainer, expected)


def test_batches_that_are_shorter_count_by_what_is_in_them(build: Any) -> None:
    trainer = build(short=3)
    expected = by_hand(trainer, [batches_of(trainer, 2)])
    trainer.train_in_gang(a_grant(2), Alone(16))
    assert close(trainer, expected)


def test_the_parts_of_all_ranks_add_up_to_the_gradient_of_the_whole(build: Any) -> None:
    """Also where the loss is a mean over something else than samples, if the task says over what."""
    shares, gradients = (10, 4, 10), []
    for rank in range(3):
        trainer = build()
        batches = batches_of(trainer, 3)
        turn = _first_turn(trainer, GangRank(rank=rank, shares=shares, address="here:1"))
        trainer._part_of_gradient(batches, turn.parts)
        gradients.append([p.grad for p in trainer.model.parameters()])
    whole = build()
    rows, classes = (torch.cat(column) for column in zip(*batches_of(whole, 3), strict=True))
    whole.task.loss(whole.model, (rows, classes)).backward()
    for parts, parameter in zip(zip(*gradients, strict=True), whole.model.parameters(), strict=True):
        assert torch.allclose(sum(parts), parameter.grad, atol=1e-6)


def _first_turn(trainer: Trainer, part: GangRank) -> Any:
    gang = Gang(part, torch.device("cpu"))
    gang.numbers = lambda *own: [own]  # type: ignore[method-assign]  # the others agree
    lockstep = Lockstep(a_grant(3), gang, trainer.task, trainer.model, lambda: None, lambda _: None)
    return next(lockstep.turns(1, Stream(trainer.task, 3)))


def test_the_stream_is_the_same_whatever_a_rank_draws_beside_it(build: Any) -> None:
    trainer = build()
    plain = batches_of(trainer, 3)
    stream = Stream(trainer.task, 3)
    mixed = []
    for number in range(3):
        torch.manual_seed(number)
        torch.rand(number)
        mixed += stream.take(1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, mixed, strict=True))


def test_a_stream_leaves_no_trace_in_what_a_rank_draws(build: Any) -> None:
    stream = Stream(build().task, 3)
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    stream.take(2)
    assert torch.equal(torch.rand(2), expected)


def test_a_grant_without_time_is_over_before_it_begins(build: Any) -> None:
    done = build().train_in_gang(a_grant(5, deadline=0.0), Alone(8))
    assert (done.steps, done.reason) == (0, "clock")


def test_a_revoked_gang_ends_after_its_update(build: Any) -> None:
    asked = iter([None, None, 0.0])
    done = build().train_in_gang(a_grant(9), Alone(8), lambda: next(asked))
    assert (done.steps, done.reason) == (2, "revoked")


def test_a_loss_that_is_not_finite_ends_it(build: Any) -> None:
    with pytest.raises(NotFinite, match="after 0 steps"):
        build(factor=float("inf")).train_in_gang(a_grant(2), Alone(8))


def test_shares_that_are_no_whole_batches_are_a_fault(build: Any) -> None:
    with pytest.raises(GangMismatch, match="whole batches of 8"):
        build().train_in_gang(a_grant(2), Alone(12))


def test_mixed_precision_trains(build: Any) -> None:
    done = build(precision="amp").train_in_gang(a_grant(6), Alone(16))
    assert (done.steps, done.updates) == (6, 3)


def test_ranks_of_which_one_must_scale_its_losses_scale_alike_and_skip_alike(build: Any) -> None:
    def work(gang: ThreadGang) -> tuple[float, bool, float, bool]:
        trainer = build(precision="amp")
        own = torch.amp.GradScaler("cpu", enabled=gang.rank == 1, init_scale=1024.0)
        trainer.scaler = own
        with trainer._scaled_alike(gang):
            before = trainer.scaler.get_scale()
            parameters = list(trainer.model.parameters())
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, float("inf") if gang.rank == 2 else 1.0)
            GradientSum(gang, parameters, 0)([])
            updated = trainer.update()
            after = trainer.scaler.get_scale()
        return before, updated, after, trainer.scaler is own

    assert in_a_gang((1, 1, 1), work) == [(1024.0, False, 512.0, True)] * 3


class Opaque(Words):
    def batches(self, data_seed: int) -> Iterator[Any]:
        while True:
            yield object()

    def weight(self, batch: Any) -> float:
        return self.samples(batch)


def test_a_batch_that_cannot_be_split_is_a_clear_fault(build: Any) -> None:
    with pytest.raises(Indivisible, match=r"override Task\.samples and Task\.split"):
        build(Opaque).train_in_gang(a_grant(2), Alone(8))


def test_limits_are_the_jobs_to_set() -> None:
    assert Limits.of({"HADARE_GANG_MEET_S": "5", "PATH": "x"}) == Limits(meet_s=5.0)
    assert Limits.of({"HADARE_GANG_SILENCE_S": "2.5"}) == Limits(silence_s=2.5)
