"""Scripts for the tests of the loop hook: functions that a job names as its workload."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hadare.training.sdk as hadare

CALLS: list[str] = []


def noise(batch_size: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(batch_size, 2, generator=generator)


def fits(run: hadare.Run) -> None:
    """Learns x₀ − x₁ with AdamW, a cosine-like schedule and dropout; uses ``loss`` after its loop, as scripts do."""
    CALLS.append("begun")
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def evaluate() -> dict[str, float]:
        x = next(noise(64, 1))
        return {"mse": float((model(x)[:, 0] - x[:, 0] + x[:, 1]).square().mean())}

    run.begin(model, optimizer, evaluate=evaluate, schedule=lambda position: 1.0 - position / 2)
    for x in run.steps(lambda seed: noise(run.batch_size, seed)):
        loss = (model(x)[:, 0] - x[:, 0] + x[:, 1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.report(loss)
    print(f"last loss {loss:.3f}")


def loads(run: hadare.Run) -> None:
    """Takes its batches from a loader; notes them in ``CALLS``."""
    model = nn.Linear(1, 1)
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = DataLoader(TensorDataset(torch.arange(8.0)[:, None]), batch_size=run.batch_size, shuffle=True)
    for (x,) in run.steps(loader):
        CALLS.append(str(x.flatten().tolist()))


def gives_up(run: hadare.Run) -> None:
    model = nn.Linear(1, 1)
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in run.steps([1, 2, 3]):
        break


def forgets_to_begin(run: hadare.Run) -> None:
    next(run.steps([1]))


def forgets_to_step(run: hadare.Run) -> None:
    model = nn.Linear(1, 1)
    run.begin(model, torch.optim.SGD(model.parameters(), lr=0.1))
