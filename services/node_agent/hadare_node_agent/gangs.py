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


def reserve(held: ExitStack, port: int = 0) -> int:
    """Keeps a port free, or any free one, until ``held`` is closed. Raises ``OSError`` if another program has it.

    It is bound but not listened at, so that rank 0 of a gang may listen there, while whoever asks the system for any
    port, or calls out from any, gets another one.
    """
    door = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else no rank could listen there
    door.bind(("", port))
    found: int = door.getsockname()[1]
    return found


def taken(held: ExitStack, ports: tuple[int, ...]) -> tuple[int, ...]:
    """Reserves these, and returns those that another program has: no gang can meet there as long as it does."""
    others = []
    for port in ports:
        try:
            reserve(held, port)
        except OSError:
            others.append(port)
    return tuple(others)
