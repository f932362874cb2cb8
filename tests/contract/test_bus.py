from __future__ import annotations

import asyncio

import pytest

from hadare.model.devices import Heartbeat
from hadare.model.errors import Rejected, Unavailable
from hadare.model.leases import LeaseAnswer, Revoke, Revoked
from hadare.runtime.bus import Backplane, Identity, Route
from hadare.wire.subjects import HEARTBEAT, REVOKE, Topic

AGENT = Identity("agent", "1.0.0", "a node agent")


def a_heartbeat(node: str, sequence: int = 0) -> Heartbeat:
    return Heartbeat(node=node, incarnation="i1", sequence=sequence)


class Heard:
    """Collects what a subscription delivers."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def hear(self, message: Heartbeat) -> None:
        self._queue.put_nowait(message)

    async def next(self) -> Heartbeat:
        async with asyncio.timeout(10):
            return await self._queue.get()

    def nothing_more(self) -> bool:
        return self._queue.empty()


async def test_a_message_reaches_every_subscriber(plane: Backplane, other: Backplane) -> None:
    one, two = Heard(), Heard()
    await plane.bus.subscribe(HEARTBEAT, one.hear)
    await other.bus.subscribe(HEARTBEAT, two.hear)
    await plane.bus.publish(HEARTBEAT, a_heartbeat("n1"), node="n1")
    assert await one.next() == a_heartbeat("n1")
    assert await two.next() == a_heartbeat("n1")


async def test_messages_of_one_publisher_arrive_in_order(plane: Backplane, other: Backplane) -> None:
    heard = Heard()
    await other.bus.subscribe(HEARTBEAT, heard.hear)
    for sequence in range(100):
        await plane.bus.publish(HEARTBEAT, a_heartbeat("n1", sequence), node="n1")
    assert [(await heard.next()).sequence for _ in range(100)] == list(range(100))


async def test_a_token_selects_and_a_missing_one_matches_all(plane: Backplane, other: Backplane) -> None:
    mine, everyones = Heard(), Heard()
    await other.bus.subscribe(HEARTBEAT, mine.hear, node="n2")
    await other.bus.subscribe(HEARTBEAT, everyones.hear)
    for node in ("n1", "n2"):
        await plane.bus.publish(HEARTBEAT, a_heartbeat(node), node=node)
    assert [(await everyones.next()).node for _ in range(2)] == ["n1", "n2"]
    assert (await mine.next()).node == "n2"
    assert mine.nothing_more()


async def test_of_a_group_one_member_gets_each_message(plane: Backplane, other: Backplane) -> None:
    one, two, all_of_them = Heard(), Heard(), Heard()
    await plane.bus.subscribe(HEARTBEAT, one.hear, group="g")
    await other.bus.subscribe(HEARTBEAT, two.hear, group="g")
    await other.bus.subscribe(HEARTBEAT, all_of_them.hear)
    for sequence in range(40):
        await plane.bus.publish(HEARTBEAT, a_heartbeat("n1", sequence), node="n1")
    shared = Heard()
    for _ in range(40):
        await shared.hear(await all_of_them.next())
    got = []
    async with asyncio.timeout(10):
        while len(got) < 40:
            got += [heard._queue.get_nowait().sequence for heard in (one, two) if not heard.nothing_more()]
            await asyncio.sleep(0)
    assert sorted(got) == list(range(40))


async def test_after_stop_nothing_is_delivered(plane: Backplane) -> None:
    stopped, kept = Heard(), Heard()
    subscription = await plane.bus.subscribe(HEARTBEAT, stopped.hear)
    await plane.bus.subscribe(HEARTBEAT, kept.hear)
    await subscription.stop()
    await plane.bus.publish(HEARTBEAT, a_heartbeat("n1"), node="n1")
    await kept.next()
    assert stopped.nothing_more()


async def test_what_does_not_decode_is_dropped_and_the_next_message_arrives(plane: Backplane) -> None:
    heard = Heard()
    await plane.bus.subscribe(HEARTBEAT, heard.hear)
    await plane.bus.publish(Topic(HEARTBEAT.template, Revoked), Revoked(ended=("x",)), node="n1")
    await plane.bus.publish(HEARTBEAT, a_heartbeat("n1", 2), node="n1")
    assert (await heard.next()).sequence == 2


async def test_a_handler_that_fails_gets_the_next_message(plane: Backplane) -> None:
    heard = Heard()

    async def fail_first(message: Heartbeat) -> None:
        if message.sequence == 0:
            raise Rejected(400, "not this one")
        await heard.hear(message)

    await plane.bus.subscribe(HEARTBEAT, fail_first)
    for sequence in range(2):
        await plane.bus.publish(HEARTBEAT, a_heartbeat("n1", sequence), node="n1")
    assert (await heard.next()).sequence == 1


async def test_a_question_is_answered(plane: Backplane, other: Backplane) -> None:
    async def revoke(question: Revoke) -> Revoked:
        return Revoked(ended=(question.job_id,))

    await plane.bus.serve(AGENT, [Route(REVOKE, revoke, {"node": "n1"})])
    answer = await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert answer == Revoked(ended=("j1",))


async def test_a_rejection_reaches_the_asker_whole(plane: Backplane, other: Backplane) -> None:
    async def refuse(question: Revoke) -> Revoked:
        raise Rejected(412, "the epoch is old", {"epoch": 7})

    await plane.bus.serve(AGENT, [Route(REVOKE, refuse, {"node": "n1"})])
    with pytest.raises(Rejected) as refused:
        await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert (refused.value.code, refused.value.message) == (412, "the epoch is old")
    assert refused.value.details == {"epoch": 7}


async def test_a_responder_that_cannot_answer_now_is_unavailable(plane: Backplane, other: Backplane) -> None:
    async def not_now(question: Revoke) -> Revoked:
        raise Unavailable("the store is away")

    await plane.bus.serve(AGENT, [Route(REVOKE, not_now, {"node": "n1"})])
    with pytest.raises(Unavailable, match="the store is away"):
        await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")


async def test_a_bug_in_a_handler_is_answered_with_500_and_tells_nothing(plane: Backplane, other: Backplane) -> None:
    async def stumble(question: Revoke) -> Revoked:
        raise RuntimeError("the password is 1234")

    await plane.bus.serve(AGENT, [Route(REVOKE, stumble, {"node": "n1"})])
    with pytest.raises(Rejected) as refused:
        await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert (refused.value.code, refused.value.message) == (500, "internal error")


async def test_asking_nobody_is_unavailable_at_once(plane: Backplane) -> None:
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable):
            await plane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=60, node="n1")


async def test_no_answer_in_time_is_unavailable(plane: Backplane, other: Backplane) -> None:
    ended = asyncio.Event()

    async def dawdle(question: Revoke) -> Revoked:
        await ended.wait()
        return Revoked()

    await plane.bus.serve(AGENT, [Route(REVOKE, dawdle, {"node": "n1"})])
    with pytest.raises(Unavailable):
        await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=0.05, node="n1")
    ended.set()


async def test_questions_are_handled_side_by_side_up_to_the_bound(plane: Backplane, other: Backplane) -> None:
    """Three questions are under way at once, the fourth only when one of them is answered."""
    inside = 0
    most = 0
    three_inside = asyncio.Event()
    go_on = asyncio.Event()

    async def meet(question: Revoke) -> Revoked:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 3:
            three_inside.set()
        await go_on.wait()
        inside -= 1
        return Revoked()

    await plane.bus.serve(AGENT, [Route(REVOKE, meet, {"node": "n1"}, concurrency=3)])
    asking = [
        asyncio.create_task(other.bus.ask(REVOKE, Revoke(job_id=f"j{n}"), timeout_s=20, node="n1")) for n in range(6)
    ]
    async with asyncio.timeout(10):
        await three_inside.wait()
        go_on.set()
        await asyncio.gather(*asking)
    assert most == 3


async def test_stop_answers_what_is_under_way(plane: Backplane, other: Backplane) -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(question: Revoke) -> Revoked:
        arrived.set()
        await go_on.wait()
        return Revoked(ended=("done",))

    server = await plane.bus.serve(AGENT, [Route(REVOKE, slow, {"node": "n1"})])
    asking = asyncio.create_task(other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=20, node="n1"))
    async with asyncio.timeout(10):
        await arrived.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        go_on.set()
        assert await asking == Revoked(ended=("done",))
        await stopping
    with pytest.raises(Unavailable):
        await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=1, node="n1")


async def test_of_two_replicas_one_answers_each_question(plane: Backplane, other: Backplane) -> None:
    asked: list[str] = []

    def replica(name: str) -> Route[Revoke, Revoked]:
        async def revoke(question: Revoke) -> Revoked:
            asked.append(name)
            return Revoked()

        return Route(REVOKE, revoke, {"node": "n1"})

    await plane.bus.serve(AGENT, [replica("one")])
    await other.bus.serve(AGENT, [replica("two")])
    for _ in range(20):
        await plane.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert len(asked) == 20
    assert set(asked) == {"one", "two"}


async def test_an_answer_of_the_wrong_type_is_not_taken_for_one(plane: Backplane, other: Backplane) -> None:
    async def wrong(question: Revoke) -> Revoked:
        return LeaseAnswer(accepted=True, reason="not a Revoked") if question else Revoked()  # type: ignore[return-value]

    await plane.bus.serve(AGENT, [Route(REVOKE, wrong, {"node": "n1"})])
    answer = await other.bus.ask(REVOKE, Revoke(job_id="j1"), timeout_s=10, node="n1")
    assert answer == Revoked()  # unknown fields are ignored, and every field of Revoked has a default


async def test_a_question_too_large_is_rejected_and_the_connection_lives_on(plane: Backplane) -> None:
    heard = Heard()
    await plane.bus.subscribe(HEARTBEAT, heard.hear)
    huge = Heartbeat(node="n1", incarnation="i1", sequence=0, busy={str(n): "x" * 1000 for n in range(1100)})
    with pytest.raises(Rejected) as refused:
        await plane.bus.publish(HEARTBEAT, huge, node="n1")
    assert refused.value.code == 413
    await plane.bus.publish(HEARTBEAT, a_heartbeat("n1"), node="n1")
    assert await heard.next() == a_heartbeat("n1")
