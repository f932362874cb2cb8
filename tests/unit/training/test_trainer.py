from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hadare.training import trainer as trainer_module
from hadare.training.task import RunOptions, Task
from hadare.training.trainer import Grant, NotFinite, Standing, Trainer


class Line(Task[Tensor]):
    """Fits y = 2x with one weight; config: ``lr``, ``blow_up`` (the step from which the loss is NaN), ``batches``."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.config.get("lr", 0.1))

    def batches(self, data_seed: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(data_seed)
        for _ in range(self.config.get("batches", 10**9)):
            yield torch.randn(self.batch_size, 1, generator=generator)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.seen = [*getattr(self, "seen", []), batch]
        blow_up = len(self.seen) > self.config.get("blow_up", math.inf)
        return (model(batch) - 2 * batch).square().mean() * (math.nan if blow_up else 1.0)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        self.evaluated_in_training_mode = model.training
        return {"random": float(torch.rand(1)), "grad": float(torch.is_grad_enabled())}

    def learning_rate_factor(self, position: float) -> float:
        self.positions = [*getattr(self, "positions", []), position]
        return 1.0 - position / 2


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(**config: Any) -> Trainer:
        own = RunOptions(accumulate=config.pop("accumulate", 1), precision=config.pop("precision", "full"))
        monkeypatch.setattr(trainer_module, "build_task", lambda *_: (Line(config, 4, 0), own))
        return Trainer("x:Line", config, 4, 0)

    return make


def a_grant(quota: int = 5, **more: Any) -> Grant:
    return Grant(quota=quota, data_seed=more.pop("data_seed", 3), **more)


def weights_of(trainer: Trainer) -> list[float]:
    return [v for p in trainer.model.parameters() for v in p.detach().flatten().tolist()]


def test_a_fork_does_its_quota(build: Any) -> None:
    done = build().train(a_grant(quota=7))
    assert (done.steps, done.samples, done.updates, done.reason) == (7, 28, 7, "quota")


def test_a_fork_ends_by_the_clock(build: Any) -> None:
    done = build().train(a_grant(deadline=0.0))
    assert (done.steps, done.reason) == (0, "clock")


def test_a_fork_that_did_nothing_has_no_loss(build: Any) -> None:
    assert math.isnan(build().train(a_grant(deadline=0.0)).loss)


def test_a_revoked_fork_ends_between_two_steps(build: Any) -> None:
    asked = iter([None, None, 0.0])
    done = build().train(a_grant(), revoked=lambda: next(asked))
    assert (done.steps, done.reason) == (2, "revoked")


def test_a_revocation_is_said_once_and_stays(build: Any) -> None:
    said = iter([None, time.monotonic() + 0.05])
    done = build().train(a_grant(quota=10**9), revoked=lambda: next(said, None))
    assert done.reason == "revoked"
    assert done.steps > 1


def test_the_same_seeds_give_the_same_weights(build: Any) -> None:
    first, second = build(), build()
    first.train(a_grant())
    second.train(a_grant())
    assert weights_of(first) == weights_of(second)


def test_another_data_seed_gives_other_weights(build: Any) -> None:
    first, second = build(), build()
    first.train(a_grant(data_seed=1))
    second.train(a_grant(data_seed=2))
    assert weights_of(first) != weights_of(second)


def test_a_loss_that_is_not_finite_ends_the_fork(build: Any) -> None:
    with pytest.raises(NotFinite, match="after 5 steps"):
        build(blow_up=3).train(a_grant())


def test_passes_over_finite_data_have_different_orders(build: Any) -> None:
    trainer = build(batches=2)
    trainer.train(a_grant(quota=6))
    assert len({tuple(batch.flatten().tolist()) for batch in trainer.task.seen}) == 6


def test_data_that_is_empty_is_an_error_not_an_endless_loop(build: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        build(batches=0).train(a_grant())


def test_the_schedule_moves_from_start_to_end_by_the_quota(build: Any) -> None:
    trainer = build()
    trainer.train(a_grant(quota=4, schedule_from=0.2, schedule_to=0.6))
    assert trainer.task.positions == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.75)


def test_the_learning_rate_is_set_from_the_configured_one_each_time(build: Any) -> None:
    trainer = build()
    for _ in range(3):
        trainer.train(a_grant(quota=1, schedule_from=0.5, schedule_to=0.5))
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.075)


def test_accumulated_steps_make_fewer_updates(build: Any) -> None:
    assert build(accumulate=2).train(a_grant(quota=6)).updates == 3


def test_a_half_gathered_gradient_is_used_when_the_grant_ends(build: Any) -> None:
    assert build(accumulate=4).train(a_grant(quota=6)).updates == 2


def test_an_accumulated_gradient_is_the_mean_of_its_steps(build: Any) -> None:
    trainer = build(accumulate=2)
    trainer.model.eval()
    one, two = torch.ones(4, 1), 3 * torch.ones(4, 1)
    trainer.gradient(one, 2)
    trainer.gradient(two, 2)
    both = [p.grad.clone() for p in trainer.model.parameters()]
    trainer.optimizer.zero_grad()
    trainer.gradient(torch.cat([one, two]), 1)
    assert all(torch.allclose(a, p.grad) for a, p in zip(both, trainer.model.parameters(), strict=True))


def test_a_half_gathered_gradient_counts_as_the_mean_of_what_there_is(build: Any) -> None:
    whole, part = build(accumulate=1), build(accumulate=4)
    for trainer in (whole, part):
        trainer.model[1].p = 0.0
        trainer.train(a_grant(quota=1))
    assert weights_of(part) == pytest.approx(weights_of(whole))


def test_mixed_precision_trains_in_half_and_keeps_full_weights(build: Any) -> None:
    trainer = build(precision="amp")
    done = trainer.train(a_grant())
    assert math.isfinite(done.loss)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


def test_reports_tell_the_steps_and_a_loss(build: Any) -> None:
    standings: list[Standing] = []
    build().train(a_grant(quota=3, report_interval_s=0.0), report=standings.append)
    assert [s.steps for s in standings] == [1, 2, 3]
    assert all(math.isfinite(s.loss) for s in standings)


def test_evaluation_leaves_no_trace(build: Any) -> None:
    trainer = build()
    trainer.train(a_grant(quota=1))
    before = torch.get_rng_state()
    first = trainer.evaluate()
    assert trainer.evaluate() == first
    assert first["grad"] == 0.0
    assert torch.equal(torch.get_rng_state(), before)
    assert trainer.model.training
    assert not trainer.task.evaluated_in_training_mode


def test_an_emulated_device_is_held_to_its_rate(build: Any) -> None:
    done = build().train(a_grant(quota=20, rate=400.0))
    assert done.seconds >= 20 / 400
