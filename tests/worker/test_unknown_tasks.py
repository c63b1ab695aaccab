"""Workers with different tasks on one queue. A job of a task that a worker does not know is parked for one that does.

Leases here are so long that no heartbeat comes while a test waits: the workers must hear of parked jobs themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.conditions import until
from tests.support.internals import perform, settle
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.workers import Workshop
from windlass import Job, Queue, Windlass, current
from windlass.storage.formats import PARK_MS
from windlass.storage.native.keys import parked_channel, queue_key
from windlass.storage.port import LeaseRequest, Turn
from windlass.values.outcome import UnknownTask
from windlass.worker.runner.parked_tasks import MAX_CLAIMS, ParkedTasks
from windlass.worker.settings import BEATS_PER_LEASE

LEASE_S = 600.0
assert min(LEASE_S / BEATS_PER_LEASE, PARK_MS / 1000) > 2 * LIMIT_S


@asynccontextmanager
async def working(app: Windlass, queue: str, **options: Any) -> AsyncIterator[None]:
    """A worker inside the test, for as long as the block lasts."""
    worker = app.worker([queue], **options)
    running = asyncio.create_task(worker.run())
    yield
    await worker.stop()
    await running


def start(shop: Workshop, tasks: str) -> None:
    shop.start("differing", environment={"WINDLASS_TEST_TASKS": tasks}, lease=LEASE_S)


@pytest.mark.parametrize("teams", [["odd", "even"], ["odd", "odd", "odd", "even"]], ids=" ".join)
def test_workers_with_different_tasks_do_not_delay_each_other(server: Server, tmp_path: Path, teams: list[str]) -> None:
    with Workshop(server, tmp_path) as shop:
        for team in teams:
            start(shop, team)
        calls = [shop.call(task, number) for number in range(100) for task in ("odd", "even")]
        random.Random(6).shuffle(calls)
        ids = shop.send_many(calls)
        shop.wait_empty()
        done = shop.journal.all("done")
        assert Counter(entry.id for entry in done) == Counter(ids)
        assert Counter(entry.task for entry in done) == {
            "odd": 100,
            "even": 100,
        }
        assert {entry.attempt for entry in done} == {1}


def test_a_job_comes_to_a_worker_that_is_idle(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        for team in ("odd", "odd", "even"):
            start(shop, team)
        for number in range(10):
            id = shop.send("even", number)
            shop.journal.wait(1, "done", id=id)


def test_workers_that_do_not_know_a_task_leave_its_job_alone(server: Server, tmp_path: Path) -> None:
    with Workshop(server, tmp_path) as shop:
        for _ in range(2):
            start(shop, "odd")
        id = shop.send("even", 1)
        wait_until(lambda: shop.queue().counts().parked == 1, "the job to be parked")
        parked = shop.queue().get(id)
        with server.client() as client:
            client.publish(parked_channel("default"), "even")
        for number in range(10):
            shop.journal.wait(1, "done", id=shop.send("odd", number))
        assert shop.queue().get(id) == parked, "it was not leased again"
        start(shop, "even")
        shop.journal.wait(1, "done", id=id)


async def test_a_worker_does_not_claim_what_it_has_no_processes_for(app: Windlass, client: redis.Redis) -> None:
    ran: list[str] = []

    @app.task(queue="media", run="process")
    def scale() -> None: ...

    @app.task(queue="plain")
    async def other() -> None:
        ran.append("other")

    @app.task(queue="media")
    async def handled() -> None: ...

    @handled.on_failure(run="process")
    def caught() -> None: ...

    queue = app.queue("plain")
    ids = [(await scale.using(queue="plain").aenqueue()).id for _ in range(2)]
    async with working(app, "plain"):
        await until(lambda: queue.counts().parked == 2)
        parked = [queue.get(id) for id in ids]
        for name in (scale.name, handled.name, "scale"):
            client.publish(parked_channel("plain"), name)
        while len(ran) < 5:
            before = len(ran)
            await other.aenqueue()
            await until(lambda: len(ran) > before)  # noqa: B023  # awaited at once
        assert [queue.get(id) for id in ids] == parked
    await queue.apurge()


# -- the turn ------------------------------------------------------------------------------------


def park(queue: Queue, task: str, *ids: str) -> None:
    for id in ids:
        queue.enqueue(f"data of {id}".encode(), id=id, priority=7)
    for lease in queue.lease_many(len(ids)):
        assert settle(queue, UnknownTask(lease, task)) == (True,)


def claim(queue: Queue, want: int, *tasks: str) -> Turn:
    request = LeaseRequest(want=want, seconds=60, holder="w", claims=tasks)
    return perform(queue, lambda layout: layout.turn((), request))


def test_claimed_jobs_come_first_and_keep_what_they_have(raw_queue: Queue) -> None:
    park(raw_queue, "one", "a", "b")
    park(raw_queue, "two", "c")
    for id in ("x", "y"):
        raw_queue.enqueue(b"", id=id, priority=0 if id == "x" else 7)
    turn = claim(raw_queue, 4, "one")
    assert [(lease.id, lease.priority) for lease in turn.leases] == [("a", 7), ("b", 7), ("x", 0), ("y", 7)]
    assert (turn.leases[0].data, turn.leases[0].attempt) == (b"data of a", 1)
    assert turn.claimed_all
    assert raw_queue.counts().parked == 1
    record = raw_queue.get("a")
    assert record is not None
    assert record.message is None, "the note is not true any more"
    assert not claim(raw_queue, 0, "two").leases, "nothing is claimed without a free slot"
    assert [lease.id for lease in claim(raw_queue, 9, "none", "two").leases] == ["c"]


def test_a_turn_tells_whether_more_may_be_claimed(raw_queue: Queue) -> None:
    park(raw_queue, "one", *(f"{n:03}" for n in range(40)))
    seen: list[str] = []
    claimed_all = False
    while not claimed_all:
        turn = claim(raw_queue, 100, "one")
        assert turn.leases or turn.claimed_all
        assert len(turn.leases) <= 16, "their size is not known before"
        seen += [lease.id for lease in turn.leases]
        claimed_all = turn.claimed_all
    assert seen == [f"{n:03}" for n in range(40)]


def test_claimed_jobs_do_not_hide_others_that_need_a_worker(raw_queue: Queue, client: redis.Redis) -> None:
    park(raw_queue, "one", "a", "b", "c")
    waits = LeaseRequest(want=1, seconds=60, holder="v", waiter="idle")
    assert not perform(raw_queue, lambda layout: layout.turn((), waits)).leases
    client.lpush(queue_key(raw_queue.name, "inbox"), "x", "y")
    turn = claim(raw_queue, 3, "one")
    assert [lease.id for lease in turn.leases] == ["a", "b", "c"]
    assert not client.zcard(queue_key(raw_queue.name, "idle")), "the waiter was woken for what came in"
    assert raw_queue.counts().ready == 2


def test_nothing_is_claimed_for_nobody(raw_queue: Queue) -> None:
    park(raw_queue, "one", "a")
    raw_queue.pause()
    assert not claim(raw_queue, 1, "one").leases
    raw_queue.resume()
    request = LeaseRequest(want=1, seconds=60, holder="stranger", claims=("one",), only_if_registered=True)
    turn = perform(raw_queue, lambda layout: layout.turn((), request))
    assert (turn.lost, turn.leases, turn.claimed_all) == (True, (), False)
    assert raw_queue.counts().parked == 1
    assert [lease.id for lease in claim(raw_queue, 1, "one").leases] == ["a"]


def test_cancelled_and_rescheduled_jobs_are_not_claimed(raw_queue: Queue) -> None:
    park(raw_queue, "one", "a", "b", "c")
    raw_queue.cancel("a")
    raw_queue.enqueue(b"", id="b", delay=3600)
    turn = claim(raw_queue, 9, "one")
    assert [lease.id for lease in turn.leases] == ["c"]
    assert raw_queue.counts().parked == 0


# -- what the runner remembers --------------------------------------------------------------------


def test_announcements_of_other_tasks_are_ignored() -> None:
    parked = ParkedTasks(lambda: ["one", "two"])
    assert not parked.announce("three")
    assert not parked
    assert parked.announce("one")
    assert parked.announce("two")
    assert parked.announce("one")
    assert parked.take() == ("one", "two")
    assert parked.announce("one"), "it came while the turn ran"
    parked.put_back(["two"])
    assert parked.take() == ("one", "two")
    assert not parked


def test_announcements_before_the_subscription_are_missed_once() -> None:
    parked = ParkedTasks(lambda: ["one", "two"])
    assert not parked.take_missed()
    parked.subscribed()
    assert parked.take_missed()
    assert not parked.take_missed()
    parked.claim_all()
    assert parked.take() == ("one", "two")


def test_a_turn_claims_a_bounded_number_of_tasks() -> None:
    parked = ParkedTasks(lambda: [str(number) for number in range(MAX_CLAIMS + 1)])
    for number in range(MAX_CLAIMS + 1):
        parked.announce(str(number))
    assert len(parked.take()) == MAX_CLAIMS
    assert parked.take() == (str(MAX_CLAIMS),)


async def test_a_worker_inside_a_program_claims_too(app: Windlass) -> None:
    ran: list[str] = []
    other = Windlass(app.given.url)

    @app.task(queue="plain")
    async def here(job: Job = current()) -> None:
        ran.append(job.id)

    @other.task(queue="plain")
    async def there(job: Job = current()) -> None:
        ran.append(job.id)

    async with working(app, "plain", lease=LEASE_S), working(other, "plain", lease=LEASE_S):
        ids = [(await task.aenqueue()).id for _ in range(50) for task in (here, there)]
        await until(lambda: len(ran) >= len(ids))
    assert sorted(ran) == sorted(ids)
    await other.aclose()
