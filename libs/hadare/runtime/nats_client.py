"""nats-py's client, less one way to go deaf."""

from __future__ import annotations

import asyncio

from nats.aio.client import Client


class PatientClient(Client):
    """Bears a pong that comes after its asker has given up.

    nats-py cancels the waiting of ``flush`` and ``rtt`` when their time is up and leaves it in its list; the pong that
    comes late after all then raises in the read loop, which ends in silence: the client believes to be connected and
    hears nothing any more. A link that was stalled for some seconds must not cost a connection.
    """

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()
