"""Stands for a node agent: starts a fork server and a fork that leaves processes behind, says who they are, and waits
to be killed."""

from __future__ import annotations

import asyncio
import sys

from hadare.training.forkclient import ForkServer
from hadare.training.protocol import ForkSpec, Ready


async def main(folder: str) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    server = await ForkServer.start([])
    spec = ForkSpec(workload="hostile_tasks:LeavesProcesses", path=(folder,))
    fork = await server.spawn("starter.1", spec, on_output=lines.put_nowait)
    async for report in fork:
        if isinstance(report, Ready):
            break
    line = await lines.get()
    print(line.removeprefix("left"), fork.pid, server.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
