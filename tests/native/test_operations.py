"""Operation ids: a call whose reply was lost is repeated and applied once, and answers as it did the first time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.faces import FACES, Blocking
from tests.support.internals import perform
from tests.support.lost_replies import (
    EACH_LOSS,
    SCRIPT_CALLS,
    Verb,
    lease_losing_the_reply,
    live_with_losses,
    nothing,
    queue_behind,
)
from tests.support.proxy import DROP_REPLY, FaultProxy, nth
from tests.support.queue_clock import pass_time
from tests.support.repairing import repaired
from windlass import Lease, Queue, RawJob, Receipt, State, Status, Windlass
from windlass.errors import OutcomeUnknown, ServerUnreachable
from windlass.storage.formats import MAX_ITEMS
from windlass.storage.native import scripts
from windlass.storage.native.keys import queue_keys
from windlass.storage.port import LeaseRequest

OPERATIONS = int(os.environ.get("WINDLASS_LOSSY_OPERATIONS", "3000"))
SEED = int(os.environ.get("WINDLASS_LOSSY_SEED", "20"))


@pytest.fixture(params=FACES)
def queue(proxy: FaultProxy, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A queue behind the proxy, in both faces."""
    with queue_behind(proxy, "lossy") as queue:
        face = request.param(queue)
        yield face
        face.close()


def waiting(queue: Queue) -> None:
    queue.enqueue(b"x", id="job")


def leased(queue: Queue, **options: Any) -> Lease:
    queue.enqueue(b"x", id="job", **options)
    lease = queue.lease(60)
    assert lease is not None
    return lease


