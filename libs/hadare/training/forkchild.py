"""The process of one fork: user code runs here and nowhere else. It serves its agent's commands one after another.

It stays warm: the task, the model and the optimiser are built once, and each command loads a version into them.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from hadare.model.leases import Failure, GangRank
from hadare.training import linux
from hadare.training.artifacts import collect
from hadare.training.channel import Channel, StopAsked
from hadare.training.evaluation import evaluate_version
from hadare.training.failures import BadBase, Unsaved, failure_of
from hadare.training.gang import Limits, join
from hadare.training.granted import Grant, OnStanding, Revoked, Standing, Trained
from hadare.training.imports import put_first
from hadare.training.protocol import (
    ARTIFACTS_VARIABLE,
    Done,
    Evaluate,
    Evaluated,
    Exit,
    Failed,
    Init,
    Progress,
    Ready,
    Spawn,
    Stop,
    Train,
)
from hadare.training.sdk import ScriptFault
from hadare.training.starting import start_model
from hadare.training.trainer import Trainer
from hadare.training.transport import pack
from hadare.training.weights import FileMeta
from hadare.training.worker import Worker, build_worker, check_finite


def run(request: Spawn, line: socket.socket, output: int) -> NoReturn:
    """What the forked process does, to its end. Never returns into the fork server."""
    begun = time.monotonic()
    channel = Channel(line)
    status = 1
    try:
        _settle(request, output)
        status = _serve(request, channel, begun)
    except SystemExit as leaving:
        _report(channel, Failure(kind="exception", message=f"the task called sys.exit({leaving.code!r})"[:4096]))
    except BaseException as error:  # noqa: BLE001 - user code may raise anything, and its process ends here
        _report(channel, failure_of(error))
    finally:
        with contextlib.suppress(Exception):  # the task may have put anything in their place, or closed them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _settle(request: Spawn, output: int) -> None:
    """Makes the fork a process of its own: session, output, environment, limits."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(request.env)
    linux.write_marker(request.process_id)
    # If memory runs out, it is a fork that goes, not the agent.
    Path("/proc/self/oom_score_adj").write_text("500")
    put_first(request.spec.path)
    torch.set_num_threads(max(1, request.spec.threads))


def _report(channel: Channel, failure: Failure) -> None:
    print(failure.tail or failure.message, file=sys.stderr)
    with contextlib.suppress(OSError):
        channel.send(Failed(failure=failure))


def _serve(request: Spawn, channel: Channel, begun: float) -> int:
    spec = request.spec
    worker = build_worker(spec.workload, spec.config, spec.batch_size, spec.seed, spec.device)
    channel.send(Ready(seconds=time.monotonic() - begun))
    while True:
        match command := channel.next():
            case Init():
                channel.send(_init(worker, command))
            case Train():
                channel.send(_train(worker, command, channel))
            case Evaluate():
                _load(worker, command.base)
                channel.send(Evaluated(metrics=evaluate_version(worker, Path(command.base))))
                channel.send(Done(reason=None))
            case Stop():
                continue
            case Exit():
                return 0


def _init(worker: Worker, command: Init) -> Done:
    out = Path(command.out)
    if command.start:
        start_model(Path(command.start), worker.model)
    with _saving(out):
        length = worker.save(out)
    return Done(out=command.out, bytes=length)


@contextlib.contextmanager
def _saving(out: Path) -> Iterator[None]:
    """A disk that will not take the result is no fault of the job."""
    try:
        yield
    except OSError as error:
        raise Unsaved(f"{out.name} cannot be written: {error}") from error


