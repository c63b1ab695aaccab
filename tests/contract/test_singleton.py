"""Two jobs of one id never run at once: the second waits, blocked, until the first ends.

If the first is done or dead, the second becomes a job of its own. If the first has to run again, the two
become one: what was asked for the second is then applied to the first, as an update would have been.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from tests.support.moments import since
from windlass import JobRecord, Lease, Limits, Queue, State, Status

pytestmark = pytest.mark.needs("SINGLETON")

Later = Callable[[float], None]
Ending = Callable[[Lease], None]

LIMITS = ["max_failures", "max_stalls", "min_backoff", "max_backoff"]


def look(queue: Queue) -> JobRecord:
    job = queue.get("a")
    assert job is not None
    return job


def start(queue: Queue, **options: Any) -> Lease:
    """A job "a" that runs."""
    queue.enqueue(b"first", id="a", **options)
    return take(queue, seconds=10)


@pytest.mark.serves("Q11")
def test_the_second_waits_until_the_first_ends(queue: Queue) -> None:
    lease = start(queue)
    assert queue.enqueue(b"second", id="a").status is Status.BLOCKED
    assert queue.lease() is None
    counts = queue.counts()
    assert (counts.ready, counts.blocked, counts.running, counts.waiting) == (0, 1, 1, 1)
    (blocked,) = queue.jobs("blocked").jobs
    assert (blocked.id, blocked.data, blocked.state) == ("a", b"second", State.BLOCKED)
    assert look(queue).data == b"first", "the running one is shown before the blocked"
    assert queue.complete(lease)
    assert take(queue).data == b"second"


@pytest.mark.serves("Q11")
def test_others_are_not_held_up(queue: Queue) -> None:
    start(queue)
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    assert drain(queue) == ["b"]


# -- released: the first is done or dead -----------------------------------------------------------


@pytest.fixture(params=["complete", "complete_many", "fail", "last retry", "last stall", "cancelled"])
def finish(request: pytest.FixtureRequest, queue: Queue, later: Later) -> Callable[[], None]:
    """A job "a" that runs, and each way in which it can end for good."""
    lease = start(queue, max_failures=0, max_stalls=0, priority=9)
    if request.param == "cancelled":
        assert queue.cancel("a", running=True)

    def ending() -> None:
        match request.param:
            case "complete":
                assert queue.complete(lease)
            case "complete_many":
                assert queue.complete_many([lease]) == [True]
            case "fail":
                assert queue.fail(lease, "broken")
            case "last retry":
                assert queue.retry(lease, delay=5)
            case "last stall":
                later(11)
                assert queue.clean().recovered == 1
            case "cancelled":
                assert queue.release(lease)

    return ending


@pytest.mark.serves("Q11")
@pytest.mark.needs("PRIORITY")
def test_the_second_is_released_as_a_job_of_its_own(queue: Queue, finish: Callable[[], None]) -> None:
    # Whatever may be updated or not: there is nothing to update.
    options: dict[str, Any] = dict(zip(LIMITS, (1, 2, 3, 4), strict=True))
    options |= {f"update_{name}": False for name in [*LIMITS, "data", "run_at", "priority"]}
    assert queue.enqueue(b"second", id="a", priority=2, reset_counts=False, **options).status is Status.BLOCKED
    finish()
    second = take(queue)
    assert (second.data, second.priority, second.limits) == (b"second", 2, Limits(1, 2, 3, 4))
    assert (second.failures, second.stalls) == (0, 0)
    assert queue.counts().blocked == 0
    assert queue.complete(second)
    assert queue.lease() is None, "it came once"


@pytest.mark.serves("Q11", "Q8")
@pytest.mark.needs("PRIORITY")
def test_the_second_is_released_to_its_own_run_time(queue: Queue, finish: Callable[[], None], later: Later) -> None:
    queue.enqueue(b"second", id="a", delay=100)
    finish()
    assert queue.counts().blocked == 0
    assert queue.lease() is None
    later(101)
    assert take(queue).data == b"second"


@pytest.mark.serves("Q11")
@pytest.mark.needs("ORDER")
def test_a_released_one_goes_to_the_back(queue: Queue) -> None:
    lease = start(queue)
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    assert queue.complete(lease)
    assert drain(queue) == ["b", "a"]


# -- merged: the first runs again ------------------------------------------------------------------


@pytest.fixture(params=["retry", "release", "stall"])
def again(request: pytest.FixtureRequest, queue: Queue, later: Later) -> Ending:
    """Each way in which a running job comes back (at once, so that its data and counts can be looked at)."""

    def ending(lease: Lease) -> None:
        match request.param:
            case "retry":
                assert queue.retry(lease, delay=0)
            case "release":
                assert queue.release(lease)
            case "stall":
                later(11)
                assert queue.clean().recovered == 1
        assert queue.counts().blocked == 0

    return ending


@pytest.mark.serves("Q11")
@pytest.mark.needs("PRIORITY")
def test_the_two_become_one(queue: Queue, again: Ending) -> None:
    lease = start(queue, priority=3, max_failures=1)
    queue.enqueue(b"second", id="a", priority=6, max_stalls=7)
    again(lease)
    merged = take(queue)
    assert (merged.data, merged.priority, merged.limits) == (b"second", 6, Limits(max_stalls=7))
    assert (merged.failures, merged.stalls) == (0, 0), "new data, new counts"
    assert queue.complete(merged)
    assert queue.lease() is None
    assert queue.counts().waiting == 0


@pytest.mark.serves("Q11")
def test_a_merge_respects_update_data(queue: Queue, again: Ending, request: pytest.FixtureRequest) -> None:
    lease = start(queue)
    queue.enqueue(b"second", id="a", update_data=False)
    again(lease)
    merged = take(queue)
    assert merged.data == b"first"
    charged = {"retry": (1, 0), "release": (0, 0), "stall": (0, 1)}
    how = next(name for name in charged if name in request.node.name)
    assert (merged.failures, merged.stalls) == charged[how], "and the counts stay with the data"


@pytest.mark.serves("Q11")
@pytest.mark.parametrize("reset", [False, True])
def test_a_merge_respects_reset_counts(queue: Queue, again: Ending, reset: bool) -> None:
    queue.enqueue(b"first", id="a")
    assert queue.retry(take(queue), delay=0)
    lease = take(queue, seconds=10)
    queue.enqueue(b"second", id="a", update_data=not reset, reset_counts=reset)
    again(lease)
    merged = take(queue)
    assert (merged.failures + merged.stalls >= 1) is not reset
    assert merged.data == (b"first" if reset else b"second")


@pytest.mark.serves("Q11")
@pytest.mark.parametrize("limit", [*LIMITS, "priority"])
@pytest.mark.needs("PRIORITY")
def test_a_merge_respects_the_flag_of_each_limit(queue: Queue, again: Ending, limit: str) -> None:
    names = [*LIMITS, "priority"]
    old: dict[str, Any] = dict(zip(names, (5, 6, 7, 8, 4), strict=True))
    new: dict[str, Any] = dict(zip(names, (15, 16, 17, 18, 2), strict=True))
    lease = start(queue, **old)
    queue.enqueue(b"", id="a", **{**new, f"update_{limit}": False})
    again(lease)
    merged = look(queue)
    expected = {**new, limit: old[limit]}
    assert merged.priority == expected.pop("priority")
    assert merged.limits == Limits(**expected)


@pytest.mark.serves("Q11")
@pytest.mark.parametrize(
    ("flag", "retried", "asked", "after"),
    [
        (True, 100, None, None),
        (True, 100, 50, 50),
        (True, 100, 200, 200),
        (False, 100, None, 100),
        (False, 100, 50, 100),
        (False, 100, 200, 100),
        ("later", 100, None, 100),
        ("later", 100, 50, 100),
        ("later", 100, 200, 200),
        ("earlier", 100, None, None),
        ("earlier", 100, 50, 50),
        ("earlier", 100, 200, 100),
        (False, 0, 50, None),
        ("later", 0, 50, 50),
        ("earlier", 0, 50, None),
    ],
)
def test_a_retry_and_the_second_agree_on_a_run_time(
    queue: Queue, flag: Any, retried: float, asked: float | None, after: float | None
) -> None:
    lease = start(queue)
    began = time.time()
    queue.enqueue(b"second", id="a", delay=asked, update_run_at=flag)
    assert queue.retry(lease, delay=retried)
    job = look(queue)
    if after is None:
        assert job.state is State.READY
    else:
        assert job.run_at == since(began, after)
        assert job.state is State.SCHEDULED


@pytest.mark.serves("Q11", "Q8")
def test_a_returned_job_takes_the_run_time_of_the_second(queue: Queue, again: Ending, later: Later) -> None:
    lease = start(queue)
    queue.enqueue(b"second", id="a", delay=100)
    again(lease)
    assert queue.lease() is None
    later(101)
    assert take(queue).data == b"second"


@pytest.mark.serves("Q11", "W3")
def test_a_returned_job_is_at_the_front_though_it_was_changed(queue: Queue) -> None:
    lease = start(queue)
    queue.enqueue(b"", id="b")
    queue.enqueue(b"second", id="a")
    assert queue.release(lease)
    assert drain(queue) == ["a", "b"]


# -- folded: a third one comes while the first still runs ------------------------------------------


@pytest.mark.serves("Q11")
@pytest.mark.needs("PRIORITY")
def test_a_third_one_changes_the_second(queue: Queue) -> None:
    lease = start(queue)
    queue.enqueue(b"second", id="a", priority=1, max_failures=1)
    assert queue.enqueue(b"third", id="a", priority=2, max_stalls=9).status is Status.BLOCKED
    assert queue.counts().blocked == 1
    assert queue.complete(lease)
    merged = take(queue)
    assert (merged.data, merged.priority, merged.limits) == (b"third", 2, Limits(max_stalls=9))
    assert queue.complete(merged)
    assert queue.lease() is None


@pytest.mark.serves("Q11", "Q10")
@pytest.mark.parametrize(
    ("flag", "second", "third", "after"),
    [
        (True, 100, 50, 50),
        (False, 100, 50, 100),
        ("later", 100, 50, 100),
        ("later", 100, 200, 200),
        ("earlier", 100, 50, 50),
        ("earlier", 100, 200, 100),
    ],
)
def test_a_third_one_changes_the_run_time_of_the_second(
    queue: Queue, flag: Any, second: float, third: float, after: float
) -> None:
    lease = start(queue)
    began = time.time()
    queue.enqueue(b"second", id="a", delay=second)
    queue.enqueue(b"third", id="a", delay=third, update_run_at=flag)
    assert queue.complete(lease)
    assert look(queue).run_at == since(began, after)


@pytest.mark.serves("Q11", "Q10")
@pytest.mark.parametrize(
    ("second", "third", "retried", "after"),
    [
        ((True, 100), (False, 5), 10, 100),  # what the third leaves alone the second still asks for
        ((False, 100), (True, 50), 10, 50),
        ((False, 100), (False, 50), 10, 10),
        ((True, 100), ("later", 50), 200, 100),
        (("later", 100), ("later", 50), 10, 100),
        (("later", 100), ("later", 50), 200, 200),
        (("earlier", 100), ("earlier", 50), 10, 10),
        (("earlier", 100), ("earlier", 50), 200, 50),
    ],
)
def test_all_three_agree_on_a_run_time(
    queue: Queue, second: tuple[Any, float], third: tuple[Any, float], retried: float, after: float
) -> None:
    lease = start(queue)
    began = time.time()
    for flag, delay in (second, third):
        queue.enqueue(b"", id="a", delay=delay, update_run_at=flag)
    assert queue.retry(lease, delay=retried)
    assert look(queue).run_at == since(began, after)


@pytest.mark.serves("Q11", "Q10")
@pytest.mark.needs("PRIORITY")
def test_a_third_one_that_may_not_change_the_data_does_not(queue: Queue, again: Ending) -> None:
    lease = start(queue)
    queue.enqueue(b"second", id="a")
    queue.enqueue(b"third", id="a", update_data=False, priority=2)
    again(lease)
    merged = take(queue)
    assert (merged.data, merged.priority) == (b"second", 2)


@pytest.mark.serves("Q11", "Q10")
@pytest.mark.needs("PRIORITY")
def test_the_second_can_be_updated(queue: Queue) -> None:
    lease = start(queue)
    began = time.time()
    queue.enqueue(b"second", id="a", delay=100, update_data=False)
    assert queue.update("a", priority=1)
    assert queue.update("a", delay=50, when="later"), "found, though there was nothing to change"
    assert queue.update("a", delay=200, when="later")
    (blocked,) = queue.jobs("blocked").jobs
    assert (blocked.data, blocked.priority) == (b"second", 1)
    assert blocked.run_at == since(began, 200)
    assert queue.update("a", data=b"newer")
    assert queue.release(lease)
    assert look(queue).data == b"newer"


# -- the rest --------------------------------------------------------------------------------------


@pytest.mark.serves("Q11", "R2")
def test_an_add_once_leaves_no_second(queue: Queue) -> None:
    lease = start(queue)
    assert queue.enqueue(b"second", id="a", if_exists="keep").status is Status.KEPT
    queue.enqueue(b"second", id="a")
    assert queue.enqueue(b"third", id="a", if_exists="keep").status is Status.KEPT
    assert queue.complete(lease)
    assert take(queue).data == b"second"


@pytest.mark.serves("Q11", "Q9")
def test_cancel_takes_the_second_and_leaves_the_first(queue: Queue) -> None:
    lease = start(queue)
    queue.enqueue(b"second", id="a")
    assert queue.cancel("a")
    assert queue.counts().blocked == 0
    assert queue.extend(lease, 10)
    assert queue.complete(lease)
    assert queue.lease() is None


@pytest.mark.serves("Q11")
def test_a_chain_of_singletons_never_overlaps(queue: Queue) -> None:
    lease = start(queue)
    for number in range(20):
        assert queue.enqueue(b"%d" % number, id="a").status is Status.BLOCKED
        assert queue.lease() is None
        assert queue.complete(lease)
        lease = take(queue)
        assert lease.data == b"%d" % number
