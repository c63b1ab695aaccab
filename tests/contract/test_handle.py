"""A handle on one job: its result, its events, its record; waiting without polling, and nothing left of the wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, cast

import msgspec
import pytest
import redis

from tests.contract.leasing import take
from tests.support.faces import FACES
from tests.support.internals import handle_on, layout_of, perform, settle
from tests.support.proxy import FaultProxy
from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Lease, Limits, Queue, State, Status, Windlass
from windlass.errors import (
    CrashError,
    InvalidId,
    InvalidOption,
    JobExpired,
    JobFailed,
    ResultMissing,
    ServerUnreachable,
    StallError,
    Undecodable,
)
from windlass.handle import JobHandle
from windlass.storage.formats import MARK_TTL_MS
from windlass.storage.native.keys import queue_key, result_key
from windlass.transport import Flow, Session, job_watch
from windlass.transport.listeners import Listener
from windlass.values.events import Event, EventKind
from windlass.values.outcome import Broken, Completed, Crashed, Failed, Kept, Outcome, Retried

pytestmark = pytest.mark.needs("RESULTS")

Later = Callable[[float], None]
HOUR = 3_600_000


def make(queue: Queue, id: str = "a", status: Status | None = None, returns: Any = Any) -> JobHandle[Any]:
    return handle_on(queue, id, status, returns=returns)


def nodes(client: Any) -> list[Any]:
    """The server; or, where this runs on a cluster, each of its primaries."""
    if isinstance(client, redis.RedisCluster):
        return [client.get_redis_connection(node) for node in client.get_primaries()]  # type: ignore[no-untyped-call]
    return [client]


@dataclass
class Waiting:
    """A thread that waits, and how to know that it does."""

    queue: Queue
    client: redis.Redis
    pool: ThreadPoolExecutor
    asleep: set[int]  # threads that have looked what there is, and listen

    def until_watched(self, id: str = "a") -> None:
        """Returns when somebody is subscribed and has said that they watch."""
        wait_until(lambda: self.watched(id), "somebody to wait for the job")

    def watched(self, id: str = "a") -> bool:
        """Whether somebody is subscribed and has said that they watch."""
        said = self.client.zscore(queue_key(self.queue.name, "watched"), id) is not None
        return said and self.listening(id) > 0

    def listening(self, id: str = "a") -> int:
        """How many are subscribed."""
        channel = layout_of(self.queue).event_channel(id)
        return sum(node.pubsub_numsub(channel)[0][1] for node in nodes(self.client))

    def for_(self, wait: Callable[[], Any]) -> Future[Any]:
        """What the wait brings; it has begun when this returns, and has looked what there is."""
        thread: list[int] = []

        def run() -> Any:
            self.asleep.discard(threading.get_ident())
            thread.append(threading.get_ident())
            return wait()

        future = self.pool.submit(run)
        wait_until(lambda: future.done() or self.watched(), "somebody to wait for the job")
        wait_until(lambda: thread[0] in self.asleep or future.done(), "it to have looked")
        return future


@pytest.fixture
def waiting(raw_queue: Queue, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    asleep: set[int] = set()
    next_message = Session.next_message

    def listening(session: Session, listener: Listener, seconds: float) -> Flow[tuple[str, bytes] | None]:
        asleep.add(threading.get_ident())
        return (yield from next_message(session, listener, seconds))

    monkeypatch.setattr(Session, "next_message", listening)
    with ThreadPoolExecutor(4) as pool:
        yield Waiting(raw_queue, client, pool, asleep)
        raw_queue.purge()  # who still waits finds nothing to wait for
    wait_until(lambda: listeners(client) == 0, "the listeners to be closed")
    for key in client.scan_iter(result_key(raw_queue.name, "*")):
        client.delete(key)


def listeners(client: redis.Redis) -> int:
    """Connections that are subscribed to the events of some job."""
    return sum(int(each["sub"]) > 0 for node in nodes(client) for each in node.client_list())


@pytest.fixture(params=FACES)
def job(raw_queue: Queue, request: pytest.FixtureRequest, waiting: Waiting) -> Iterator[JobHandle[Any]]:
    """A handle on job `a`, in both faces. `events()` is a list in the awaitable one."""
    face = request.param(make(raw_queue))
    yield cast(JobHandle[Any], face)
    face.close()


def leased(queue: Queue, id: str = "a", **options: Any) -> Lease:
    queue.enqueue(b"", id=id, **options)
    return take(queue)


def done(lease: Lease, value: Any = 42) -> Completed:
    return Completed(lease, Kept(msgspec.json.encode(value), HOUR))


# -- a result that is there already ----------------------------------------------------------------


def test_a_handle_names_its_job(raw_queue: Queue) -> None:
    found = make(raw_queue, "a", Status.ADDED)
    assert (found.queue, found.id, found.status) == (raw_queue.name, "a", Status.ADDED)
    assert repr(found) == f"<JobHandle 'a' of queue {raw_queue.name!r} (added)>"
    with pytest.raises(InvalidId):
        make(raw_queue, "")


@pytest.mark.parametrize("value", [42, None, "ä", [1, {"b": 2.5}], ""])
def test_the_value_that_was_returned(raw_queue: Queue, job: JobHandle[Any], value: Any) -> None:
    assert settle(raw_queue, done(leased(raw_queue), value)) == (True,)
    assert job.result() == value
    assert job.result(timeout=0) == value, "as often as it is asked for"


class Thumbnail(msgspec.Struct):
    path: str
    width: int


def test_a_result_is_read_into_its_type(raw_queue: Queue, waiting: Waiting) -> None:
    typed = make(raw_queue, returns=Thumbnail)
    assert settle(raw_queue, done(leased(raw_queue), {"path": "/a", "width": 3})) == (True,)
    assert typed.result() == Thumbnail("/a", 3)
    assert settle(raw_queue, done(leased(raw_queue), {"path": "/a", "width": "wide"})) == (True,)
    with pytest.raises(Undecodable, match=r"job 'a' of queue .*width"):
        typed.result()


def test_a_job_that_was_never_there(job: JobHandle[Any]) -> None:
    with pytest.raises(ResultMissing, match="keep_result="):
        job.result(timeout=60)
    assert job.record() is None
    assert not job.cancel()


def test_a_job_that_ended_and_kept_nothing(raw_queue: Queue, job: JobHandle[Any]) -> None:
    assert raw_queue.complete(leased(raw_queue))
    with pytest.raises(ResultMissing, match=f"job 'a' of queue '{raw_queue.name}' is gone.*keep_result="):
        job.result()


DEATHS: dict[str, tuple[Callable[[Lease], Outcome], type[JobFailed]]] = {
    "failed": (lambda lease: Failed(lease, "told why"), JobFailed),
    "failed and kept": (lambda lease: Failed(lease, "told why", HOUR), JobFailed),
    "crashed": (lambda lease: Crashed(lease, "told why", True), CrashError),
    "broken": (lambda lease: Broken(lease, "told why"), JobFailed),
}


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("when", ["before", "while waiting"])
def test_a_job_that_failed_for_good(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, death: str, when: str
) -> None:
    end, expected = DEATHS[death]
    lease = leased(raw_queue, max_stalls=0)
    found = waiting.for_(job.result) if when == "while waiting" else None
    assert settle(raw_queue, end(lease)) == (True,)
    with pytest.raises(JobFailed) as caught:
        found.result(10) if found else job.result()
    assert type(caught.value) is expected
    assert (caught.value.queue, caught.value.id, caught.value.message) == (raw_queue.name, "a", "told why")


def test_a_job_whose_lease_was_lost_too_often(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, later: Later
) -> None:
    leased(raw_queue, max_stalls=0)
    found = waiting.for_(job.result)
    later(31)
    assert raw_queue.clean().recovered == 1
    with pytest.raises(StallError, match="max_stalls") as caught:
        found.result(10)
    assert type(caught.value) is StallError


@pytest.mark.parametrize("keep", [0, HOUR])
def test_a_failure_that_was_caught(raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, keep: int) -> None:
    """It became a job of its own: what it was like is told by what was kept, if anything was."""
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    lease = leased(raw_queue)
    found = waiting.for_(job.result)
    assert settle(raw_queue, Failed(lease, "told why", keep)) == (True,)
    with pytest.raises(JobFailed) as caught:
        found.result(10)
    assert caught.value.message == ("told why" if keep else "")


def test_an_older_death_does_not_hide_a_later_result(raw_queue: Queue, job: JobHandle[Any]) -> None:
    assert raw_queue.fail(leased(raw_queue), "the first time")
    assert settle(raw_queue, done(leased(raw_queue))) == (True,)
    assert job.result() == 42


def test_an_older_result_does_not_hide_a_death_that_was_heard(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting
) -> None:
    assert settle(raw_queue, done(leased(raw_queue))) == (True,)
    lease = leased(raw_queue)
    found = waiting.for_(job.result)
    assert raw_queue.fail(lease, "the second time")
    with pytest.raises(JobFailed, match="the second time"):
        found.result(10)


def test_an_older_result_is_not_taken_for_that_of_a_job_that_waits(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting
) -> None:
    assert settle(raw_queue, done(leased(raw_queue), "old")) == (True,)
    raw_queue.enqueue(b"", id="a")
    found = waiting.for_(job.result)
    assert settle(raw_queue, done(take(raw_queue), "new")) == (True,)
    assert found.result(10) == "new"


# -- waiting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ready", "running"])
def test_a_result_is_waited_for(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw_queue.enqueue(b"", id="a")
    lease = take(raw_queue) if state == "running" else None
    monkeypatch.setattr(job_watch, "RECHECK_AFTER_S", FOREVER_S)
    found = waiting.for_(lambda: job.result(timeout=FOREVER_S))
    assert not found.done()
    lease = lease or take(raw_queue)
    assert raw_queue.progress(lease, 0.5)
    assert settle(raw_queue, done(lease)) == (True,)
    assert found.result(LIMIT_S) == 42, "not told: found by the look now and then"


def test_a_retry_is_not_the_end(raw_queue: Queue, job: JobHandle[Any], waiting: Waiting) -> None:
    lease = leased(raw_queue)
    found = waiting.for_(job.result)
    assert settle(raw_queue, Retried(lease, ("in", 0), "once more")) == (True,)
    assert raw_queue.release(take(raw_queue))
    assert settle(raw_queue, Crashed(take(raw_queue), "", True)) == (True,)
    assert settle(raw_queue, done(take(raw_queue))) == (True,)
    assert found.result(10) == 42


@pytest.mark.parametrize("state", ["ready", "running"])
def test_a_job_that_is_cancelled_while_waited_for(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, state: str
) -> None:
    raw_queue.enqueue(b"", id="a")
    lease = take(raw_queue) if state == "running" else None
    found = waiting.for_(job.result)
    assert make(raw_queue).cancel(running=True)
    if lease:
        assert raw_queue.release(lease)
    with pytest.raises(ResultMissing, match="was cancelled"):
        found.result(10)


def test_cancel_spares_a_running_job_unless_told_otherwise(raw_queue: Queue, job: JobHandle[Any]) -> None:
    lease = leased(raw_queue)
    assert not job.cancel()
    assert raw_queue.extend(lease, 30)
    assert job.cancel(running=True)
    assert not raw_queue.extend(lease, 30)


def test_the_record(raw_queue: Queue, job: JobHandle[Any]) -> None:
    raw_queue.enqueue(b"data", id="a", delay=60)
    record = job.record()
    assert record == raw_queue.get("a")
    assert record is not None
    assert record.state is State.SCHEDULED


@pytest.mark.parametrize("timeout", [0, 0.05, "50ms"])
def test_a_wait_may_end_in_vain(raw_queue: Queue, job: JobHandle[Any], timeout: Any) -> None:
    leased(raw_queue)
    with pytest.raises(TimeoutError, match=r"job 'a' of queue .* has not ended within 0(\.05)? s\. It is running"):
        job.result(timeout=timeout)


@pytest.mark.parametrize("timeout", [-1, "soon", True])
def test_a_timeout_that_is_none(job: JobHandle[Any], timeout: Any) -> None:
    with pytest.raises(InvalidOption, match="timeout"):
        job.result(timeout=timeout)
    with pytest.raises(InvalidOption, match="timeout"):
        job.events(timeout=timeout)


def test_who_is_blocked_waits_for_the_second_end(raw_queue: Queue, waiting: Waiting) -> None:
    first = leased(raw_queue)
    receipt = raw_queue.enqueue(b"", id="a")
    behind = make(raw_queue, status=receipt.status)
    seen: SimpleQueue[EventKind] = SimpleQueue()
    told: SimpleQueue[EventKind] = SimpleQueue()

    def follow(handle: JobHandle[Any], kinds: SimpleQueue[EventKind]) -> None:
        for event in handle.events(timeout=20):
            kinds.put(event.kind)

    in_front = waiting.pool.submit(follow, make(raw_queue), seen)
    assert seen.get(timeout=10) == "started"  # it has looked: what ends now is the job that it asked for
    found = waiting.for_(behind.result)
    following = waiting.pool.submit(follow, behind, told)
    assert told.get(timeout=10) == "started"  # the one in front: whoever looks later may find the second, or its end
    wait_until(lambda: waiting.listening() == 3, "all three to listen")
    assert settle(raw_queue, done(first, "first")) == (True,)
    in_front.result(10)
    assert seen.get(timeout=10) == "completed"
    assert settle(raw_queue, done(take(raw_queue), "second")) == (True,)
    assert found.result(10) == "second"
    following.result(10)
    kinds = [told.get_nowait() for _ in range(told.qsize())]
    assert kinds[-1] == "completed"
    assert kinds.count(EventKind.COMPLETED) == 1


def test_many_wait_for_many(raw_queue: Queue, waiting: Waiting) -> None:
    ids = [f"job-{number}" for number in range(30)]
    for id in ids:
        raw_queue.enqueue(b"", id=id)

    async def wait_for_all() -> list[Any]:
        waits = [make(raw_queue, id).aresult(timeout=20) for id in ids for _ in range(2)]
        return await asyncio.gather(*waits)

    found = waiting.pool.submit(asyncio.run, wait_for_all())
    for id in ids:
        waiting.until_watched(id)
    for lease in raw_queue.lease_many(30):
        assert settle(raw_queue, done(lease, lease.id)) == (True,)
    assert found.result(20) == [id for id in ids for _ in range(2)]


# -- what a wait costs, and what is left of it -----------------------------------------------------


@pytest.fixture
def proxy(server: Server, client: redis.Redis) -> Iterator[FaultProxy]:
    if not hasattr(server, "address"):
        pytest.skip("a proxy stands before one server, not before a cluster")
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def remote(proxy: FaultProxy, raw_queue: Queue) -> Iterator[Queue]:
    """The same queue through a proxy that counts requests and breaks connections."""
    with Windlass(proxy.url, retry_for=2 * LIMIT_S) as app:
        yield app.queue(raw_queue.name)


@pytest.mark.parametrize("face", FACES)
def test_two_seconds_of_waiting_cost_a_few_commands(
    raw_queue: Queue, remote: Queue, proxy: FaultProxy, waiting: Waiting, face: Any
) -> None:
    lease = leased(raw_queue)
    waits = face(make(remote))
    assert waits.record() is not None
    before = proxy.requests
    found = waiting.for_(lambda: waits.result(timeout=2))
    for step in range(100):
        assert raw_queue.progress(lease, step / 100)
    with pytest.raises(TimeoutError, match="within 2 s"):
        found.result(10)
    assert proxy.requests - before < 10, "6 of them make the connection on which it listens"
    waits.close()


def test_a_wait_leaves_only_what_ends_by_itself(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as app:
        queue = app.queue("waited")
        with pytest.raises(ResultMissing):
            make(queue).result()
        queue.enqueue(b"", id="a")
        with pytest.raises(TimeoutError):
            make(queue).result(timeout=0.01)
        assert queue.cancel("a")
    watched, marks = queue_key("waited", "watched"), queue_key("waited", "ended")
    assert sorted(client.keys("windlass:{waited}:*")) == [marks.encode(), watched.encode()]
    assert 0 < client.pttl(watched) <= 60_000
    assert 0 < client.pttl(marks) <= MARK_TTL_MS, "how the cancelled job ended"
    client.delete(watched, marks)


async def test_a_wait_that_is_cancelled_closes_its_connection(raw_queue: Queue, waiting: Waiting) -> None:
    leased(raw_queue)

    async def iterate() -> None:
        async for _ in make(raw_queue).aevents():
            pass

    for wait in (make(raw_queue).aresult(), iterate()):
        task = asyncio.create_task(wait)
        await asyncio.to_thread(waiting.until_watched)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: listeners(waiting.client) == 0, "the listener to be closed")


@pytest.mark.parametrize("what", ["result", "events"])
def test_a_wait_that_is_interrupted_closes_its_connection(raw_queue: Queue, waiting: Waiting, what: str) -> None:
    leased(raw_queue)

    def interrupt() -> None:
        waiting.until_watched()
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = waiting.pool.submit(interrupt)
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        make(raw_queue).result() if what == "result" else list(make(raw_queue).events())
    interrupting.result(10)
    wait_until(lambda: listeners(waiting.client) == 0, "the listener to be closed")


def test_events_that_nobody_wants_any_more_close_their_connection(raw_queue: Queue, waiting: Waiting) -> None:
    leased(raw_queue)
    for event in make(raw_queue).events():
        assert event.kind == "started"
        assert listeners(waiting.client) == 1
        break
    wait_until(lambda: listeners(waiting.client) == 0, "the listener to be closed")


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_a_wait_outlives_its_connections(
    raw_queue: Queue, remote: Queue, proxy: FaultProxy, waiting: Waiting, face: Any
) -> None:
    lease = leased(raw_queue)
    waits = face(make(remote))
    found = waiting.for_(waits.result)
    for _ in range(3):
        connections = proxy.connections
        proxy.disconnect()
        wait_until(lambda: proxy.connections > connections, "it to connect again")  # noqa: B023
        waiting.until_watched()
    assert settle(raw_queue, done(lease)) == (True,)
    assert found.result(10) == 42
    waits.close()


def test_a_message_that_is_lost_costs_a_few_seconds(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "RECHECK_AFTER_S", 0.3)
    lease = leased(raw_queue)
    found = waiting.for_(job.result)
    waiting.client.delete(queue_key(raw_queue.name, "watched"))
    assert settle(raw_queue, done(lease)) == (True,)
    assert found.result(10) == 42


def test_a_long_wait_goes_on_being_told(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "RECHECK_AFTER_S", 0.05)
    monkeypatch.setattr(job_watch, "REWATCH_AFTER_S", 0.1)
    lease = leased(raw_queue)
    found = waiting.for_(job.result)
    waiting.client.delete(queue_key(raw_queue.name, "watched"))
    waiting.until_watched()
    assert settle(raw_queue, done(lease)) == (True,)
    assert found.result(10) == 42


def test_a_server_that_goes_away_is_not_waited_for_longer_than_said(
    raw_queue: Queue, remote: Queue, proxy: FaultProxy, waiting: Waiting
) -> None:
    leased(raw_queue)
    assert make(remote).record() is not None
    proxy.down()
    with pytest.raises(ServerUnreachable):
        make(remote).result(timeout=0.5)
    proxy.up()


def test_messages_that_we_do_not_know_are_passed_over(raw_queue: Queue, job: JobHandle[Any], waiting: Waiting) -> None:
    lease = leased(raw_queue)
    found = waiting.for_(lambda: list(job.events(timeout=20)))
    for message in ("", "promoted", "progress x", "\xff", "completed? no"):
        waiting.client.publish(layout_of(raw_queue).event_channel("a"), message)
    assert raw_queue.complete(lease)
    assert [event.kind for event in found.result(10)] == ["started", "completed"]


# -- events ----------------------------------------------------------------------------------------


def test_events_begin_with_how_the_job_is_found_and_end_with_its_end(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting
) -> None:
    raw_queue.enqueue(b"", id="a")
    found = waiting.for_(lambda: list(job.events(timeout=20)))
    lease = take(raw_queue)
    assert raw_queue.progress(lease, 0.25)
    assert raw_queue.progress(lease, 0.5)
    assert raw_queue.retry(lease, delay=0)
    assert raw_queue.release(take(raw_queue))
    assert settle(raw_queue, done(take(raw_queue))) == (True,)
    events = found.result(10)
    if events[0].kind == "ready":  # else it was found only when it ran already
        events = events[1:]
    assert events == [
        Event(EventKind.STARTED),
        Event(EventKind.PROGRESS, 0.25),
        Event(EventKind.PROGRESS, 0.5),
        Event(EventKind.RETRIED),
        Event(EventKind.STARTED),
        Event(EventKind.RELEASED),
        Event(EventKind.STARTED),
        Event(EventKind.COMPLETED),
    ]
    assert [event.last for event in events] == [False] * 7 + [True]


@pytest.mark.parametrize("state", ["ready", "scheduled", "running"])
def test_the_first_event_of_a_job_that_is_there(raw_queue: Queue, waiting: Waiting, state: str) -> None:
    raw_queue.enqueue(b"", id="a", delay=60 if state == "scheduled" else 0)
    if state == "running":
        assert raw_queue.progress(take(raw_queue), 0.75)
    events = make(raw_queue).events(timeout=0)
    assert next(events) == (Event(EventKind.STARTED, 0.75) if state == "running" else Event(EventKind(state)))
    with pytest.raises(TimeoutError, match=f"It is {state}"):
        next(events)


ENDED: dict[str, tuple[Callable[[Lease], Outcome], str]] = {
    "completed": (done, "completed"),
    "completed, nothing kept": (Completed, "gone"),
    "failed": (Failed, "dead"),
    "failed and kept": (lambda lease: Failed(lease, "", HOUR), "dead"),
    "broken": (lambda lease: Broken(lease, ""), "broken"),
}


@pytest.mark.parametrize("end", ENDED)
def test_the_only_event_of_a_job_that_has_ended(raw_queue: Queue, job: JobHandle[Any], end: str) -> None:
    make_outcome, kind = ENDED[end]
    assert settle(raw_queue, make_outcome(leased(raw_queue))) == (True,)
    assert list(job.events()) == [Event(EventKind(kind))]


def test_events_that_were_lost_are_made_up_for(
    raw_queue: Queue, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look tells what became of the job, not every step of it."""
    monkeypatch.setattr(job_watch, "RECHECK_AFTER_S", 0.05)
    watched = queue_key(raw_queue.name, "watched")
    raw_queue.enqueue(b"", id="a")
    events = make(raw_queue).events(timeout=20)

    def unheard(step: Callable[[], object]) -> Event:
        waiting.client.delete(watched)
        step()
        return next(events)

    assert next(events).kind == "ready"
    leases: list[Lease] = []
    assert unheard(lambda: leases.append(take(raw_queue))).kind == "started"
    assert unheard(lambda: raw_queue.progress(leases[0], 0.5)) == Event(EventKind.PROGRESS, 0.5)
    assert unheard(lambda: raw_queue.retry(leases[0], delay=60)).kind == "scheduled"
    assert unheard(lambda: raw_queue.cancel("a")).kind == "cancelled"
    assert list(events) == []


def test_events_go_on_after_a_lost_connection(
    raw_queue: Queue, remote: Queue, proxy: FaultProxy, waiting: Waiting
) -> None:
    lease = leased(raw_queue)
    events = make(remote).events(timeout=20)
    assert next(events).kind == "started"
    proxy.disconnect()
    assert raw_queue.progress(lease, 0.5)
    assert next(events) == Event(EventKind.PROGRESS, 0.5)
    assert raw_queue.complete(lease)
    assert [event.kind for event in events] == ["completed"]


def test_a_job_that_expires_while_waited_for(
    raw_queue: Queue, job: JobHandle[Any], waiting: Waiting, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "RECHECK_AFTER_S", FOREVER_S)  # so only the message can tell it
    raw_queue.enqueue(b"", id="a", expires="10s")
    found = waiting.for_(job.result)
    later(11)
    assert raw_queue.lease() is None
    with pytest.raises(JobExpired, match="expired before it could start"):
        found.result(10)
