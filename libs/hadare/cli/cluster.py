"""Commands about the cluster: status, nodes, drain, undrain, forget, prices, rounds."""

from __future__ import annotations

from collections.abc import Iterable

import click
from rich.console import Console

from hadare.cli import tables
from hadare.cli.exit_codes import ExitCode
from hadare.cli.framework import cluster_options, pass_session
from hadare.cli.session import Session
from hadare.client import HadareClient
from hadare.wire import api_cluster, codec


@click.command()
@cluster_options
@pass_session
def status(session: Session) -> None:
    """Say whether all is well: services, nodes, jobs. Exits with 1 if it is not."""
    target = session.target()

    async def act(client: HadareClient) -> tuple[api_cluster.ClusterStatus, dict[str, str]]:
        found = await client.status()
        return found, await _names(client, _trained_by(found.nodes))

    found, names = session.run(act)

    def human(console: Console) -> None:
        console.print(_services(found), tables.of_nodes(found.nodes, names), sep="\n\n")
        jobs = ", ".join(f"{count} {state}" for state, count in found.jobs.items()) or "none"
        head = f"round {found.round.round} ({found.round.state})" if found.round else "no round yet"
        console.print(f"\njobs: {jobs}; {head}; {target.nats_url}", highlight=False)
        for problem in found.problems:
            console.print(f"problem: {problem}", style="red", highlight=False, markup=False)

    session.show({"nats_url": target.nats_url, "http_url": None, **codec.to_plain(found)}, human)
    if not found.ok:
        raise click.exceptions.Exit(ExitCode.NOT_WELL)


@click.command()
@cluster_options
@pass_session
def nodes(session: Session) -> None:
    """List the nodes and what runs on each of their devices."""

    async def act(client: HadareClient) -> tuple[tuple[api_cluster.NodeInfo, ...], dict[str, str]]:
        found = await client.nodes()
        return found, await _names(client, _trained_by(found))

    found, names = session.run(act)
    session.show({"nodes": codec.to_plain(found)}, lambda console: console.print(tables.of_nodes(found, names)))


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--reason", default="", help="Why, for other people.")
@cluster_options
@pass_session
def drain(session: Session, node: str, reason: str) -> None:
    """Give a node no new work; what it trains now is handed back at the round's end."""
    found = session.run(lambda client: client.drain(node, reason))
    session.show(found, lambda console: console.print(f"{node} drains", highlight=False))


@click.command()
@click.argument("node", metavar="NODE")
@cluster_options
@pass_session
def undrain(session: Session, node: str) -> None:
    """Let a node work again that was drained or put into quarantine."""
    found = session.run(lambda client: client.undrain(node))
    session.show(found, lambda console: console.print(f"{node} works again from the next round on", highlight=False))


@click.command()
@click.argument("node", metavar="NODE")
@click.option("--reason", default="", help="Why, for other people.")
@cluster_options
@pass_session
def forget(session: Session, node: str, reason: str) -> None:
    """Take a lost node off the list; an agent that comes back is on it again."""
    found = session.run(lambda client: client.forget(node, reason))
    session.show(found, lambda console: console.print(f"{node} is forgotten", highlight=False))


@click.command()
@cluster_options
@pass_session
def prices(session: Session) -> None:
    """Show what the next device of each type on each node costs."""
    found = session.run(lambda client: client.prices())

    def human(console: Console) -> None:
        console.print(tables.of_prices(found))
        if not found.cells:
            console.print("no prices yet: they come with the first round", highlight=False)

    session.show(found, human)


@click.command()
@click.argument("number", metavar="[ROUND]", type=click.IntRange(min=0), required=False)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many rounds.")
@cluster_options
@pass_session
def rounds(session: Session, number: int | None, limit: int) -> None:
    """List the newest rounds; with a number: that round's forks and decisions."""
    if number is None:
        listed = session.run(lambda client: client.rounds(limit))
        session.show(listed, lambda console: console.print(tables.of_rounds(listed)))
        return

    async def act(client: HadareClient) -> tuple[api_cluster.RoundView, dict[str, str]]:
        view = await client.round(number)
        jobs = {fork.job_id for fork in view.forks} | {decision.job_id for decision in view.decisions}
        return view, await _names(client, jobs)

    view, names = session.run(act)

    def human(console: Console) -> None:
        console.print(f"round {view.round}, epoch {view.epoch}, {view.state}", highlight=False)
        console.print(tables.of_forks(view, names), tables.of_decisions(view, names), sep="\n\n")

    session.show(view, human)


def _trained_by(nodes: Iterable[api_cluster.NodeInfo]) -> set[str]:
    return {device.job_id for node in nodes for device in node.devices if device.job_id}


async def _names(client: HadareClient, jobs: set[str]) -> dict[str, str]:
    """The names of these jobs; one that has been deleted has none."""
    return {job.job_id: job.name async for job in client.list() if job.job_id in jobs} if jobs else {}


def _services(found: api_cluster.ClusterStatus) -> object:
    rows = [
        (service.name, "answers" if service.ok else "DOES NOT ANSWER", service.instances, service.version)
        for service in found.services
    ]
    return tables.table(("SERVICE", "", "INSTANCES", "VERSION"), rows, right=("INSTANCES",))
