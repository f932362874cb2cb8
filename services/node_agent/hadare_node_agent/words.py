"""Between two languages: what the machine says of leases, and what forks say of their work. Plain functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hadare.machines import lease_commands as do
from hadare.machines import lease_events as ev
from hadare.model.leases import Evaluation, Lease
from hadare.training import protocol

_PHASES: dict[str, ev.WorkPhase] = {"evaluating": "evaluating", "handing_back": "handing_back"}


def progress_of(report: protocol.Progress, rate: float) -> ev.Progress:
    return ev.Progress(
        phase=_PHASES.get(report.phase, "training"),
        steps=report.steps,
        loss=report.loss,
        steps_per_s=report.steps_per_s,
        nominal_rate=rate,
    )


def order_for(command: do.Assign, out: Path, rate: float, report_interval_s: float) -> protocol.Command:
    """The lease in the words of the fork."""
    lease, base = command.lease, command.base_path or ""
    if lease.kind == "init":
        return protocol.Init(out=str(out), start=base)
    if lease.kind == "evaluate":
        return protocol.Evaluate(base=base)
    return protocol.Train(
        base=base,
        out=str(out),
        quota=lease.quota,
        remaining_s=command.left_s,
        data_seed=lease.data_seed,
        base_sha256=lease.base.sha256 if lease.base else "",
        schedule_from=lease.schedule_from,
        schedule_to=lease.schedule_to,
        evaluate_base=lease.evaluate_base,
        bf16=lease.spec.consolidation.transport == "bf16",
        nominal_rate=rate or None,
        report_interval_s=report_interval_s,
        gang=lease.gang,
        gang_name=gang_name(lease) if lease.gang else "",
    )


def gang_name(lease: Lease) -> str:
    """The same for every rank of a gang, and of no other gang."""
    return f"{replace(lease.key, rank=0)}@{lease.epoch}"


def outcome_of(
    lease: Lease, report: protocol.Done, metrics: dict[str, float], rate: float, out: Path | None
) -> ev.Outcome:
    """What a fork brought. A fork that was told to stop was stopped by the clock, unless the machine knows better."""
    evaluation = None
    if metrics and lease.base is not None:
        evaluation = Evaluation(version=lease.base_version, sha256=lease.base.sha256, metrics=metrics)
    by_quota = report.reason == "quota"
    return ev.Outcome(
        reason="done" if lease.kind != "train" else "quota" if by_quota else "clock",
        steps=report.steps,
        samples=report.samples,
        updates=report.updates,
        path=str(out) if out is not None else None,
        metrics={} if report.loss is None else {"loss": report.loss},
        evaluation=evaluation,
        throughput=report.throughput,
        nominal_rate=rate,
        trained_s=report.trained_s,
        update_s=report.update_s,
        exchange_s=report.exchange_s,
        idle_s=report.phases_ms.get("save", 0.0) / 1e3,
        phases_ms=report.phases_ms,
    )
