"""Commands about jobs: submit, jobs, job, watch, logs, cancel, pause, resume, delete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import ExitCode
from hadare.cli.framework import cluster_options, pass_session
from hadare.cli.histories import VersionTold, by_version, of_history
from hadare.cli.job_files import JobFile, read_job_file
from hadare.cli.sending import localise
from hadare.cli.session import Session, Target
from hadare.client import HadareClient
from hadare.model.errors import Rejected
from hadare.model.events import StoredEvent
from hadare.model.jobs import JobState
from hadare.runtime import telemetry
from hadare.wire import api, codec

CODE_FOLDER = click.Path(file_okay=False, path_type=Path)
JOB_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", metavar="JOB.yaml", type=JOB_FILE)
@click.option("--set", "settings", metavar="PATH=VALUE", multiple=True, help="Put a value over the file's.")
@click.option("--name", metavar="NAME", help="The job's name, whatever the file says.")
@click.option("--code", metavar="DIR", type=CODE_FOLDER, help="Send this folder along, to import the workload from.")
@click.option("--start-from", metavar="FILE|JOB[@VERSION]", help="Weights for version 0, whatever the file says.")
@click.option("--request-id", metavar="ID", help="Submitting twice with the same one makes one job.")
@click.option("--wait", is_flag=True, help="Wait for the job's end; exit with 1 if it fails or is cancelled.")
@click.option("--timeout", "timeout_s", metavar="SECONDS", type=click.FloatRange(min=0), help="With --wait.")
@cluster_options
@pass_session
def submit(
    session: Session,
    file: Path,
    settings: tuple[str, ...],
    name: str | None,
    code: Path | None,
    start_from: str | None,
    request_id: str | None,
    wait: bool,
    timeout_s: float | None,
) -> None:
    """Submit a job file."""
    job = read_job_file(file, [*settings, *([f"name={name}"] if name else [])])
    local = localise(job, code, start_from)
    local.checked()
    trace(session.target())
    telling = _Telling(session)

    async def act(client: HadareClient) -> tuple[api.Submitted, api.JobStatus]:
        made = await _submitted(client, await local.sent(client), request_id)
        if not session.json:
            session.note(f"{'submitted' if made.created else 'already submitted'} {made.name} ({made.job_id})")
        if wait:
            return made, await client.wait(made.job_id, timeout_s=timeout_s, on_status=telling)
        return made, await client.get(made.job_id)

    try:
        made, status = session.run(act)
    finally:
        telemetry.shutdown()
    session.show(
        {**codec.to_plain(status), "created": made.created}, lambda console: console.print(tables.of_job(status))
    )
    if wait and status.state is not JobState.COMPLETED:
        raise click.exceptions.Exit(ExitCode.NOT_WELL)


@click.command()
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="At most so many.")
@cluster_options
@pass_session
def jobs(session: Session, state: str | None, limit: int) -> None:
    """List jobs, in the order of submission."""

    async def act(client: HadareClient) -> list[api.JobStatus]:
        found: list[api.JobStatus] = []
        async for one in client.list(JobState(state) if state else None, page=min(limit, 200)):
            found.append(one)
            if len(found) == limit:
                break
        return found

    found = session.run(act)
    session.show({"jobs": codec.to_plain(found)}, lambda console: console.print(tables.of_jobs(found)))


def _simple(name: str, text: str, act: Callable[[HadareClient, str], Any]) -> click.Command:
    """A command that asks one question about one job and shows the job."""

    @click.command(name, help=text)
    @click.argument("job", metavar="JOB")
    @cluster_options
    @pass_session
    def command(session: Session, job: str) -> None:
        status: api.JobStatus = session.run(lambda client: act(client, job))
        session.show(status, lambda console: console.print(tables.of_job(status)))

    return command


@click.command("job")
@click.argument("job_name", metavar="JOB")
@click.option("--history", "last", type=click.IntRange(min=0), default=10, show_default=True, help="So many versions.")
@cluster_options
@pass_session
def job(session: Session, job_name: str, last: int) -> None:
    """Show one job, and how its metrics went."""

    async def act(client: HadareClient) -> tuple[api.JobStatus, list[VersionTold]]:
        status = await client.get(job_name)
        told = [point async for point in client.history(status.job_id)] if last else []
        return status, by_version(told)[-last:] if last else []

    status, versions = session.run(act)

    def human(console: Console) -> None:
        console.print(tables.of_job(status))
        if versions:
            console.print()
            console.print(of_history(versions))

    session.show({**codec.to_plain(status), "history": codec.to_plain(versions)}, human)


cancel = _simple("cancel", "End a job for good; its last version stays.", lambda client, name: client.cancel(name))
pause = _simple("pause", "Keep a job from training; its steps are kept.", lambda client, name: client.pause(name))
resume = _simple("resume", "Let a paused job train again.", lambda client, name: client.resume(name))


@click.command()
@click.argument("job_name", metavar="JOB")
@cluster_options
@pass_session
def delete(session: Session, job_name: str) -> None:
    """Remove an ended job and its weights."""
    gone = session.run(lambda client: client.delete(job_name))
    session.show(gone, lambda console: console.print(f"deleted {gone.name} ({gone.job_id})", highlight=False))


@click.command()
@click.argument("job_name", metavar="JOB")
@click.option("--from-seq", type=click.IntRange(min=0), default=0, help="Only events after this sequence number.")
@cluster_options
@pass_session
def watch(session: Session, job_name: str, from_seq: int) -> None:
    """Follow what happens to a job until it has ended; exit as `submit --wait` does."""
    events: list[StoredEvent] = []

    async def act(client: HadareClient) -> api.JobStatus:
        async for news in client.watch(job_name, from_seq):
            if isinstance(news, StoredEvent):
                events.append(news)
            if not session.json:
                text = tables.progress_line(news) if isinstance(news, api.JobStatus) else tables.event_line(news)
                click.echo(text)
        return await client.get(job_name)

    status = session.run(act)
    document = {**codec.to_plain(status), "events": codec.to_plain(events)}
    session.show(document, lambda _console: click.echo(tables.progress_line(status)))
    if status.state is not JobState.COMPLETED:
        raise click.exceptions.Exit(ExitCode.NOT_WELL)


@click.command()
@click.argument("job_name", metavar="JOB")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--round", "round_no", type=click.IntRange(min=0), help="Only of this round.")
@click.option("--fork", type=click.IntRange(min=0), help="Only of this fork.")
@click.option("--plain", is_flag=True, help="Without saying which fork printed it.")
@cluster_options
@pass_session
def logs(session: Session, job_name: str, follow: bool, round_no: int | None, fork: int | None, plain: bool) -> None:
    """Print what a job's forks printed."""
    entries: list[api.LogEntry] = []

    async def act(client: HadareClient) -> None:
        async for entry in client.logs(job_name, follow=follow, round_no=round_no, fork=fork):
            if session.json:
                entries.append(entry)
            else:
                click.echo("\n".join([entry.text.rstrip("\n")] if plain else tables.log_lines(entry)))

    session.run(act)
    session.show({"lines": codec.to_plain(entries)}, lambda _console: None)


def trace(target: Target) -> None:
    """The job's trace begins here, and goes where the cluster's spans go: to a collector, or to its directory."""
    endpoint = os.environ.get("HADARE_OTLP_ENDPOINT") or None
    if endpoint is None and target.directory is not None:
        endpoint = f"file:{target.directory / 'spans'}"
    telemetry.configure("client", uuid.uuid4().hex[:8], endpoint)


async def _submitted(client: HadareClient, job: JobFile, request_id: str | None) -> api.Submitted:
    try:
        return await client.submit(job.spec, request_id)
    except Rejected as refusal:
        raise job.located(refusal) from refusal


class _Telling:
    """Says on stderr how a job does, whenever something worth a line has changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: tuple[object, ...] = ()

    def __call__(self, status: api.JobStatus) -> None:
        news = (status.state, status.version, status.reason)
        if news != self._told and not self._session.json:
            self._session.note(tables.progress_line(status))
        self._told = news
