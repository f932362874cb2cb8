"""Makes the NATS users of a cluster: a secret seed for each service, and the server's list of who may do what.

``python -m hadare.runtime.credentials --node NAME DIRECTORY`` writes ``DIRECTORY/<user>/user.nk``, for the user alone,
and ``DIRECTORY/nats/users.conf``, which the server's configuration includes. Seeds that exist are kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from hadare.model.errors import Broken, Rejected
from hadare.model.fields import NodeId
from hadare.runtime.permissions import REPLIES, Permissions, Roles
from hadare.runtime.seeds import inbox_prefix, new_seed, public_key
from hadare.wire import codec

SEED_FILE = "user.nk"
USERS_FILE = "users.conf"
SERVICES = ("gateway", "pricing", "allocator", "jobtracker", "client")
_PRIVATE = 0o400


@dataclass(frozen=True, slots=True)
class Owner:
    """The user and group id that a service runs with, and so reads its seed with. -1: whoever runs this."""

    uid: int = -1
    gid: int = -1


def users(prefix: str, nodes: tuple[str, ...]) -> dict[str, Permissions]:
    """Every user of the cluster by name. Raises ``Rejected`` (400) for a node whose name would widen its rights."""
    roles = Roles(prefix)
    for node in codec.convert(list(nodes), list[NodeId]):
        if node in (*SERVICES, "nats"):
            raise Rejected(400, f"a node cannot be called '{node}': a service is")
    services: dict[str, Permissions] = {name: getattr(roles, name)() for name in SERVICES}
    return services | {node: roles.node(node) for node in nodes}


def write(directory: Path, prefix: str, nodes: tuple[str, ...], owner: Owner) -> list[str]:
    """Writes the seeds that are missing and the server's list; returns the users that are new. Raises ``Broken``."""
    members = users(prefix, nodes)
    made = [name for name in members if _ensure_seed(directory / name, owner)]
    keys = {name: public_key(directory / name / SEED_FILE) for name in members}
    _write_private(directory / "nats" / USERS_FILE, server_users(members, keys).encode(), Owner())
    return made


def server_users(members: Mapping[str, Permissions], keys: Mapping[str, str]) -> str:
    """The part of nats-server's configuration that lists the users; its values are written as JSON."""
    listed = [
        {
            "nkey": keys[name],
            "permissions": {
                "publish": {"allow": list(allowed.publish)},
                "subscribe": {"allow": [*allowed.subscribe, f"{inbox_prefix(keys[name])}.>"]},
                "allow_responses": REPLIES,
            },
        }
        for name, allowed in members.items()
    ]
    names = "".join(f"# {name}: {keys[name]}\n" for name in members)
    return f"{names}authorization: {json.dumps({'users': listed}, indent=1)}\n"


def _ensure_seed(folder: Path, owner: Owner) -> bool:
    path = folder / SEED_FILE
    if path.exists():
        return False
    _write_private(path, new_seed() + b"\n", owner)
    folder.chmod(0o700)
    os.chown(folder, owner.uid, owner.gid)
    return True


def _write_private(path: Path, data: bytes, owner: Owner) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    os.chown(unfinished, owner.uid, owner.gid)
    unfinished.replace(path)


def _owner(text: str) -> Owner:
    uid, _, gid = text.partition(":")
    if not (uid.isdigit() and gid.isdigit()):
        raise click.BadParameter("UID:GID, two numbers")
    return Owner(int(uid), int(gid))


@click.command(help=__doc__)
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="A node agent; once for each.")
@click.option("--prefix", envvar="HADARE_PREFIX", default="hadare", show_default=True, help="The cluster's prefix.")
@click.option("--owner", metavar="UID:GID", default="", help="Who owns the seeds; needs root.")
def main(directory: Path, nodes: tuple[str, ...], prefix: str, owner: str) -> None:
    try:
        made = write(directory, prefix, nodes, _owner(owner) if owner else Owner())
    except (Rejected, Broken, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"new users: {', '.join(made) or 'none'}", err=True)


if __name__ == "__main__":
    main()