def _train(worker: Worker, command: Train, channel: Channel) -> Done:
    deadline = time.monotonic() + command.remaining_s
    phases = _Phases()
    if command.gang is None:
        trained = _from_base(worker.train, worker, command, channel, deadline, phases, channel.stop_asked)
    else:
        trained = _in_gang(command.gang, worker, command, channel, deadline, phases)
        if command.gang.rank > 0:
            return _done(trained, "", 0, phases.ms)
    channel.send(Progress(phase="handing_back", steps=trained.steps, steps_per_s=trained.steps_per_s))
    check_finite(worker.model)
    meta = FileMeta(base=command.base_sha256, user={"steps": trained.steps})
    artifacts = _artifacts()
    with _saving(Path(command.out)):
        length = worker.save(Path(command.out), meta, artifacts)
        if command.bf16:
            length = pack(Path(command.out), Path(command.base)).bytes
    phases.end("save")
    return _done(trained, command.out, length, phases.ms)


def _artifacts() -> dict[str, Tensor]:
    if not (folder := os.environ.get(ARTIFACTS_VARIABLE)):
        return {}
    files, left_out = collect(Path(folder))
    for why in left_out:
        print(f"an artefact is left out: {why}", file=sys.stderr)
    return files


def _from_base(
    train: Callable[[Grant, Revoked, OnStanding], Trained],
    worker: Worker,
    command: Train,
    channel: Channel,
    deadline: float,
    phases: _Phases,
    stop_asked: Revoked,
) -> Trained:
    _load(worker, command.base)
    phases.end("load")
    if command.evaluate_base:
        channel.send(Progress(phase="evaluating"))
        channel.send(Evaluated(metrics=evaluate_version(worker, Path(command.base))))
        phases.end("evaluate")
    grant = Grant(
        quota=command.quota,
        data_seed=command.data_seed,
        deadline=deadline,
        schedule_from=command.schedule_from,
        schedule_to=command.schedule_to,
        rate=command.nominal_rate,
        report_interval_s=command.report_interval_s,
    )
    channel.send(Progress(phase="training"))
    trained = train(grant, stop_asked, lambda standing: channel.send(_progress(standing)))
    phases.end("train")
    return trained


def _in_gang(
    part: GangRank, worker: Worker, command: Train, channel: Channel, deadline: float, phases: _Phases
) -> Trained:
    """Meets the other ranks first: from then on, whatever goes wrong on one of them ends all."""
    if not isinstance(worker, Trainer):
        raise ScriptFault("a script cannot train in a gang, which splits its batches: make it a hadare Task")
    stop_asked = StopAsked(channel)
    meeting = join(
        part,
        command.gang_name,
        worker.device,
        until=deadline,
        on_broken=lambda broken: channel.last_word(Failure(kind="gang", message=str(broken)[:4096])),
        revoked=stop_asked,
        limits=Limits.of(os.environ),
    )
    with meeting as gang:
        phases.end("meet")

        def train(grant: Grant, revoked: Revoked, report: OnStanding) -> Trained:
            return worker.train_in_gang(grant, gang, revoked, report)

        trained = _from_base(train, worker, command, channel, deadline, phases, stop_asked)
        gang.leave()
    return trained


def _done(trained: Trained, out: str, size: int, phases_ms: dict[str, float]) -> Done:
    return Done(
        steps=trained.steps,
        samples=trained.samples,
        updates=trained.updates,
        trained_s=trained.seconds,
        throughput=trained.steps_per_s,
        loss=trained.loss if math.isfinite(trained.loss) else None,
        update_s=trained.update_s,
        exchange_s=trained.exchange_s,
        reason=trained.reason,
        out=out,
        bytes=size,
        phases_ms=phases_ms,
    )


def _progress(standing: Standing) -> Progress:
    loss = standing.loss if math.isfinite(standing.loss) else None
    return Progress(phase="training", steps=standing.steps, loss=loss, steps_per_s=standing.steps_per_s)


def _load(worker: Worker, base: str) -> None:
    path = Path(base)
    if not path.is_file():
        raise BadBase(f"cannot load {path.name}: there is no such file")
    worker.load(path)


class _Phases:
    """Milliseconds of the consecutive parts of a command."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = time.monotonic()

    def end(self, phase: str) -> None:
        now = time.monotonic()
        self.ms[phase] = (now - self._last) * 1e3
        self._last = now
