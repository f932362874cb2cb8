"""The proxy between a socket that speaks like a NATS client, and one that notes what arrives at the bus."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from hadare.bench.chaos.proxy import Proxy, Trouble

HELLO = b"CONNECT {}\r\n"
BEAT = b"PUB h.node.v1.n1.heartbeat 2\r\n\r\n\r\n"
RESULT = b"HPUB h.tracker.v1.result _INBOX.a 12 15\r\nNATS/1.0\r\n\r\nabc\r\n"
OTHER = b"PUB $KV.h_rounds.head 3\r\nabc\r\n"
ENCORE = b"PING\r\n"


class Bus:
    """The far end: what it has read, and who is connected."""

    def __init__(self) -> None:
        self.port = 0
        self.read = b""
        self.closed = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while data := await reader.read(1000):
                self.read += data
                self.changed.set()
        except ConnectionError:
            pass
        finally:
            self.closed += 1
            self.changed.set()
            writer.close()

    async def until_read(self, wanted: bytes) -> None:
        async with asyncio.timeout(10):
            while self.read != wanted:
                self.changed.clear()
                assert wanted.startswith(self.read), self.read
                await self.changed.wait()


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    bus = Bus()
    server = await asyncio.start_server(bus.serve, "127.0.0.1", 0)
    bus.port = server.sockets[0].getsockname()[1]
    yield bus
    server.close()


@pytest.fixture
async def proxy(bus: Bus) -> AsyncIterator[Proxy]:
    proxy = Proxy("n1", bus.port)
    await proxy.start()
    yield proxy
    await proxy.close()


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.close()


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """Waits until the other end closes or resets; false if it says something instead."""
    try:
        async with asyncio.timeout(10):
            return await reader.read(1) == b""
    except ConnectionError:
        return True


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def test_a_healthy_link_changes_nothing_in_either_direction(bus: Bus, client: Client) -> None:
    reader, writer = client
    writer.write(HELLO + BEAT + RESULT[:20])
    writer.write(RESULT[20:] + OTHER)
    await bus.until_read(HELLO + BEAT + RESULT + OTHER)
    bus.writers[0].write(b"INFO {}\r\n")
    assert await reader.readexactly(9) == b"INFO {}\r\n"


async def test_doubled_are_messages_but_no_writes_to_the_state_of_record(
    bus: Bus, proxy: Proxy, client: Client
) -> None:
    with proxy.suffers(Trouble.DOUBLE):
        client[1].write(HELLO + BEAT + RESULT + OTHER)
        await bus.until_read(HELLO + BEAT * 2 + RESULT * 2 + OTHER)
    assert proxy.doubled == 2


async def test_results_that_are_held_back_come_after_what_was_said_later(
    bus: Bus, proxy: Proxy, client: Client
) -> None:
    with proxy.suffers(Trouble.LATE):
        client[1].write(RESULT + BEAT)
        await bus.until_read(BEAT)
    client[1].write(ENCORE)
    await bus.until_read(BEAT + RESULT + ENCORE)


async def test_a_stalled_link_stays_open_and_delivers_when_it_recovers(bus: Bus, proxy: Proxy, client: Client) -> None:
    client[1].write(HELLO)
    await bus.until_read(HELLO)
    with proxy.suffers(Trouble.STALL):
        client[1].write(BEAT)
        await client[1].drain()
    await bus.until_read(HELLO + BEAT)
    assert bus.closed == 0


async def test_a_cut_link_is_closed_and_nobody_gets_through_before_it_heals(
    bus: Bus, proxy: Proxy, client: Client
) -> None:
    client[1].write(HELLO)
    await bus.until_read(HELLO)
    with proxy.suffers(Trouble.CUT):
        assert await hung_up(client[0])
        refused, gone = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await hung_up(refused)
        gone.close()
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(BEAT)
    await bus.until_read(HELLO + BEAT)
    writer.close()
