"""Jobs that a finished job hands over: added in the step that completes it, once, on its own queue and on others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.internals import perform, perform_call, settle
from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, FaultProxy, nth, random_faults
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Counts, JobRecord, Lease, Queue, State, Windlass
from windlass.errors import QueueFull
from windlass.storage.native.keys import queue_key, result_key
from windlass.storage.native.records import add_sum
from windlass.storage.port import Parcel
from windlass.values.job import Change, NewJob, Result
from windlass.values.outcome import Completed, HandOver, Kept

Later = Callable[[float], None]
SCRIPT_CALLS = {"EVALSHA"}


@pytest.fixture
def source(raw_queue: Queue) -> Queue:
    """The queue whose jobs hand over."""
    return raw_queue


@pytest.fixture
def target(app: Windlass, source: Queue) -> Iterator[Queue]:
    """Another queue of the same program."""
    queue = app.queue(f"{source.name[:90]}.target")
    yield queue
    queue.purge()


def child(queue: Queue, id: str, data: bytes = b"child", **change: Any) -> HandOver:
    return HandOver(queue.name, NewJob(id, data, Change(**change)) if change else NewJob(id, data))


def parent(queue: Queue, id: str = "parent") -> Lease:
    queue.enqueue(b"", id=id)
    return take(queue)


def hand_over(source: Queue, *hand_overs: HandOver) -> None:
    assert settle(source, Completed(parent(source), hand_overs=hand_overs)) == (True,)


def parcels(source: Queue, limit: int = 100) -> list[Parcel]:
    return perform(source, lambda layout: layout.outbox(limit))


def bring(app: Windlass, source: Queue, found: list[Parcel]) -> int:
    """Brings parcels to their queues, in their order; how many were new there."""
    new = 0
    for name, group in groupby(sorted(found, key=lambda each: (each.queue, each.seq)), key=lambda each: each.queue):
        batch = list(group)
        new += perform(app.queue(name), lambda layout, batch=batch: layout.forward(source.name, batch))  # type: ignore[misc]
    return new


def take_off(source: Queue, sent: list[Parcel]) -> list[Parcel]:
    return perform(source, lambda layout: layout.outbox(100, [each.seq for each in sent]))


def forward(app: Windlass, source: Queue, limit: int = 100) -> int:
    """What a forwarder does, until the outbox is empty."""
    new = 0
    found = parcels(source, limit)
    while found:
        new += bring(app, source, found)
        sent = [each.seq for each in found]
        found = perform(source, lambda layout, sent=sent: layout.outbox(limit, sent))  # type: ignore[misc]
    return new


# -- on the same queue -----------------------------------------------------------------------------


def test_children_are_there_when_the_parent_is_gone(source: Queue) -> None:
    hand_over(source, child(source, "one", b"1"), child(source, "two", b"2", priority=1), child(source, "three"))
    assert source.get("parent") is None
    assert source.counts() == Counts(ready=3, scheduled=0, blocked=0, running=0, dead=0)
    assert [(lease.id, lease.data, lease.attempt) for lease in source.lease_many(5)] == [
        ("two", b"2", 1),
        ("one", b"1", 1),
        ("three", b"child", 1),
    ]


def test_a_child_may_have_every_option(source: Queue, later: Later) -> None:
    hand_over(source, child(source, "a", when=("in", 60_000), max_failures=2, max_stalls=1))
    record = source.get("a")
    assert record is not None
    assert (record.state, record.limits.max_failures, record.limits.max_stalls) == (State.SCHEDULED, 2, 1)
    later(61)
    assert drain(source) == ["a"]


def test_a_child_with_the_id_of_a_waiting_job_changes_it(source: Queue) -> None:
    source.enqueue(b"old", id="a", priority=9)
    source.enqueue(b"old", id="kept", priority=9)
    hand_over(source, child(source, "a", b"new"), child(source, "kept", b"new", keep=True))
    assert [(lease.id, lease.data) for lease in source.lease_many(5)] == [("a", b"new"), ("kept", b"old")]


def test_a_child_with_the_id_of_a_running_job_waits_behind_it(source: Queue) -> None:
    running = parent(source, "a")
    hand_over(source, child(source, "a", b"behind"))
    assert source.counts().blocked == 1
    assert source.complete(running)
    assert take(source).data == b"behind"


def test_a_child_may_have_its_parents_id(source: Queue) -> None:
    hand_over(source, child(source, "parent", b"next"))
    assert take(source).data == b"next"


def test_a_refused_completion_brings_no_children(source: Queue, target: Queue, later: Later) -> None:
    sleeper = parent(source)
    later(31)
    successor = take(source)
    hand_overs = (child(source, "here"), child(target, "there"))
    assert settle(source, Completed(sleeper, Kept(b"late", 60_000), hand_overs)) == (False,)
    assert source.counts() == Counts(0, 0, 0, 1, 0, holders=1)
    assert parcels(source) == []
    assert perform(source, lambda layout: layout.remains("parent")).result is None
    assert source.complete(successor)


def test_in_a_batch_each_parent_answers_for_its_own_hand_overs(source: Queue, target: Queue) -> None:
    for id in "abcd":
        source.enqueue(b"", id=id)
    a, b, c, d = source.lease_many(4)
    assert source.release(b)
    outcomes = [
        Completed(a, hand_overs=(child(source, "of a"), child(target, "of a"))),
        Completed(b, hand_overs=(child(source, "of b"), child(target, "of b"))),
        Completed(c),
        Completed(d, hand_overs=(child(source, "of d"), child(target, "of d"))),
    ]
    assert settle(source, *outcomes) == (True, False, True, True)
    assert drain(source) == ["b", "of a", "of d"]
    assert [each.id for each in parcels(source)] == ["of a", "of d"]


def test_a_cancelled_parent_that_completed_hands_over(source: Queue) -> None:
    """It came to its end before it heard: what it did is done."""
    lease = parent(source)
    assert source.cancel("parent", running=True)
    assert settle(source, Completed(lease, hand_overs=(child(source, "a"),))) == (True,)
    assert drain(source) == ["a"]


def test_result_and_children_go_together(source: Queue, client: redis.Redis) -> None:
    lease = parent(source)
    assert settle(source, Completed(lease, Kept(b"1", 60_000), (child(source, "a"),))) == (True,)
    assert perform(source, lambda layout: layout.remains("parent")).result == Result(True, b"1")
    assert drain(source) == ["a"]
    client.delete(result_key(source.name, "parent"))


def test_a_child_wakes_a_waiter(source: Queue, client: redis.Redis) -> None:
    lease = parent(source)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(source.lease, 30, 20)
        wait_until(lambda: client.zcard(queue_key(source.name, "idle")), "the waiter to be idle")
        assert settle(source, Completed(lease, hand_overs=(child(source, "a"),))) == (True,)
        found = waiter.result(10)
    assert found is not None
    assert found.id == "a"


def test_many_children_of_one_parent(source: Queue, target: Queue, app: Windlass) -> None:
    hand_overs = [child(queue, f"{n:03}") for n in range(200) for queue in (source, target)]
    hand_over(source, *hand_overs)
    assert forward(app, source, limit=64) == 200
    assert drain(source) == drain(target) == [f"{n:03}" for n in range(200)]


# -- lost replies ----------------------------------------------------------------------------------


@pytest.fixture
def lossy(proxy: FaultProxy) -> Iterator[Windlass]:
    """An app behind the proxy."""
    with Windlass(proxy.url, retry_for=30) as app:
        yield app
        proxy.faults = None
        app.queue("lossy").purge()
        app.queue("lossy.target").purge()


FAULTS = pytest.mark.parametrize("fault", [DROP_REPLY, DROP_REQUEST, CUT_REQUEST], ids=["reply", "request", "half"])


@FAULTS
def test_a_completion_whose_reply_was_lost_hands_over_once(lossy: Windlass, proxy: FaultProxy, fault: Any) -> None:
    source, target = lossy.queue("lossy"), lossy.queue("lossy.target")
    lease = parent(source)
    proxy.faults = nth(fault, only=SCRIPT_CALLS)
    assert settle(source, Completed(lease, hand_overs=(child(source, "a"), child(target, "b")))) == (True,)
    proxy.faults = None
    assert [each.id for each in parcels(source)] == ["b"]
    assert drain(source) == ["a"]


@FAULTS
@pytest.mark.parametrize("step", [1, 2, 3], ids=["outbox", "forward", "take off"])
def test_a_forwarder_that_lost_a_reply_brings_each_once(
    lossy: Windlass, proxy: FaultProxy, fault: Any, step: int
) -> None:
    source, target = lossy.queue("lossy"), lossy.queue("lossy.target")
    hand_over(source, child(target, "a"), child(target, "b"))
    proxy.faults = nth(fault, only=SCRIPT_CALLS, n=step)
    forward(lossy, source)
    proxy.faults = None
    assert parcels(source) == []
    assert drain(target) == ["a", "b"]


def test_a_thousand_hand_overs_with_lost_replies(lossy: Windlass, proxy: FaultProxy) -> None:
    """Chains of jobs from one queue to the other and back; every link once, though one call in twenty is hurt."""
    here, there = lossy.queue("lossy"), lossy.queue("lossy.target")
    other = {here.name: there, there.name: here}
    proxy.faults = random_faults(7, drop_reply=0.03, drop_request=0.01, cut_request=0.01, only=SCRIPT_CALLS)
    chance = random.Random(7)
    here.enqueue_many([b"0"] * 20)
    links: list[int] = []
    while len(links) < 20 * 50:
        for queue in (here, there):
            for lease in queue.lease_many(chance.randint(1, 5), 600):
                number = int(lease.data)
                links.append(number)
                next_queue = chance.choice((queue, other[queue.name]))
                hand_overs = (child(next_queue, f"{lease.id}+", b"%d" % (number + 1)),) if number < 49 else ()
                assert settle(queue, Completed(lease, hand_overs=hand_overs)) == (True,)
            forward(lossy, queue, limit=chance.randint(1, 4))
    proxy.faults = None
    assert sorted(links) == sorted(list(range(50)) * 20)
    for queue in (here, there):
        counts = queue.counts()
        assert (counts.waiting, counts.running, counts.outbox) == (0, 0, 0)


# -- to other queues, by way of the outbox ---------------------------------------------------------


def test_a_child_for_another_queue_waits_in_the_outbox(source: Queue, target: Queue) -> None:
    lease = parent(source)
    turn = perform(source, lambda layout: layout.turn([Completed(lease, hand_overs=(child(target, "ä", b"\x00d"),))]))
    assert turn.outbox == 1
    counts = source.counts()
    assert (counts.outbox, counts.ready, counts.running) == (1, 0, 0)
    (parcel,) = parcels(source)
    assert (parcel.queue, parcel.id, parcel.data, parcel.change) == (target.name, "ä", add_sum(b"\x00d"), b"")
    assert target.counts().waiting == 0


def test_a_forwarded_child_is_the_job_that_was_asked_for(app: Windlass, source: Queue, target: Queue) -> None:
    hand_over(source, child(target, "a", b"\x00d", priority=2, max_failures=4, when=("in", 60_000)), child(target, "b"))
    assert forward(app, source) == 2
    record = target.get("a")
    assert record is not None
    assert (record.state, record.data, record.priority, record.limits.max_failures) == (
        State.SCHEDULED,
        b"\x00d",
        2,
        4,
    )
    assert target.get("b") == JobRecord(target.name, "b", State.READY, b"child")
    assert source.counts().outbox == 0


def test_the_outbox_is_read_in_order_and_bounded(source: Queue, target: Queue) -> None:
    hand_over(source, *(child(target, str(number)) for number in range(5)))
    assert [each.id for each in parcels(source, 3)] == ["0", "1", "2"]
    first, second, *_ = parcels(source)
    assert [each.id for each in take_off(source, [first, second])] == ["2", "3", "4"]
    assert [each.id for each in take_off(source, [first])] == ["2", "3", "4"], "what is gone is gone"


def test_however_often_it_is_brought_it_arrives_once(app: Windlass, source: Queue, target: Queue) -> None:
    hand_over(source, *(child(target, str(number)) for number in range(3)))
    found = parcels(source)
    assert bring(app, source, found) == 3
    assert bring(app, source, found) == 0
    assert drain(target) == ["0", "1", "2"]
    assert bring(app, source, found) == 0, "also when it was done long ago"
    assert bring(app, source, found[:2]) == 0
    assert target.counts().waiting == 0


def test_a_forwarder_that_died_before_it_took_them_off(server: Server, source: Queue, target: Queue) -> None:
    hand_over(source, *(child(target, str(number)) for number in range(3)))
    with Windlass(server.url) as victim:
        bring(victim, source, parcels(victim.queue(source.name)))
    assert drain(target) == ["0", "1", "2"]
    hand_over(source, child(target, "3"))
    with Windlass(server.url) as successor:
        assert forward(successor, successor.queue(source.name)) == 1
    assert drain(target) == ["3"]
    assert source.counts().outbox == 0


def test_a_slow_forwarder_behind_a_fast_one(app: Windlass, source: Queue, target: Queue) -> None:
    hand_over(source, *(child(target, str(number)) for number in range(2)))
    slow = parcels(source)
    hand_over(source, *(child(target, str(number)) for number in range(2, 5)))
    assert forward(app, source) == 5
    assert bring(app, source, slow) == 0
    assert take_off(source, slow) == []
    assert drain(target) == ["0", "1", "2", "3", "4"]


def test_racing_forwarders_bring_each_once(server: Server, app: Windlass, source: Queue) -> None:
    targets = [app.queue(f"racing.{number}") for number in range(3)]
    numbers = iter(range(10_000))

    def produce(_: int) -> None:
        for _ in range(20):
            source.enqueue(b"")
            lease = take(source)
            hand_overs = tuple(child(random.choice(targets), str(next(numbers))) for _ in range(random.randint(1, 4)))
            assert settle(source, Completed(lease, hand_overs=hand_overs)) == (True,)

    def race(_: int) -> int:
        new = 0
        with Windlass(server.url) as app:
            queue = app.queue(source.name)
            while not done or queue.counts().outbox:
                new += forward(app, queue, limit=random.randint(1, 10))
        return new

    done = False
    with ThreadPoolExecutor(5) as pool:
        racers = [pool.submit(race, number) for number in range(3)]
        list(pool.map(produce, range(2)))
        done = True
        new = sum(each.result(60) for each in racers)
    total = next(numbers)
    arrived = [id for queue in targets for id in drain(queue)]
    assert sorted(map(int, arrived)) == list(range(total))
    assert new == total
    assert source.counts().outbox == 0
    for queue in targets:
        queue.purge()


def test_two_sources_do_not_confuse_each_other(app: Windlass, source: Queue, target: Queue) -> None:
    other = app.queue("hand-over.other")
    for number in range(3):
        hand_over(source, child(target, f"one-{number}"))
        hand_over(other, child(target, f"two-{number}"))
    found = parcels(other)
    assert forward(app, source) == 3
    assert bring(app, other, found) == 3
    assert bring(app, other, found) == 0
    take_off(other, found)
    assert drain(target) == [f"one-{number}" for number in range(3)] + [f"two-{number}" for number in range(3)]
    other.purge()


def test_a_queue_that_begins_anew_is_heard_again(server: Server, app: Windlass, target: Queue) -> None:
    """The other queue remembers the last number it had from here; a new life must not begin below it."""
    for life in range(3):
        with Windlass(server.url) as program:
            source = program.queue("hand-over.lives")
            for number in range(3):
                hand_over(source, child(program.queue(target.name), f"{life}-{number}"))
            assert forward(program, source) == 3
            if life == 1:
                source.purge()
    assert drain(target) == [f"{life}-{number}" for life in range(3) for number in range(3)]


def test_a_full_server_leaves_it_in_the_outbox(server: Server, app: Windlass, source: Queue, target: Queue) -> None:
    hand_over(source, child(target, "a"))
    limit = server.command("CONFIG", "GET", "maxmemory")[1]
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(QueueFull):
            bring(app, source, parcels(source))
        assert source.counts().outbox == 1
    finally:
        server.command("CONFIG", "SET", "maxmemory", limit)
    assert forward(app, source) == 1
    assert drain(target) == ["a"]


# -- what is left ----------------------------------------------------------------------------------


def test_nothing_is_left_of_a_hand_over(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        source, target = app.queue("left.source"), app.queue("left.target")
        hand_over(source, child(source, "a"), child(target, "b"))
        assert forward(app, source) == 1
        assert drain(source) == ["a"]
        assert drain(target) == ["b"]
    assert client.keys("windlass:{left.*") == [queue_key("left.target", "state").encode()]
    assert 0 < client.pttl(queue_key("left.target", "state")) <= 86_400_000


def test_what_was_sent_is_remembered_after_the_last_client_unregistered(server: Server, client: redis.Redis) -> None:
    """A forwarder dies before it takes the parcels off; all programs end; the next one brings them again."""
    with Windlass(server.url) as app:
        source, target = app.queue("left.source"), app.queue("left.target")
        hand_over(source, child(target, "b"))
        parcels = perform_call(app, app.layout("left.source").outbox(10))
        assert perform_call(app, app.layout("left.target").forward("left.source", parcels)) == 1
        assert drain(target) == ["b"]
    with Windlass(server.url) as app:
        assert forward(app, app.queue("left.source")) == 0
        assert drain(app.queue("left.target")) == []
        app.queue("left.target").enqueue(b"more")
        assert client.pttl(queue_key("left.target", "state")) == -1, "in use again, it must not end"
        app.queue("left.target").purge()
        perform_call(app, app.layout("left.target").forward("left.source", parcels))
        assert drain(app.queue("left.target")) == [], "a purge does not bring it back either"


def test_what_is_in_the_outbox_stays_when_the_programs_go(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        hand_over(app.queue("left.source"), child(app.queue("left.target"), "b"))
    assert client.exists(queue_key("left.source", "state"), queue_key("left.source", "outbox")) == 2
    with Windlass(server.url) as app:
        assert forward(app, app.queue("left.source")) == 1
        assert drain(app.queue("left.target")) == ["b"]
    assert client.keys("windlass:{left.*") == [queue_key("left.target", "state").encode()]
