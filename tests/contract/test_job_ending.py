"""How a job ended, told to whoever asks: before the end or after it, with or without a kept result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from tests.contract.leasing import take
from tests.support.faces import FACES
from tests.support.internals import handle_from, handle_on, keep_at_most, perform, settle
from tests.support.server import Server
from windlass import Ending, Limits, Queue, RawJob, State, Windlass
from windlass.errors import JobExpired, JobFailed, ResultMissing
from windlass.handle import JobHandle
from windlass.storage.formats import MARK_CODES, MARK_TTL_MS, MAX_ITEMS, MAX_MARKS
from windlass.storage.native.keys import queue_key, result_key
from windlass.transport import job_watch
from windlass.values.ending import Mark
from windlass.values.events import Event, EventKind
from windlass.values.outcome import Broken, Completed, Failed, HandOver, Kept, Outcome

pytestmark = pytest.mark.needs("RESULTS")

Later = Callable[[float], None]
HOUR = 3_600_000


@pytest.fixture(params=FACES)
def enqueue(raw_queue: Queue, request: pytest.FixtureRequest) -> Iterator[Callable[..., JobHandle[Any]]]:
    """Enqueues job `a`, and returns its handle in both faces."""
    faces: list[Any] = []

    def enqueue(**options: Any) -> JobHandle[Any]:
        receipt = raw_queue.enqueue(b"", **{"id": "a", **options})
        faces.append(request.param(handle_from(raw_queue, receipt)))
        return cast(JobHandle[Any], faces[-1])

    yield enqueue
    for face in faces:
        face.close()


Enqueue = Callable[..., JobHandle[Any]]


def test_a_completed_job_is_told_and_has_left_nothing(raw_queue: Queue, enqueue: Enqueue, client: redis.Redis) -> None:
    job = enqueue()
    assert job.state() is State.READY
    lease = take(raw_queue)
    assert job.state() is State.RUNNING
    before = len(list(client.scan_iter()))
    assert raw_queue.complete(lease)
    assert len(list(client.scan_iter())) == before - 4, "data, leases, held, holders are gone, and nothing came"
    assert job.ending() is job.state() is Ending.COMPLETED
    assert list(job.events()) == [Event(EventKind.COMPLETED)]


def test_a_job_with_a_generated_id_is_told_too(raw_queue: Queue, enqueue: Enqueue) -> None:
    job = enqueue(id=None)
    assert raw_queue.complete(take(raw_queue))
    assert job.ending(timeout=0) is Ending.COMPLETED


def cancel_waiting(queue: Queue) -> None:
    assert queue.cancel("a")


def cancel_running(queue: Queue) -> None:
    lease = take(queue)
    assert queue.cancel("a", running=True)
    assert queue.release(lease)


def fail_into_a_handler(queue: Queue) -> None:
    perform(queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    assert settle(queue, Failed(take(queue), "no")) == (True,)
    assert queue.complete(take(queue))


def die_and_be_dropped(queue: Queue) -> None:
    keep_at_most(queue, dead=1)
    assert queue.fail(take(queue), "no")
    queue.enqueue(b"", id="b")
    assert queue.fail(take(queue), "no")


def die_and_keep_nothing(queue: Queue) -> None:
    keep_at_most(queue, dead=0)
    assert queue.fail(take(queue), "no")


def die_and_be_purged(queue: Queue) -> None:
    assert queue.fail(take(queue), "no")
    assert queue.purge("dead") == 1


def break_and_be_purged(queue: Queue) -> None:
    assert settle(queue, Broken(take(queue), "no")) == (True,)
    assert queue.purge("broken") == 1


ENDS: dict[str, tuple[Callable[[Queue], None], Ending]] = {
    "cancelled while it waited": (cancel_waiting, Ending.CANCELLED),
    "cancelled while it ran": (cancel_running, Ending.CANCELLED),
    "its failure was handled": (fail_into_a_handler, Ending.DEAD),
    "its dead record was dropped": (die_and_be_dropped, Ending.DEAD),
    "its dead record was never kept": (die_and_keep_nothing, Ending.DEAD),
    "its dead record was purged": (die_and_be_purged, Ending.DEAD),
    "its broken record was purged": (break_and_be_purged, Ending.BROKEN),
}


@pytest.mark.parametrize("end", ENDS)
def test_no_other_end_is_taken_for_a_completion(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis, end: str
) -> None:
    run, ending = ENDS[end]
    job = enqueue()
    run(raw_queue)
    assert job.state() is job.ending() is ending
    assert [event.kind for event in job.events()] == [ending.value]
    assert raw_queue.get("a") is None
    assert 0 < client.pttl(queue_key(raw_queue.name, "ended")) <= MARK_TTL_MS, "a mark, which ends by itself"
    assert handle_on(raw_queue, "a").state() is ending, "also to who did not enqueue it"
    with pytest.raises(JobFailed if ending in (Ending.DEAD, Ending.BROKEN) else ResultMissing):
        job.result()


def test_an_expired_job(raw_queue: Queue, enqueue: Enqueue, later: Later) -> None:
    job = enqueue(expires="10s")
    later(11)
    assert raw_queue.lease() is None
    assert job.ending() is Ending.EXPIRED
    with pytest.raises(JobExpired):
        job.result()


def test_a_cancelled_job_of_a_lost_holder(raw_queue: Queue, enqueue: Enqueue, later: Later) -> None:
    job = enqueue()
    take(raw_queue)
    assert raw_queue.cancel("a", running=True)
    later(31)
    assert raw_queue.clean().recovered == 1
    assert job.ending() is Ending.CANCELLED


def test_a_job_whose_lease_was_lost_into_a_failure_handler(raw_queue: Queue, enqueue: Enqueue, later: Later) -> None:
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    job = enqueue(max_stalls=0)
    take(raw_queue, seconds=1)
    later(2)
    assert raw_queue.clean().recovered == 1
    assert job.ending() is Ending.DEAD


@pytest.mark.parametrize("state", [None, "ready"])
def test_a_purged_job_is_unknown_and_later_jobs_are_not(raw_queue: Queue, enqueue: Enqueue, state: Any) -> None:
    purged = enqueue(id="purged")
    raw_queue.purge(state)
    after = enqueue(id="after")
    assert raw_queue.complete(take(raw_queue))
    assert purged.state() is Ending.UNKNOWN
    with pytest.raises(ResultMissing, match="nothing tells how it ended: it was purged"):
        purged.ending(timeout=60)
    assert after.ending() is Ending.COMPLETED


def test_a_purge_of_nothing_makes_nothing_unknown(raw_queue: Queue, enqueue: Enqueue) -> None:
    job = enqueue()
    assert raw_queue.complete(take(raw_queue))
    for state in (None, State.READY, State.SCHEDULED, State.BLOCKED, State.DEAD, State.BROKEN):
        assert raw_queue.purge(state) == 0
    assert job.ending() is Ending.COMPLETED


def test_a_server_that_lost_its_data_is_not_believed(
    server: Server, raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    job = enqueue()
    client.delete(*client.keys(queue_key(raw_queue.name, "*")))
    assert job.state() is Ending.UNKNOWN
    with Windlass(server.url) as other:  # this program does not see how the steps begin again
        for _ in range(3):
            other.queue(raw_queue.name).enqueue(b"", id="other")
        assert job.state() is Ending.UNKNOWN, "the queue is another one now"
    with pytest.raises(ResultMissing, match="the server lost it"):
        job.result(timeout=60)


def test_a_job_without_a_place_in_a_damaged_queue_is_not_believed(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    job = enqueue()
    client.delete(queue_key(raw_queue.name, "ready"))
    assert job.state() is Ending.UNKNOWN


def test_a_job_whose_data_are_lost_is_not_believed(raw_queue: Queue, enqueue: Enqueue, client: redis.Redis) -> None:
    job = enqueue()
    client.delete(queue_key(raw_queue.name, "data"))
    assert raw_queue.lease() is None
    assert job.state() is Ending.UNKNOWN


def test_a_server_that_lost_the_last_writes_is_not_believed(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    raw_queue.enqueue(b"", id="before")
    keys = [queue_key(raw_queue.name, name) for name in ("state", "ready", "data")]
    backup = {key: client.dump(key) or b"" for key in keys}
    job = enqueue(id="lost")
    raw_queue.enqueue(b"", id="lost, too")
    for key, value in backup.items():
        client.restore(key, 0, value, replace=True)
    assert job.state() is Ending.UNKNOWN
    for _ in range(9):
        raw_queue.enqueue(b"", id="before")
    assert job.state() is Ending.UNKNOWN, "also when the step of the enqueue is reached again"


def test_who_asks_when_marks_are_gone_is_told_that_nothing_tells(
    raw_queue: Queue, enqueue: Enqueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = enqueue()
    assert raw_queue.complete(take(raw_queue))
    monkeypatch.setattr(job_watch, "MARKS_LAST_S", 0)
    assert job.state() is Ending.UNKNOWN
    with pytest.raises(ResultMissing, match="or it ended a day ago"):
        job.ending()


def test_a_wait_renews_what_the_handle_knows(raw_queue: Queue, client: redis.Redis) -> None:
    """A handle that did not enqueue the job knows from its first look that the job was there."""
    raw_queue.enqueue(b"", id="a")
    job = handle_on(raw_queue, "a")
    with pytest.raises(TimeoutError):
        job.ending(timeout=0.01)
    assert raw_queue.complete(take(raw_queue))
    assert job.ending() is Ending.COMPLETED
    assert handle_on(raw_queue, "a").state() is Ending.UNKNOWN
    with pytest.raises(ResultMissing, match="or that it ever existed"):
        handle_on(raw_queue, "a").ending(timeout=60)


# -- the same id again -------------------------------------------------------------------------------


def test_an_older_death_is_not_taken_for_that_of_a_later_job(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    before = enqueue()
    assert raw_queue.fail(take(raw_queue), "the first time")
    moment = client.time()
    while client.time()[0] * 1000 + client.time()[1] // 1000 <= moment[0] * 1000 + moment[1] // 1000:
        pass  # the server counts in ms
    job = enqueue()
    assert raw_queue.complete(take(raw_queue))
    assert job.ending() is Ending.COMPLETED
    assert before.ending() is Ending.DEAD, "the record is its own"
    again = enqueue()
    assert raw_queue.fail(take(raw_queue), "the third time")
    with pytest.raises(JobFailed, match="the third time"):
        again.result()


def test_an_older_mark_is_not_taken_for_that_of_a_later_job(raw_queue: Queue, enqueue: Enqueue) -> None:
    enqueue()
    cancel_waiting(raw_queue)
    job = enqueue()
    assert job.state() is State.READY
    assert raw_queue.complete(take(raw_queue))
    assert job.ending() is Ending.COMPLETED


def test_a_revived_job_has_no_mark_of_its_first_life(raw_queue: Queue, enqueue: Enqueue) -> None:
    running = enqueue(max_failures=0)
    lease = take(raw_queue)
    behind = enqueue()
    assert raw_queue.fail(lease, "no")
    assert behind.state() is State.READY
    assert raw_queue.complete(take(raw_queue))
    assert behind.ending() is Ending.COMPLETED, "the dead record is that of the job before it"
    assert running.ending() is Ending.DEAD
    assert raw_queue.revive("a") == [True]
    assert raw_queue.fail(take(raw_queue), "again")
    assert behind.ending() is running.ending() is Ending.DEAD


def test_a_blocked_job_that_is_cancelled_while_the_other_runs(raw_queue: Queue, enqueue: Enqueue) -> None:
    running = enqueue()
    lease = take(raw_queue)
    blocked = enqueue()
    assert blocked.status == "blocked"
    assert raw_queue.cancel("a")
    assert running.state() is blocked.state() is State.RUNNING
    assert raw_queue.complete(lease)
    assert blocked.ending() is Ending.CANCELLED
    assert running.state() is Ending.UNKNOWN, "two jobs have had the id, and one of them was cancelled"


def test_a_blocked_job_takes_the_place_of_a_cancelled_one(raw_queue: Queue, enqueue: Enqueue) -> None:
    enqueue()
    lease = take(raw_queue)
    raw_queue.cancel("a", running=True)
    blocked = enqueue()
    assert raw_queue.release(lease)
    assert raw_queue.complete(take(raw_queue))
    assert blocked.ending() is Ending.COMPLETED


def test_a_job_that_was_updated_or_kept(raw_queue: Queue, enqueue: Enqueue) -> None:
    first, second, third = enqueue(), enqueue(), enqueue(if_exists="keep")
    assert (second.status, third.status) == ("updated", "kept")
    assert raw_queue.complete(take(raw_queue))
    assert {job.ending() for job in (first, second, third)} == {Ending.COMPLETED}


def test_a_hand_over_forgets_the_mark_of_its_id(raw_queue: Queue, enqueue: Enqueue) -> None:
    job = enqueue()
    cancel_waiting(raw_queue)
    child = raw_queue.new_job(b"", {"id": "a"})
    raw_queue.enqueue(b"", id="parent")
    assert settle(raw_queue, Completed(take(raw_queue), None, (HandOver(raw_queue.name, child),))) == (True,)
    assert job.state() is State.READY
    assert raw_queue.complete(take(raw_queue))
    assert job.state() is Ending.COMPLETED


def test_a_blocked_job_that_expires_while_the_other_runs(raw_queue: Queue, enqueue: Enqueue, later: Later) -> None:
    running = enqueue()
    lease = take(raw_queue)
    blocked = enqueue(expires="10s")
    later(11)
    assert raw_queue.retry(lease, delay=0)
    assert raw_queue.complete(take(raw_queue))
    assert blocked.ending() is Ending.EXPIRED
    assert running.state() is Ending.UNKNOWN, "two jobs have had the id, and one of them expired"


def test_a_new_blocked_job_is_not_taken_for_the_cancelled_one(raw_queue: Queue, enqueue: Enqueue) -> None:
    enqueue()
    lease = take(raw_queue)
    enqueue()
    assert raw_queue.cancel("a")
    blocked = enqueue()
    assert raw_queue.complete(lease)
    assert raw_queue.complete(take(raw_queue))
    assert blocked.ending() is Ending.COMPLETED


def test_an_update_keeps_the_mark_of_a_job_that_goes_on(raw_queue: Queue, enqueue: Enqueue) -> None:
    enqueue()
    lease = take(raw_queue)
    behind = enqueue()
    assert raw_queue.fail(lease, "no")
    assert enqueue().status == "updated"
    assert raw_queue.complete(take(raw_queue))
    assert behind.ending() is Ending.COMPLETED, "the dead record is that of the job before it"


def stall(queue: Queue, later: Later) -> None:
    take(queue, seconds=1)
    later(2)
    assert queue.clean().recovered == 1


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.DEAD])
def test_the_result_of_an_earlier_job_is_not_that_of_a_later_one(
    raw_queue: Queue, enqueue: Enqueue, later: Later, ending: Ending
) -> None:
    enqueue()
    lease = take(raw_queue)
    behind = enqueue(max_stalls=0)
    assert settle(raw_queue, Completed(lease, Kept(b"1", HOUR))) == (True,)
    if ending is Ending.CANCELLED:
        cancel_waiting(raw_queue)
    else:
        stall(raw_queue, later)
    assert behind.ending() is ending
    assert perform(raw_queue, lambda layout: layout.remains("a")).result is None


@pytest.mark.parametrize("hand_overs", [0, 1])
def test_a_result_takes_the_mark_of_its_id_away(raw_queue: Queue, enqueue: Enqueue, hand_overs: int) -> None:
    job = enqueue()
    lease = take(raw_queue)
    enqueue()
    cancel_waiting(raw_queue)
    children = tuple(HandOver(raw_queue.name, raw_queue.new_job(b"", {})) for _ in range(hand_overs))
    assert settle(raw_queue, Completed(lease, Kept(b"1", HOUR), children)) == (True,)
    assert job.ending() is Ending.COMPLETED
    assert job.result() == 1


def test_a_failure_is_told_for_longer_than_its_result_is_kept(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    job = enqueue()
    assert settle(raw_queue, Failed(take(raw_queue), "no", HOUR)) == (True,)
    with pytest.raises(JobFailed, match="no"):
        job.result()
    client.delete(result_key(raw_queue.name, "a"))
    assert job.ending() is Ending.DEAD


# -- marks end -----------------------------------------------------------------------------------------


def test_new_marks_take_expired_ones_away(raw_queue: Queue, enqueue: Enqueue, client: redis.Redis) -> None:
    ended = queue_key(raw_queue.name, "ended")
    client.zadd(ended, {f"old-{number}": number * MARK_CODES + Mark.CANCELLED for number in range(3)})
    assert perform(raw_queue, lambda layout: layout.remains("old-1")).mark is None, "it is not read either"
    for left in (2, 1):  # each new one takes two, at most
        enqueue()
        cancel_waiting(raw_queue)
        assert client.zcard(ended) == left
        left_ids = client.zrange(ended, 0, -1)
    assert left_ids == [b"a"]


def test_an_audit_takes_expired_marks_away(raw_queue: Queue, enqueue: Enqueue, client: redis.Redis) -> None:
    enqueue()
    cancel_waiting(raw_queue)
    client.zadd(queue_key(raw_queue.name, "ended"), {"old": MARK_CODES})
    assert raw_queue.audit(repair=True).repaired == 1
    assert client.zrange(queue_key(raw_queue.name, "ended"), 0, -1) == [b"a"]


def test_too_many_marks_make_no_end_a_completion(raw_queue: Queue, enqueue: Enqueue, client: redis.Redis) -> None:
    ended = queue_key(raw_queue.name, "ended")
    first = enqueue(id="first")
    assert raw_queue.cancel("first")
    score = client.zscore(ended, "first")
    assert score is not None
    client.zadd(ended, {str(number): score + MARK_CODES for number in range(MAX_MARKS - 1)})
    assert first.state() is Ending.CANCELLED
    last = enqueue(id="last")
    assert raw_queue.cancel("last")
    assert client.zcard(ended) == MAX_MARKS + 1 - MAX_ITEMS
    assert first.state() is Ending.UNKNOWN
    assert last.state() is Ending.CANCELLED


def test_a_purge_of_everything_makes_no_end_a_completion(
    raw_queue: Queue, enqueue: Enqueue, client: redis.Redis
) -> None:
    job = enqueue()
    cancel_waiting(raw_queue)
    assert raw_queue.purge() == 0
    assert not client.exists(queue_key(raw_queue.name, "ended"))
    assert job.state() is Ending.UNKNOWN


# -- results in the batch ------------------------------------------------------------------------------


def test_a_batch_keeps_each_result_for_its_own_time(raw_queue: Queue, client: redis.Redis) -> None:
    raw_queue.enqueue_many(RawJob(b"", id=id) for id in "abcdef")
    leases = {lease.id: lease for lease in raw_queue.lease_many(6)}
    times = {"a": HOUR, "b": HOUR, "c": 2 * HOUR, "d": 0, "f": HOUR}
    outcomes: list[Outcome] = [Completed(leases[id], Kept(id.encode(), ms)) for id, ms in times.items()]
    outcomes.insert(2, Completed(leases["e"]))
    assert raw_queue.release(leases["b"])
    assert settle(raw_queue, *outcomes) == (True, False, True, True, True, True)
    ends = {id: client.pttl(result_key(raw_queue.name, id)) for id in "abcdef"}
    assert {id for id, ms in ends.items() if ms == -2} == {"b", "d", "e"}, "a lost lease keeps nothing"
    assert all(0.9 * times[id] < ends[id] <= times[id] for id in "acf")
    for id in "acf":
        assert perform(raw_queue, lambda layout, id=id: layout.remains(id)).result.data == id.encode()  # type: ignore


# -- tasks ---------------------------------------------------------------------------------------------


def declare(app: Windlass) -> tuple[Any, Any, Any]:
    @app.task(queue="tasks")
    async def nothing() -> None: ...

    @app.task(queue="tasks")
    async def number() -> int:
        return 7

    @app.task(queue="tasks")
    async def unsaid():  # type: ignore[no-untyped-def]
        return 7

    return nothing, number, unsaid


def test_a_value_that_is_not_kept_is_refused_before_the_wait(app: Windlass) -> None:
    nothing, number, unsaid = declare(app)
    for task in (number, unsaid):
        job = task.enqueue()
        with pytest.raises(ResultMissing, match=r'keeps no results.*keep_result="1h", or call ending\(\)'):
            job.result()  # nobody works, so a wait would not end
    job = nothing.enqueue()
    app.queue("tasks").complete_many(app.queue("tasks").lease_many(3))
    assert job.result() is None
    with pytest.raises(ResultMissing, match="keeps no results"):
        number.enqueue().result()
    app.queue("tasks").purge()


def test_many_calls_return_handles(app: Windlass) -> None:
    nothing, number, _ = declare(app)
    kept = number.using(keep_result="1h", queue="others")
    jobs = app.enqueue_many([nothing.call(), kept.call(), nothing.using(id="mine").call()])
    assert [(job.queue, job.status) for job in jobs] == [("tasks", "added"), ("others", "added"), ("tasks", "added")]
    assert jobs[2].id == "mine"
    app.queue("tasks").complete_many(app.queue("tasks").lease_many(2))
    assert [job.result() for job in jobs[::2]] == [None, None]
    lease = take(app.queue("others"))
    assert settle(app.queue("others"), Completed(lease, Kept(b"7", HOUR))) == (True,)
    assert jobs[1].result() == 7


async def test_many_awaited_calls_return_handles(app: Windlass) -> None:
    nothing, *_ = declare(app)
    jobs = await app.aenqueue_many(nothing.call() for _ in range(3))
    await app.queue("tasks").acomplete_many(await app.queue("tasks").alease_many(3))
    assert [await job.aending() for job in jobs] == [Ending.COMPLETED] * 3
    assert await jobs[0].astate() is Ending.COMPLETED


def test_a_record_names_its_task_and_arguments(app: Windlass) -> None:
    queue = app.queue("tasks")

    @app.task(queue="tasks", name="greet", keep_result="1h")
    async def greet(name: str, times: int = 1) -> None: ...

    record = greet.enqueue("Ada", times=2).record()
    assert record is not None
    assert (record.task, record.arguments) == ("greet", {"name": "Ada", "times": 2})
    queue.enqueue(b'{"task":"greet","args":["Ada"]}', id="by position")
    queue.enqueue(b"\x00 raw", id="raw")
    queue.enqueue(b'{"task":"greet","args":7}', id="not arguments")
    found = {job.id: (job.task, job.arguments) for job in queue.jobs("ready").jobs}
    assert found["by position"] == ("greet", ["Ada"])
    assert found["raw"] == found["not arguments"] == (None, None)
    queue.purge()


def test_an_app_has_no_run(app: Windlass) -> None:
    """It would look as if it ran the app."""
    assert not hasattr(app, "run")
    assert not hasattr(app, "arun")
