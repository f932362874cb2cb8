"""Where gangs whose first rank is on this node meet: a port for every device."""

from __future__ import annotations

import socket
from contextlib import ExitStack

MAX_PORTS = 1024


def parse_ports(text: str) -> tuple[int, ...]:
    """``29400-29407`` or ``29400,29410``, in any mix; none if empty. Raises ``ValueError``."""
    ports: list[int] = []
    for term in (part.strip() for part in text.split(",") if part.strip()):
        first, dash, last = term.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"gang_ports: '{term}' is neither PORT nor FIRST-LAST")
        begin, end = int(first), int(last or first)
        if not 1 <= begin <= end <= 65535 or end - begin >= MAX_PORTS:
            raise ValueError(f"gang_ports: '{term}' is not a range of at most {MAX_PORTS} ports from 1 to 65535")
        ports += range(begin, end + 1)
    if len(set(ports)) != len(ports):
        raise ValueError("gang_ports: a port is named twice")
    return tuple(ports)


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nobody listens at now. Another program may take one before a gang does; that gang then fails."""
    with ExitStack() as held:
        doors = [held.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return tuple(door.getsockname()[1] for door in doors)