# Each verb with what it must answer, although its first reply is dropped after the server has applied it.
VERBS: dict[str, Verb[Queue, None]] = {
    "enqueue": Verb(nothing, lambda q, _: q.enqueue(b"x", id="job"), Receipt("job", Status.ADDED)),
    "enqueue twice": Verb(waiting, lambda q, _: q.enqueue(b"y", id="job"), Receipt("job", Status.UPDATED)),
    "enqueue behind": Verb(leased, lambda q, _: q.enqueue(b"y", id="job"), Receipt("job", Status.BLOCKED)),
    "update": Verb(waiting, lambda q, _: q.update("job", priority=1), True),
    "complete": Verb(leased, lambda q, lease: q.complete(lease), True),
    "complete_many": Verb(leased, lambda q, lease: q.complete_many([lease, lease]), [True, False]),
    "release": Verb(leased, lambda q, lease: q.release(lease), True),
    "retry": Verb(leased, lambda q, lease: q.retry(lease, delay=0), True),
    "fail": Verb(leased, lambda q, lease: q.fail(lease, "no"), True),
    "extend": Verb(leased, lambda q, lease: q.extend(lease, 60), True),
    "progress": Verb(leased, lambda q, lease: q.progress(lease, 0.5), True),
    "beat": Verb(nothing, lambda q, _: q.beat("w", register=True), False),
    "cancel": Verb(waiting, lambda q, _: q.cancel("job"), True),
    "cancel running": Verb(leased, lambda q, _: q.cancel("job", running=True), True),
    "pause": Verb(nothing, lambda q, _: q.pause(), True),
    "resume": Verb(lambda q: q.pause(), lambda q, _: q.resume(), True),
    "purge": Verb(lambda q: q.enqueue_many([b"x"] * 3), lambda q, _: q.purge(), 3),
    "purge ready": Verb(lambda q: q.enqueue_many([b"x"] * 3), lambda q, _: q.purge("ready"), 3),
    "clean": Verb(lambda q: q.enqueue(b"x"), lambda q, _: repaired(q), (0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    queue: Queue, proxy: FaultProxy, verb: str, fault: Any
) -> None:
    VERBS[verb].survives(queue, proxy, fault)


def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(queue: Queue, proxy: FaultProxy) -> None:
    for i in range(5):
        queue.enqueue(b"%d" % i, id=str(i), priority=i)
    for holder in (None, "w"):
        leases = lease_losing_the_reply(queue, proxy, holder)
        assert [lease.data for lease in leases] == [b"0", b"1"]
        assert [lease.priority for lease in leases] == [0, 1]
        assert queue.counts().running == 2
        stored = {job.id: job.fence for job in queue.jobs(State.RUNNING).jobs}
        assert stored == {lease.id: lease.fence for lease in leases}
        for lease in leases:
            queue.release(lease)


def test_a_lease_whose_reply_was_lost_is_found_among_very_many_of_the_same_holder(
    queue: Queue, proxy: FaultProxy
) -> None:
    queue.enqueue_many([b"x"] * 10_500)
    before = [lease.fence for _ in range(9) for lease in queue.lease_many(1000, 60, holder="w")]
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    leases = queue.lease_many(1000, 60, holder="w")
    assert proxy.counts["drop_reply"] == 1
    assert [lease.fence for lease in leases] == sorted({lease.fence for lease in leases} - set(before))
    assert len(leases) == 1000
    assert queue.counts().running == 10_000


def test_a_lost_retry_charges_one_failure(queue: Queue, proxy: FaultProxy) -> None:
    lease = leased(queue)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    assert queue.retry(lease, delay=0, message="again")
    again = queue.lease(60)
    assert again is not None
    assert again.failures == 1


def test_when_time_is_up_the_error_says_whether_it_may_have_happened(proxy: FaultProxy) -> None:
    with Windlass(proxy.url, retry_for=0.3) as app:
        queue = app.queue("lossy")
        queue.enqueue(b"first")
        proxy.faults = lambda request: DROP_REPLY if request[0] == b"EVALSHA" else nth(DROP_REPLY, only=set())(request)
        with pytest.raises(OutcomeUnknown, match="may have been applied"):
            queue.enqueue(b"second", id="second")
        proxy.faults = None
        proxy.down()
        with pytest.raises(ServerUnreachable, match="nothing was sent"):
            queue.enqueue(b"third", id="third")
        proxy.up()
        assert queue.get("second") is not None
        assert queue.get("third") is None
        queue.purge()


def test_an_operation_that_comes_too_late_is_refused(client: redis.Redis, app: Windlass) -> None:
    queue = app.queue("late")
    keys = queue_keys("late", scripts.ENQUEUE.keys)
    client.script_load(scripts.ENQUEUE.text)

    def enqueue(number: int, id: str) -> Any:
        return client.evalsha(scripts.ENQUEUE.sha, len(keys), *keys, "caller", number, b"", 0, id, b"data", b"")

    first = enqueue(7, "a")
    assert enqueue(7, "a")[1] == first[1] == b"a"
    assert queue.counts().ready == 1
    with pytest.raises(redis.ResponseError, match="STALEOP"):
        enqueue(6, "b")
    assert queue.get("b") is None
    queue.purge()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.timeout(120 + OPERATIONS // 100)
def test_thousands_of_operations_with_lost_replies_have_no_double_effect(
    proxy: FaultProxy, face: type[Blocking]
) -> None:
    with queue_behind(proxy, "lossy") as queue:
        both: Any = face(queue)
        live_with_losses(both, proxy, OPERATIONS, SEED)
        both.close()


def one_behind_many_that_expired(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many([RawJob(b"", expires="1s") for _ in range(MAX_ITEMS)])
    queue.enqueue(b"", id="last")
    pass_time(client, queue.name, 2)


def test_a_lease_whose_reply_was_lost_goes_on_past_the_expired_jobs_that_it_dropped(
    queue: Queue, proxy: FaultProxy, client: redis.Redis
) -> None:
    one_behind_many_that_expired(queue, client)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    lease = queue.lease(60)
    assert proxy.counts["drop_reply"] == 1
    assert lease is not None
    assert lease.id == "last"


def test_a_repeated_turn_that_stopped_at_a_limit_says_that_there_may_be_work_now(
    queue: Queue, proxy: FaultProxy, client: redis.Redis
) -> None:
    one_behind_many_that_expired(queue, client)
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    turn = perform(queue, lambda layout: layout.turn((), LeaseRequest(want=1, seconds=60, waiter="w")))
    assert proxy.counts["drop_reply"] == 1
    assert (turn.leases, turn.more, turn.next_work_in) == ((), True, 0)
