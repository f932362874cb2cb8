"""Whether the service in this container does its work: its own event loop has to answer ``$SRV.PING``.

``python -m hadare.runtime.health NAME`` asks with the service's own settings, and exits 0 only if an instance of NAME
on this very host answers. Replicas elsewhere do not count.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from dataclasses import replace

from nats.aio.msg import Msg

from hadare.model.errors import HadareError
from hadare.runtime.config import load
from hadare.runtime.nats_connection import connect_nats
from hadare.runtime.nats_micro import HOST
from hadare.runtime.service import ServiceConfig

TIME_LIMIT_S = 5.0


async def answers(config: ServiceConfig, service: str, host: str, limit_s: float = TIME_LIMIT_S) -> bool:
    """Whether an instance of ``service`` on ``host`` answers in time. Raises ``HadareError`` if the bus does not."""
    heard = asyncio.Event()

    async def receive(message: Msg) -> None:
        if json.loads(message.data)["metadata"].get(HOST) == host:
            heard.set()

    backplane = await connect_nats(replace(config.nats("health"), declare=False), limit_s)
    try:
        link = backplane.link
        inbox = link.client.new_inbox()
        await link.subscribe(inbox, receive)
        await link.publish(f"$SRV.PING.{service}", b"", reply=inbox)
        async with asyncio.timeout(limit_s):
            await heard.wait()
    except TimeoutError:
        return False
    finally:
        await backplane.close()
    return True


def main() -> int:
    try:
        config = load(ServiceConfig, os.environ)
        healthy = asyncio.run(answers(config, sys.argv[1], socket.gethostname()))
    except HadareError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
