"""Enqueueing an id that waits changes the job that has it; each part of the change can be switched off."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from tests.support.moments import since
from windlass import JobRecord, Limits, Queue, State, Status

pytestmark = pytest.mark.needs("UPDATE")

Later = Callable[[float], None]

LIMITS = ["max_failures", "max_stalls", "min_backoff", "max_backoff"]


def look(queue: Queue, id: str = "a") -> JobRecord:
    job = queue.get(id)
    assert job is not None
    return job


def fail_and_stall_once(queue: Queue, later: Later) -> None:
    """Leaves the job with one failure and one stall."""
    assert queue.retry(take(queue), delay=0)
    take(queue, seconds=10)
    later(11)
    assert queue.clean().recovered == 1
    assert (look(queue).failures, look(queue).stalls) == (1, 1)


@pytest.mark.serves("Q10")
@pytest.mark.needs("PRIORITY")
def test_an_id_again_is_the_same_job_changed(queue: Queue) -> None:
    assert queue.enqueue(b"old", id="a").status is Status.ADDED
    assert queue.enqueue(b"new", id="a", priority=2, max_failures=1).status is Status.UPDATED
    assert queue.counts().waiting == 1
    lease = take(queue)
    assert (lease.data, lease.priority, lease.limits) == (b"new", 2, Limits(max_failures=1))
    assert queue.lease() is None


@pytest.mark.serves("Q10")
@pytest.mark.needs("PRIORITY")
def test_an_updated_job_keeps_its_place(queue: Queue) -> None:
    for id in ("a", "b", "c"):
        queue.enqueue(b"", id=id)
    queue.enqueue(b"new", id="a")
    queue.enqueue(b"new", id="b", priority=4)
    assert drain(queue) == ["b", "a", "c"]


@pytest.mark.serves("Q10")
@pytest.mark.parametrize("scheduled", [False, True], ids=["ready", "scheduled"])
@pytest.mark.parametrize(
    ("flag", "data"), [({}, b"new"), ({"update_data": True}, b"new"), ({"update_data": False}, b"old")]
)
def test_update_data(queue: Queue, scheduled: bool, flag: dict[str, Any], data: bytes) -> None:
    delay = 60 if scheduled else None
    queue.enqueue(b"old", id="a", delay=delay)
    assert queue.enqueue(b"new", id="a", delay=delay, **flag).status is Status.UPDATED
    assert look(queue).data == data


NOW = None
RUN_TIMES = [
    # update_run_at, run time before, run time asked for, run time after (in seconds from now, None is at once)
    (True, 100, 200, 200),
    (True, 100, 50, 50),
    (True, 100, NOW, NOW),
    (True, NOW, 50, 50),
    (False, 100, 200, 100),
    (False, 100, 50, 100),
    (False, 100, NOW, 100),
    (False, NOW, 50, NOW),
    ("later", 100, 200, 200),
    ("later", 100, 50, 100),
    ("later", 100, NOW, 100),
    ("later", NOW, 50, 50),
    ("earlier", 100, 200, 100),
    ("earlier", 100, 50, 50),
    ("earlier", 100, NOW, NOW),
    ("earlier", NOW, 50, NOW),
]


def check_run_time(queue: Queue, began: float, expected: float | None) -> None:
    job = look(queue)
    if expected is None:
        assert (job.state, job.run_at) == (State.READY, None)
        assert take(queue).id == "a"
    else:
        assert job.state is State.SCHEDULED
        assert job.run_at == since(began, expected)
        assert queue.lease() is None


@pytest.mark.serves("Q10")
@pytest.mark.parametrize(("flag", "before", "asked", "after"), RUN_TIMES)
def test_update_run_at(queue: Queue, flag: Any, before: float | None, asked: float | None, after: float | None) -> None:
    began = time.time()
    queue.enqueue(b"old", id="a", delay=before)
    assert queue.enqueue(b"new", id="a", delay=asked, update_run_at=flag).status is Status.UPDATED
    assert look(queue).data == b"new", "the run time alone is protected"
    check_run_time(queue, began, after)
    assert queue.counts().waiting + queue.counts().running == 1


@pytest.mark.serves("Q10")
def test_the_run_time_is_replaced_by_default(queue: Queue) -> None:
    began = time.time()
    queue.enqueue(b"", id="a", delay=100)
    queue.enqueue(b"", id="a", delay=200)
    check_run_time(queue, began, 200)


@pytest.mark.serves("Q10")
@pytest.mark.parametrize("scheduled", [False, True], ids=["ready", "scheduled"])
@pytest.mark.parametrize("update", [None, True, False])
@pytest.mark.parametrize("limit", LIMITS)
def test_update_each_limit(queue: Queue, limit: str, update: bool | None, scheduled: bool) -> None:
    delay = 60 if scheduled else None
    old: dict[str, Any] = dict(zip(LIMITS, (5, 6, 7, 8), strict=True))
    new: dict[str, Any] = dict(zip(LIMITS, (15, 16, 17, 18), strict=True))
    flags: dict[str, Any] = {f"update_{name}": name != limit for name in LIMITS} if update is False else {}
    if update is True:
        flags = {f"update_{name}": name == limit for name in LIMITS}
    changed = {None: LIMITS, True: [limit], False: [name for name in LIMITS if name != limit]}[update]
    queue.enqueue(b"", id="a", delay=delay, **old)
    queue.enqueue(b"", id="a", delay=delay, **new, **flags)
    assert look(queue).limits == Limits(**{name: (new if name in changed else old)[name] for name in LIMITS})


@pytest.mark.serves("Q10")
@pytest.mark.needs("PRIORITY")
def test_update_priority(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a", priority=2)
    queue.enqueue(b"", id="b", priority=2, delay=60)
    for id in ("a", "b"):
        queue.enqueue(b"", id=id, priority=8, update_priority=False, update_run_at=False)
        assert look(queue, id).priority == 2
        queue.enqueue(b"", id=id, priority=7, update_run_at=False)
        assert look(queue, id).priority == 7
    later(61)
    assert [lease.priority for lease in queue.lease_many(2)] == [7, 7]


@pytest.mark.serves("Q10")
@pytest.mark.parametrize(
    ("flags", "reset"),
    [
        ({}, True),
        ({"update_data": False}, False),
        ({"reset_counts": False}, False),
        ({"update_data": False, "reset_counts": True}, True),
        ({"update_data": True, "reset_counts": True}, True),
    ],
)
def test_reset_counts_goes_with_the_data_unless_said(
    queue: Queue, later: Later, flags: dict[str, Any], reset: bool
) -> None:
    queue.enqueue(b"old", id="a")
    fail_and_stall_once(queue, later)
    queue.enqueue(b"new", id="a", **flags)
    lease = take(queue)
    assert (lease.failures, lease.stalls) == ((0, 0) if reset else (1, 1))


@pytest.mark.serves("Q10", "R2")
@pytest.mark.parametrize("scheduled", [False, True], ids=["ready", "scheduled"])
@pytest.mark.needs("PRIORITY")
def test_keep_changes_nothing(queue: Queue, scheduled: bool) -> None:
    queue.enqueue(b"old", id="a", delay=60 if scheduled else None, priority=3)
    before = look(queue)
    receipt = queue.enqueue(b"new", id="a", if_exists="keep", delay=5, priority=1, max_failures=1)
    assert (receipt.id, receipt.status) == ("a", Status.KEPT)
    assert look(queue) == before


# -- update: the same for a job that must be there -------------------------------------------------


@pytest.mark.serves("Q10")
@pytest.mark.needs("PRIORITY")
def test_update_changes_only_what_is_named(queue: Queue, later: Later) -> None:
    queue.enqueue(b"old", id="a", priority=3, max_failures=4)
    fail_and_stall_once(queue, later)
    before = look(queue)
    assert queue.update("a", data=b"new")
    assert look(queue).data == b"new"
    assert (look(queue).failures, look(queue).stalls) == (1, 1), "a new payload alone does not pardon"
    assert queue.update("a", priority=6)
    assert queue.update("a", max_failures=1, max_stalls=2, min_backoff=3, max_backoff="4s")
    after = look(queue)
    assert (after.priority, after.limits) == (6, Limits(1, 2, 3.0, 4.0))
    assert (after.run_at, after.state) == (before.run_at, before.state)
    assert queue.update("a", reset_counts=True)
    assert (look(queue).failures, look(queue).stalls) == (0, 0)
    assert look(queue).data == b"new"


@pytest.mark.serves("Q10")
@pytest.mark.parametrize(
    ("flag", "before", "asked", "after"), [row for row in RUN_TIMES if row[0] is not False and row[2] is not NOW]
)
def test_update_a_run_time(
    queue: Queue, flag: Any, before: float | None, asked: float | None, after: float | None
) -> None:
    began = time.time()
    queue.enqueue(b"", id="a", delay=before)
    assert queue.update("a", delay=asked, when="always" if flag is True else flag)
    check_run_time(queue, began, after)


def test_update_finds_no_job(queue: Queue) -> None:
    assert not queue.update("a", data=b"")
    queue.enqueue(b"", id="a")
    lease = take(queue)
    assert not queue.update("a", data=b"new"), "it runs, and nothing waits behind it"
    assert queue.counts().blocked == 0
    assert queue.fail(lease)
    assert not queue.update("a", data=b"new"), "it is dead"
    assert queue.counts().waiting == 0
