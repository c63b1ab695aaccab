"""Who waits for a job that crashed or stalled hears why, also where a failure handler hears of it: then it is not
among the dead. And who waits for one that was cancelled hears that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.contract.leasing import take
from tests.support.internals import handle_on, perform, settle
from tests.support.waiting import wait_until
from windlass import Limits, Queue
from windlass.errors import CrashError, ResultMissing, StallError
from windlass.handle import JobHandle
from windlass.storage.native.keys import queue_key, result_key
from windlass.values.job import Result
from windlass.values.outcome import Completed, Crashed, Failed, Kept

Later = Callable[[float], None]
HOUR = 3_600_000


@pytest.fixture
def caught(raw_queue: Queue, client: redis.Redis) -> Iterator[Queue]:
    """A queue with a failure handler."""
    perform(raw_queue, lambda layout: layout.beat("worker-1", 30, register=True, failure_handler=Limits()))
    yield raw_queue
    for key in client.scan_iter(result_key(raw_queue.name, "*")):
        client.delete(key)


def handle(queue: Queue, keeps: bool | None = None) -> JobHandle[object]:
    return handle_on(queue, "a", keeps=keeps)


def test_who_waits_is_told_of_a_crash(caught: Queue, client: redis.Redis) -> None:
    caught.enqueue(b"", id="a", max_stalls=0)
    lease = take(caught)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle(caught).result, 20)
        wait_until(lambda: client.zscore(queue_key(caught.name, "watched"), "a") is not None, "somebody to wait")
        assert settle(caught, Crashed(lease, "its process was killed by SIGSEGV\nlast output:\nx y", is_cause=True))
        with pytest.raises(CrashError, match=r"(?s)job 'a' of queue .*SIGSEGV\nlast output:\nx y"):
            waiting.result(10)
    assert list(caught.all_jobs("dead")) == []


def test_who_waits_is_told_of_a_stall(caught: Queue, client: redis.Redis, later: Later) -> None:
    caught.enqueue(b"", id="a", max_stalls=0)
    take(caught)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(handle(caught).result, 20)
        wait_until(lambda: client.zscore(queue_key(caught.name, "watched"), "a") is not None, "somebody to wait")
        later(31)
        assert caught.clean().recovered == 1
        with pytest.raises(StallError, match="max_stalls") as told:
            waiting.result(10)
    assert type(told.value) is StallError


def test_who_asks_later_finds_what_was_kept(caught: Queue) -> None:
    caught.enqueue(b"", id="a", max_stalls=1)
    assert settle(caught, Crashed(take(caught), "first", is_cause=True, keep_ms=HOUR)) == (True,)
    assert perform(caught, lambda layout: layout.remains("a")).result is None, "it is tried again"
    assert settle(caught, Crashed(take(caught), "second", is_cause=True, keep_ms=HOUR)) == (True,)
    assert perform(caught, lambda layout: layout.remains("a")).result == Result(False, b"second", "crashed")
    with pytest.raises(CrashError, match="second"):
        handle(caught).result()


def test_a_crash_keeps_to_its_own_result_in_a_batch(caught: Queue) -> None:
    for id in "abcde":
        caught.enqueue(b"", id=id, max_stalls=0)
    leases = {lease.id: lease for lease in caught.lease_many(5)}
    assert all(
        settle(
            caught,
            Crashed(leases["a"], "A", is_cause=False, keep_ms=HOUR),
            Crashed(leases["b"], "B", is_cause=True, keep_ms=HOUR),
            Crashed(leases["c"], "C", is_cause=True),
            Failed(leases["d"], "D", HOUR),
            Completed(leases["e"], Kept(b"5", HOUR)),
        )
    )
    found = {id: perform(caught, lambda layout, id=id: layout.remains(id)).result for id in "abcde"}  # type: ignore[misc]
    assert found == {
        "a": None,
        "b": Result(False, b"B", "crashed"),
        "c": None,
        "d": Result(False, b"D"),
        "e": Result(True, b"5"),
    }


# -- cancelled ---------------------------------------------------------------------------------------


def test_who_cancelled_is_told_so(raw_queue: Queue) -> None:
    raw_queue.enqueue(b"", id="a")
    job = handle(raw_queue, keeps=True)
    assert job.cancel()
    with pytest.raises(ResultMissing, match="was cancelled, so there is no result"):
        job.result()


@pytest.mark.parametrize(
    ("keeps", "says", "says_not"),
    [
        (False, 'its task keeps no results.*keep_result="1h", or call ending()', "existed"),
        (None, 'nothing tells how it ended, or that it ever existed.*keep_result="1h"', "its task keeps"),
    ],
)
def test_a_missing_result_is_told_by_what_is_known(
    raw_queue: Queue, keeps: bool | None, says: str, says_not: str
) -> None:
    raw_queue.enqueue(b"", id="a")
    assert raw_queue.complete(take(raw_queue))
    with pytest.raises(ResultMissing, match=says) as told:
        handle(raw_queue, keeps).result()
    assert says_not not in str(told.value)
