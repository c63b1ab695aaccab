"""Two jobs of one id never run at once: the second is blocked, then released, or merged into the first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.compat.queasy.conftest import Later
from tests.compat.queasy.peer import Peer
from tests.contract.leasing import drain, take
from tests.support.internals import settle
from tests.support.moments import since
from windlass import Lease, Limits, Queue, State, Status
from windlass.values.outcome import Crashed, Failed

pytestmark = pytest.mark.speaks("queasy", "Q11")
LIMITS = ["max_failures", "max_stalls", "min_backoff", "max_backoff"]


def start(queue: Queue, **options: Any) -> Lease:
    queue.enqueue(b"1", id="a", **options)
    return take(queue, seconds=10)


@pytest.mark.parametrize("asked", [None, 60])
def test_the_second_waits_until_the_first_is_done(emails: Queue, later: Later, asked: float | None) -> None:
    lease = start(emails)
    assert emails.enqueue(b"2", id="a", delay=asked).status is Status.BLOCKED
    emails.enqueue(b"3", id="b")
    assert drain(emails) == ["b"]
    later(9)
    assert emails.lease() is None
    assert emails.complete(lease)
    assert emails.counts().blocked == 0
    if asked:
        assert emails.lease() is None
        later(61)
    assert take(emails).data == b"2"
    assert emails.lease() is None, "it came once"


FINISH: dict[str, Callable[[Queue, Lease], object]] = {
    "complete": lambda queue, lease: queue.complete(lease),
    "fail": lambda queue, lease: queue.fail(lease),
    "last retry": lambda queue, lease: queue.retry(lease, delay=50),
    "last crash": lambda queue, lease: settle(queue, Crashed(lease, "", True)),
}


@pytest.mark.parametrize("flag", [True, False, "later", "earlier"])
@pytest.mark.parametrize("end", FINISH)
def test_however_the_first_ends_the_second_is_a_job_of_its_own(emails: Queue, end: str, flag: Any) -> None:
    lease = start(emails, max_failures=0, max_stalls=0)
    options: dict[str, Any] = dict(zip(LIMITS, (1, 2, 3.0, 4.0), strict=True))
    options |= {f"update_{name}": False for name in [*LIMITS, "data"]}
    emails.enqueue(b"2", id="a", update_run_at=flag, reset_counts=False, **options)
    assert FINISH[end](emails, lease)
    second = take(emails)
    assert (second.data, second.limits, second.attempt) == (b"2", Limits(1, 2, 3.0, 4.0), 1)


AGAIN: dict[str, Callable[[Queue, Lease], object]] = {
    "retry": lambda queue, lease: queue.retry(lease, delay=0),
    "release": lambda queue, lease: queue.release(lease),
    "crash": lambda queue, lease: settle(queue, Crashed(lease, "", True)),
}


@pytest.mark.parametrize("how", AGAIN)
def test_the_two_become_one_when_the_first_comes_back(emails: Queue, how: str) -> None:
    lease = start(emails, max_failures=1)
    emails.enqueue(b"2", id="a", max_stalls=7)
    assert AGAIN[how](emails, lease)
    merged = take(emails)
    assert (merged.data, merged.limits, merged.attempt) == (b"2", Limits(max_stalls=7), 1)
    assert emails.complete(merged)
    assert emails.lease() is None


@pytest.mark.parametrize("how", AGAIN)
@pytest.mark.parametrize("kept", [*LIMITS, "data"])
def test_a_merge_leaves_alone_what_it_may_not_update(emails: Queue, how: str, kept: str) -> None:
    old: dict[str, Any] = dict(zip(LIMITS, (5, 6, 7, 8), strict=True))
    new: dict[str, Any] = dict(zip(LIMITS, (15, 16, 17, 18), strict=True))
    lease = start(emails, **old)
    emails.enqueue(b"2", id="a", **new, **{f"update_{kept}": False})  # type: ignore[arg-type]
    assert AGAIN[how](emails, lease)
    merged = take(emails)
    assert merged.limits == Limits(**{name: (old if name == kept else new)[name] for name in LIMITS})
    assert merged.data == (b"1" if kept == "data" else b"2")
    charged = {"retry": (1, 0), "release": (0, 0), "crash": (0, 1)}[how]
    assert (merged.failures, merged.stalls) == (charged if kept == "data" else (0, 0))


@pytest.mark.parametrize(
    ("flag", "retried", "asked", "after"),
    [
        (True, 100, None, None),
        (True, 100, 50, 50),
        (False, 100, None, 100),
        (False, 100, 50, 100),
        ("later", 100, None, 100),
        ("later", 100, 200, 200),
        ("earlier", 100, None, None),
        ("earlier", 100, 200, 100),
        (False, 0, 50, None),
        ("later", 0, 50, 50),
    ],
)
def test_a_retry_and_the_second_agree_on_a_run_time(
    emails: Queue, flag: Any, retried: float, asked: float | None, after: float | None
) -> None:
    lease = start(emails)
    began = time.time()
    emails.enqueue(b"2", id="a", delay=asked, update_run_at=flag)
    assert emails.retry(lease, delay=retried)
    job = emails.get("a")
    assert job is not None
    assert job.state is (State.READY if after is None else State.SCHEDULED)
    if after is not None:
        assert job.run_at == since(began, after)


@pytest.mark.parametrize(
    ("second", "third", "retried", "after"),
    [
        ((True, 100), (False, 5), 10, 100),
        ((False, 100), (True, 50), 10, 50),
        ((False, 100), (False, 50), 10, 10),
        ((True, 100), ("later", 50), 200, 100),
        (("later", 100), ("later", 50), 200, 200),
        (("earlier", 100), ("earlier", 50), 200, 50),
    ],
)
def test_a_third_one_changes_the_second(
    emails: Queue, second: tuple[Any, float], third: tuple[Any, float], retried: float, after: float
) -> None:
    lease = start(emails)
    began = time.time()
    emails.enqueue(b"2", id="a", delay=second[1], update_run_at=second[0])
    emails.enqueue(b"3", id="a", delay=third[1], update_run_at=third[0], update_data=False)
    assert emails.counts().blocked == 1
    assert emails.retry(lease, delay=retried)
    job = emails.get("a")
    assert job is not None
    assert job.data == b"2", "what the third leaves alone the second still asks for"
    assert job.run_at == since(began, after)


def test_cancel_takes_the_second_and_leaves_the_first(emails: Queue) -> None:
    lease = start(emails)
    emails.enqueue(b"2", id="a")
    assert emails.cancel("a")
    assert emails.complete(lease)
    assert emails.lease() is None


def test_a_stalled_first_is_merged_too(emails: Queue, later: Later) -> None:
    start(emails)
    emails.enqueue(b"2", id="a", update_data=False, max_failures=2)
    later(11)
    assert emails.clean().recovered == 1
    merged = take(emails)
    assert (merged.data, merged.stalls, merged.limits.max_failures) == (b"1", 1, 2)


# -- run time 0, which has no sign -----------------------------------------------------------------


def test_a_peers_blocked_job_of_run_time_0_is_not_taken(emails: Queue, peer: Peer, client: redis.Redis) -> None:
    """It wrote -0, which is 0 to the server: free by its score, but one of its id is active."""
    lease = start(emails)
    peer.notify(2, "a")
    assert client.zscore("{emails}:waiting", "a") == 0
    assert emails.lease() is None
    assert client.zscore("{emails}:waiting", "a") == -1, "and from now on no peer takes it"
    assert peer.dequeue() == []
    assert emails.complete(lease)
    assert take(emails).data == b"2"


def test_a_blocked_job_of_ours_with_run_time_0_is_not_taken_by_a_peer(emails: Queue, peer: Peer) -> None:
    emails.enqueue(b"1", id="a")
    assert [job["data"] for job in peer.dequeue()] == ["1"]
    assert emails.enqueue(b"2", id="a").status is Status.BLOCKED
    assert peer.dequeue() == []
    peer.success("a")
    assert [job["data"] for job in peer.dequeue()] == ["2"]


def test_a_chain_of_singletons_never_overlaps(emails: Queue) -> None:
    lease = start(emails)
    for number in range(20):
        assert emails.enqueue(b"%d" % number, id="a").status is Status.BLOCKED
        assert emails.lease() is None
        assert settle(emails, Failed(lease) if number % 2 else Crashed(lease, "", True)) == (True,)
        lease = take(emails)
        assert lease.data == b"%d" % number
