"""Awaited enqueues that come at the same time go together, and each has its own end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest
import redis
from msgspec import structs

from tests.support.internals import batchers_of, batches_on_their_way, layout_of
from tests.support.proxy import FaultProxy, nth, rewrite
from tests.support.server import Server
from tests.support.waiting import LIMIT_S
from windlass import Queue, Receipt, Status, Windlass
from windlass.errors import NotDurable, QueueFull, ServerUnreachable, UnsupportedByLayout
from windlass.storage.port import Call, Enqueued
from windlass.transport import enqueue_batcher
from windlass.transport.enqueue_batcher import FLUSH_AT, EnqueueBatcher, Split
from windlass.values.durability import Durability
from windlass.values.job import NewJob


def calls(client: redis.Redis) -> int:
    stats: Any = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_a_hundred_at_a_time_are_two_calls(raw_queue: Queue, client: redis.Redis) -> None:
    await raw_queue.aenqueue(b"first")
    before = calls(client)
    receipts = await asyncio.gather(*(raw_queue.aenqueue(b"%d" % number) for number in range(100)))
    assert calls(client) - before == 2
    assert {receipt.status for receipt in receipts} == {Status.ADDED}
    leases = await raw_queue.alease_many(101)
    assert [lease.data for lease in leases] == [b"first", *(b"%d" % number for number in range(100))]
    assert [lease.id for lease in leases[1:]] == [receipt.id for receipt in receipts]
    await raw_queue.acomplete_many(leases)


def safe(id: str) -> NewJob:
    return NewJob(id, b"", fresh=True, durability=Durability.parse("fsync"))


class Sent:
    """Takes batches as a server would, and answers each when it is told to."""

    def __init__(self, split: Split = lambda jobs: [jobs]) -> None:
        self.batches: list[list[str]] = []
        self.ended: list[list[str]] = []
        self.third = asyncio.Event()
        self._answers: list[asyncio.Event] = []
        self.batcher = EnqueueBatcher(self._send, split)

    async def _send(self, jobs: list[NewJob]) -> list[Receipt]:
        self.batches.append([job.id for job in jobs])
        if len(self.batches) == 3:
            self.third.set()
        answer = asyncio.Event()
        self._answers.append(answer)
        try:
            await answer.wait()
        except asyncio.CancelledError:
            self.ended.append([job.id for job in jobs])
            raise
        return [Receipt(job.id, Status.ADDED, "memory") for job in jobs]

    def enqueue(self, *ids: str) -> list[asyncio.Task[Receipt]]:
        return [asyncio.create_task(self.batcher.enqueue(NewJob(id, b"", fresh=True))) for id in ids]

    def answer(self, number: int) -> None:
        self._answers[number].set()

    async def after_turns(self, turns: int = 10) -> list[list[str]]:
        for _ in range(turns):
            await asyncio.sleep(0)
        return self.batches


async def test_who_comes_alone_goes_at_once_and_two_of_a_kind_wait_for_nobody() -> None:
    sent = Sent()
    waiting = sent.enqueue("a")
    assert await sent.after_turns(1) == [["a"]]
    waiting += sent.enqueue("b")
    assert await sent.after_turns() == [["a"], ["b"]]
    sent.answer(0)
    sent.answer(1)
    assert [receipt.id for receipt in await asyncio.gather(*waiting)] == ["a", "b"]


async def test_one_that_comes_while_many_are_under_way_goes_with_them_when_they_come_again() -> None:
    sent = Sent()

    async def enqueue_two(first: str, second: str) -> None:
        await sent.batcher.enqueue(NewJob(first, b"", fresh=True))
        await sent.batcher.enqueue(NewJob(second, b"", fresh=True))

    first = sent.enqueue("a")
    crowd = [asyncio.create_task(enqueue_two(*ids)) for ids in zip("bcdefg", "hijklm", strict=True)]
    assert await sent.after_turns() == [["a"], list("bcdefg")]
    sent.answer(0)
    late = sent.enqueue("x")
    assert len(await sent.after_turns()) == 2, "it waits"
    sent.answer(1)
    assert (await sent.after_turns())[2:] == [list("xhijklm")]
    sent.answer(2)
    await asyncio.gather(*first, *late, *crowd)


async def test_one_that_comes_while_many_are_under_way_waits_for_a_moment_at_most() -> None:
    sent = Sent()
    crowd = sent.enqueue(*"abcdefg")
    await sent.after_turns()
    late = sent.enqueue("x")
    assert len(await sent.after_turns()) == 2
    async with asyncio.timeout(LIMIT_S):
        await sent.third.wait()  # and nothing is answered
    assert sent.batches[2] == ["x"]
    for number in range(3):
        sent.answer(number)
    await asyncio.gather(*crowd, *late)


async def test_one_waits_for_a_moment_at_most_whatever_is_answered_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_batcher, "MAX_WAIT_S", 0.05)
    sent = Sent()
    waiting = sent.enqueue(*"abcdefg")
    await sent.after_turns()
    waiting += sent.enqueue("x")
    while ["x"] not in sent.batches:
        # Those that it waits for are not answered, and others again and again.
        others = [asyncio.create_task(sent.batcher.enqueue(safe(name))) for name in "hijklmn"]
        for number in range(2, len(await sent.after_turns())):
            sent.answer(number)
        await asyncio.gather(*others)
    for number in range(len(sent.batches)):
        sent.answer(number)
    await asyncio.gather(*waiting)


async def test_who_is_to_be_safer_does_not_wait_for_those_it_cannot_go_with() -> None:
    sent = Sent()
    crowd = sent.enqueue(*"abcdefg")
    await sent.after_turns()
    crowd.append(asyncio.create_task(sent.batcher.enqueue(safe("x"))))
    assert (await sent.after_turns(3))[2:] == [["x"]]
    for number in range(3):
        sent.answer(number)
    await asyncio.gather(*crowd)


async def test_a_crowd_does_not_wait_until_the_last_of_it_has_come() -> None:
    """The server is at work on the first of them while the others are being made, if there are connections for that."""
    sent = Sent()
    names = [str(number) for number in range(3 * FLUSH_AT)]
    crowd = sent.enqueue(*names)
    assert await sent.after_turns() == [names[:1], names[1:]], "a connection for the first, and one for the others"
    sent.answer(0)
    sent.answer(1)
    assert [receipt.id for receipt in await asyncio.gather(*crowd)] == names
    crowd = sent.enqueue(*names)
    assert (await sent.after_turns())[2:] == [names[:1], names[1 : FLUSH_AT + 1], names[FLUSH_AT + 1 :]]
    for number in range(2, 5):
        sent.answer(number)
    await asyncio.gather(*crowd)


def test_event_loops_that_have_ended_are_not_kept(raw_queue: Queue) -> None:
    for _ in range(3):
        asyncio.run(raw_queue.aenqueue(b"x"))
    gc.collect()
    assert len(batchers_of(raw_queue)) <= 1  # the app takes over the connections of the last one when there is another
    assert raw_queue.counts().ready == 3


def test_the_next_batch_is_made_while_the_server_is_at_work(raw_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    layout = layout_of(raw_queue)
    enqueue = layout.enqueue

    def noted(jobs: Sequence[NewJob]) -> Call[Enqueued]:
        call = enqueue(jobs)
        order.append("made")

        def read(reply: Any) -> Enqueued:
            order.append("answered")
            return call.read(reply)

        return structs.replace(call, read=read)

    monkeypatch.setattr(layout, "enqueue", noted)
    receipts = raw_queue.enqueue_many(b"%d" % number for number in range(2500))
    assert order == ["made", "made", "answered", "made", "answered", "answered"]
    leases = [lease for _ in range(3) for lease in raw_queue.lease_many(1000)]
    assert [lease.id for lease in leases] == [receipt.id for receipt in receipts]


async def test_one_that_comes_alone_is_one_call(raw_queue: Queue, client: redis.Redis) -> None:
    await raw_queue.aenqueue(b"x")
    before = calls(client)
    for _ in range(5):
        await raw_queue.aenqueue(b"x")
    assert calls(client) - before == 5


async def test_the_same_id_twice_at_a_time(raw_queue: Queue) -> None:
    asked = [("a", b"1"), ("b", b"2"), ("b", b"3"), ("a", b"4")]
    receipts = await asyncio.gather(*(raw_queue.aenqueue(data, id=id) for id, data in asked))
    assert [receipt.status for receipt in receipts] == ["added", "added", "updated", "updated"]
    assert {lease.id: lease.data for lease in await raw_queue.alease_many(5)} == {"a": b"4", "b": b"3"}


async def test_who_does_not_wait_any_more_is_not_sent_and_the_others_are(raw_queue: Queue) -> None:
    tasks = [asyncio.create_task(raw_queue.aenqueue(b"", id=f"job-{number}")) for number in range(5)]
    asyncio.get_running_loop().call_soon(tasks[3].cancel)  # before their turn of the loop is over
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [Receipt, Receipt, Receipt, asyncio.CancelledError, Receipt]
    assert {job.id async for job in raw_queue.aall_jobs("ready")} == {"job-0", "job-1", "job-2", "job-4"}


async def test_a_call_that_nobody_waits_for_any_more_is_ended_and_one_that_somebody_does_goes_on() -> None:
    sent = Sent()
    alone, crowd = sent.enqueue("a"), sent.enqueue(*"bcd")
    await sent.after_turns()
    for each in crowd[:2]:
        each.cancel()
    await sent.after_turns()
    assert sent.ended == []
    crowd[2].cancel()
    await sent.after_turns()
    assert sent.ended == [["b", "c", "d"]]
    sent.answer(0)
    assert [type(end) for end in await asyncio.gather(*alone, *crowd, return_exceptions=True)] == [
        Receipt, *[asyncio.CancelledError] * 3,
    ]  # fmt: skip


async def test_a_batch_that_nobody_waits_for_any_more_when_its_turn_comes_is_not_sent() -> None:
    sent = Sent(lambda jobs: [jobs[:2], jobs[2:4], jobs[4:]] if len(jobs) > 1 else [jobs])
    alone, crowd = sent.enqueue("a"), sent.enqueue(*"bcdefg")
    await sent.after_turns()
    for each in crowd[2:4]:
        each.cancel()
    for number in range(3):
        await sent.after_turns()
        sent.answer(number)
    async with asyncio.timeout(LIMIT_S):
        ends = await asyncio.gather(*alone, *crowd, return_exceptions=True)
    assert [getattr(end, "id", None) for end in ends] == ["a", "b", "c", None, None, "f", "g"]
    assert sent.batches == [["a"], ["b", "c"], ["f", "g"]]


async def test_an_error_reaches_everybody(proxy: FaultProxy) -> None:
    async with Windlass(proxy.url, retry_for=0.2) as app:
        queue = app.queue("gathered")
        proxy.down()
        ends = await asyncio.gather(*(queue.aenqueue(b"") for _ in range(5)), return_exceptions=True)
        assert {type(end) for end in ends} == {ServerUnreachable}
        proxy.up()
        assert (await queue.acounts()).ready == 0


async def test_who_asks_for_more_than_there_is_does_not_spoil_it_for_the_others(
    server: Server, raw_queue: Queue
) -> None:
    async with Windlass(server.url, call_timeout=0.5) as app:
        queue = app.queue(raw_queue.name)
        plain = [queue.aenqueue(b"", id=f"plain-{number}") for number in range(3)]
        safe = [queue.aenqueue(b"", id=f"safe-{number}", durability="replicated(1)") for number in range(3)]
        ends = await asyncio.gather(*plain, *safe, return_exceptions=True)
    assert all(isinstance(end, Receipt) for end in ends[:3])
    for number, end in enumerate(ends[3:]):
        assert isinstance(end, NotDurable)
        assert [receipt.id for receipt in end.receipts] == [f"safe-{number}"]


async def test_who_was_sent_is_not_told_of_the_failure_of_others(proxy: FaultProxy) -> None:
    """An id that comes twice makes it two calls behind the first, and the second of these fails."""
    async with Windlass(proxy.url, retry_for=0.2) as app:
        queue = app.queue("gathered")
        await queue.aenqueue(b"", id="before")
        full = rewrite(lambda frame: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
        proxy.faults = nth(full, only={"EVALSHA"}, n=3)
        asked = ["first", "a", "b", "a", "c"]
        ends = await asyncio.gather(*(queue.aenqueue(b"", id=id) for id in asked), return_exceptions=True)
        assert [type(end) for end in ends] == [Receipt, Receipt, Receipt, QueueFull, QueueFull]
        await queue.apurge()


async def test_what_a_layout_cannot_do_is_told_to_who_asked_for_it(server: Server, client: redis.Redis) -> None:
    server.command("PING")  # one that has all the keys of a queue: a cluster is refused by this layout
    async with Windlass(server.url, layouts={"*": "workqueue"}) as app:
        queue = app.queue("gathered")
        calls = (queue.aenqueue(b"1"), queue.aenqueue(b"2"), queue.aenqueue(b"3", priority=1), queue.aenqueue(b"4"))
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [Receipt, Receipt, UnsupportedByLayout, Receipt]
        assert (await queue.acounts()).ready == 3
        await queue.apurge()


async def test_what_nobody_waits_for_any_more_is_not_sent_later(proxy: FaultProxy) -> None:
    async with Windlass(proxy.url, retry_for=30) as app:
        queue = app.queue("gathered")
        await queue.acounts()
        proxy.down()
        waiting = [asyncio.wait_for(queue.aenqueue(b""), 0.3) for _ in range(4)]
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {TimeoutError}
        (enqueue_batcher,) = batchers_of(queue)
        async with asyncio.timeout(LIMIT_S):  # long before it would give up by itself
            await asyncio.gather(*batches_on_their_way(enqueue_batcher), return_exceptions=True)
        proxy.up()
        assert (await queue.acounts()).ready == 0
