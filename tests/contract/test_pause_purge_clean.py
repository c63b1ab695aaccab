"""Orders to the whole queue: pause and resume, purge."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.contract.conftest import SameFace
from tests.contract.leasing import drain, take
from tests.support.server import Server
from windlass import Counts, Lease, Queue, RawJob, Windlass

Later = Callable[[float], None]


@pytest.mark.needs("PAUSE")
def test_a_paused_queue_gives_out_nothing(queue: Queue, later: Later) -> None:
    ids = [queue.enqueue(b"").id for _ in range(2)]
    running = take(queue)
    assert queue.pause()
    assert not queue.pause(), "it was paused already"
    assert queue.counts().paused
    assert queue.lease() is None
    assert queue.lease(wait=0.05) is None
    # What runs goes on, what is enqueued waits.
    assert queue.extend(running, 30)
    ids.append(queue.enqueue(b"").id)
    queue.enqueue(b"", id="due", delay=10)
    assert queue.release(running)
    later(11)
    assert queue.lease() is None
    assert queue.resume()
    assert not queue.resume(), "it was not paused"
    assert not queue.counts().paused
    assert drain(queue) == [*ids, "due"]


@pytest.mark.needs("PAUSE")
def test_a_pause_holds_for_every_program(queue: Queue, same_face: SameFace, server: Server) -> None:
    queue.enqueue(b"")
    with Windlass(server.url) as other:
        assert same_face(other.queue(queue.name, layout=queue.layout)).pause()
    assert queue.lease() is None
    assert queue.resume()
    take(queue)


@pytest.mark.needs("PAUSE")
def test_a_paused_queue_still_takes_back_what_was_lost(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    take(queue, seconds=10)
    queue.pause()
    later(11)
    assert queue.clean().recovered == 1
    assert queue.counts().ready == 1


@pytest.mark.needs("PAUSE")
def test_a_waiter_goes_on_when_the_queue_is_resumed(queue: Queue, raw_queue: Queue) -> None:
    raw_queue.enqueue(b"")
    raw_queue.pause()
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.lease(wait=20)))
    waiter.start()
    raw_queue.resume()
    waiter.join(10)
    assert [lease is not None for lease in got] == [True]


def fill(queue: Queue) -> Lease:
    queue.enqueue(b"", id="dead", priority=0)
    assert queue.fail(take(queue), "dead")
    queue.enqueue(b"", id="running", priority=0)
    lease = take(queue, seconds=60)
    queue.enqueue(b"", id="running")
    queue.enqueue_many(RawJob(b"", id=f"ready-{number}", max_failures=number) for number in range(3))
    queue.enqueue_many(RawJob(b"", id=f"late-{number}", delay=100) for number in range(4))
    return lease


@pytest.mark.parametrize(("state", "deleted"), [("ready", 3), ("scheduled", 4), ("blocked", 1), ("dead", 1)])
@pytest.mark.needs("IDS", "LIMITS", "PRIORITY")
def test_one_state_can_be_purged(queue: Queue, state: str, deleted: int) -> None:
    lease = fill(queue)
    before = queue.counts()
    assert queue.purge(state) == deleted
    after = queue.counts()
    for each in ("ready", "scheduled", "blocked", "running", "dead"):
        assert getattr(after, each) == (0 if each == state else getattr(before, each)), each
    assert queue.purge(state) == 0
    assert queue.audit(repair=True).repaired == 0, "nothing of them is left"
    assert queue.complete(lease)


@pytest.mark.needs("IDS", "LIMITS", "PRIORITY")
def test_the_whole_queue_can_be_purged(queue: Queue) -> None:
    lease = fill(queue)
    queue.pause()
    assert queue.purge() == 10
    assert queue.counts() == Counts(0, 0, 0, 0, 0)
    assert queue.purge() == 0
    assert not queue.complete(lease), "what ran has nothing to settle"
    queue.enqueue(b"", id="running")
    assert drain(queue) == ["running"], "it is a new queue"


@pytest.mark.needs("RUN_TIME")
def test_thousands_can_be_purged(queue: Queue) -> None:
    queue.enqueue_many([b""] * 2300)
    queue.enqueue_many(RawJob(b"", delay=60) for _ in range(1500))
    assert queue.purge("ready") == 2300
    assert queue.purge("scheduled") == 1500
    assert queue.counts().waiting == 0


@pytest.mark.needs("RUN_TIME")
def test_what_is_due_is_purged_as_ready(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", delay=10)
    queue.enqueue(b"", id="late", delay=100)
    later(11)
    assert queue.counts().ready == 1
    assert queue.purge("ready") == 1
    assert queue.lease() is None
    later(100)
    assert drain(queue) == ["late"]


@pytest.mark.needs("IDS", "LIMITS")
def test_a_purged_id_begins_afresh(queue: Queue) -> None:
    queue.enqueue(b"", id="a", max_failures=1)
    assert queue.retry(take(queue), delay=0, message="once")
    assert queue.purge("ready") == 1
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert (lease.failures, lease.limits.max_failures) == (0, 10)
