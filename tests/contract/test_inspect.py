"""Looking at a queue: counts, one job, pages of jobs. None of it changes anything."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.contract.leasing import drain, take
from tests.support.moments import since
from windlass import Counts, JobRecord, Lease, Limits, Page, Queue, RawJob, State
from windlass.values.job import LIMITED

Later = Callable[[float], None]


def fill(queue: Queue) -> None:
    """3 ready, 4 scheduled, 2 blocked, 2 + 1 leased, 1 dead."""
    queue.enqueue_many(RawJob(b"", id=f"run-{n}", priority=0) for n in range(4))
    assert queue.fail(take(queue), "dead")
    take(queue)
    queue.lease_many(2, holder="worker-1")
    queue.enqueue(b"", id="run-2")
    queue.enqueue(b"", id="run-3")
    queue.enqueue_many(RawJob(b"", id=f"ready-{n}") for n in range(3))
    queue.enqueue_many(RawJob(b"", id=f"late-{n}", delay=60) for n in range(4))


@pytest.mark.serves("R6")
@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_counts(queue: Queue) -> None:
    assert queue.counts() == Counts(0, 0, 0, 0, 0)
    fill(queue)
    counts = queue.counts()
    assert counts == Counts(ready=3, scheduled=4, blocked=2, running=3, dead=1, holders=counts.holders)
    assert counts.waiting == 9


@pytest.mark.serves("R6")
@pytest.mark.needs("RUN_TIME")
def test_due_jobs_count_as_ready_before_anybody_takes_them(queue: Queue, later: Later) -> None:
    queue.enqueue_many(RawJob(b"", delay=delay) for delay in (10, 10, 100))
    later(11)
    counts = queue.counts()
    assert (counts.ready, counts.scheduled) == (2, 1)


@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_a_job_can_be_looked_at_in_every_state(queue: Queue, later: Later) -> None:
    assert queue.get("a") is None
    began = time.time()
    queue.enqueue(b"data", id="a", delay=60, priority=2, max_failures=4)
    job = queue.get("a")
    limits = Limits(max_failures=4)
    assert job is not None
    assert job.run_at == since(began, 60)
    assert job == JobRecord(
        queue.name, "a", State.SCHEDULED, b"data", 2, run_at=job.run_at, limits=limits, marks=LIMITED
    )
    later(61)
    lease = take(queue, holder="worker-1")
    assert queue.progress(lease, 0.5)
    assert queue.get("a") == JobRecord(
        queue.name,
        "a",
        State.RUNNING,
        b"data",
        2,
        limits=limits,
        marks=LIMITED,
        progress=0.5,
        holder="worker-1",
        fence=lease.fence,
    )
    assert queue.retry(lease, delay=0, message="no luck")
    assert queue.get("a") == JobRecord(
        queue.name, "a", State.READY, b"data", 2, failures=1, limits=limits, marks=LIMITED, message="no luck"
    )
    assert queue.fail(take(queue), "enough")
    job = queue.get("a")
    assert job is not None
    assert job == JobRecord(
        queue.name,
        "a",
        State.DEAD,
        b"data",
        2,
        failures=2,
        limits=limits,
        marks=LIMITED,
        reason="failed",
        message="enough",
        died_at=job.died_at,
    )


@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_looking_changes_nothing(queue: Queue) -> None:
    fill(queue)
    first = [queue.jobs(state) for state in State], queue.counts()
    second = [queue.jobs(state) for state in State], queue.counts()
    assert first == second


@pytest.mark.parametrize(
    ("state", "ids"),
    [
        ("ready", ["ready-0", "ready-1", "ready-2"]),
        ("scheduled", ["late-0", "late-1", "late-2", "late-3"]),
        ("blocked", ["run-2", "run-3"]),
        ("running", ["run-1", "run-2", "run-3"]),
        ("dead", ["run-0"]),
    ],
)
@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_the_jobs_of_each_state(queue: Queue, state: str, ids: list[str]) -> None:
    assert queue.jobs(state) == Page((), None)
    fill(queue)
    page = queue.jobs(State(state))
    assert {job.state for job in page.jobs} == {state}
    assert page.cursor is None
    found = [job.id for job in page.jobs]
    if state in ("ready", "scheduled", "dead"):
        assert found == ids, "in the order in which they come"
    else:
        assert sorted(found) == ids


# -- pages -----------------------------------------------------------------------------------------

MANY = [f"job-{(37 * number) % 50:02}" for number in range(50)]  # names that sort against their order


def fill_state(queue: Queue, state: str) -> dict[str, Lease]:
    """50 jobs in a state, with equal scores where possible. Returns the leases of leased jobs."""
    leases: list[Lease] = []
    if state == "scheduled":
        when = time.time() + 600
        queue.enqueue_many(RawJob(b"", id=id, run_at=when) for id in MANY)
    else:
        queue.enqueue_many(RawJob(b"", id=id, priority=5 if n < 25 else 6) for n, id in enumerate(MANY))
    if state in ("running", "blocked", "dead"):
        leases = queue.lease_many(25, holder="worker-1") + queue.lease_many(25)
    if state == "blocked":
        queue.enqueue_many(RawJob(b"", id=id) for id in MANY)
    if state == "dead":
        for lease in leases:  # several in each millisecond
            assert queue.fail(lease)
    return {lease.id: lease for lease in leases}


def walk(queue: Queue, state: str, limit: int) -> list[str]:
    """All ids, page after page; no page is longer than was asked for."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(60):
        page = queue.jobs(state, cursor=cursor, limit=limit)
        assert len(page.jobs) <= limit
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found
    raise AssertionError("the pages never end")


@pytest.mark.parametrize("limit", [1, 7, 25, 50, 1000])
@pytest.mark.parametrize(
    "state",
    [
        pytest.param("ready", marks=pytest.mark.needs("PRIORITY")),
        pytest.param("scheduled", marks=pytest.mark.needs("RUN_TIME")),
        pytest.param("running", marks=pytest.mark.needs("PRIORITY")),
        pytest.param("dead", marks=pytest.mark.needs("DEAD")),
        pytest.param("blocked", marks=pytest.mark.needs("SINGLETON")),
    ],
)
@pytest.mark.needs("ORDER", "IDS")
def test_pages_show_every_job_once(queue: Queue, state: str, limit: int) -> None:
    fill_state(queue, state)
    found = walk(queue, state, limit)
    assert sorted(found) == sorted(MANY)
    if state in ("ready", "scheduled"):
        assert found == MANY, "in the order in which they come"


@pytest.mark.parametrize("state", ["ready", "scheduled", "running", "dead"])
@pytest.mark.needs("PLACE")  # elsewhere pages are counted, and who leaves meanwhile may hide another
def test_pages_go_on_though_the_last_job_seen_is_gone(queue: Queue, state: str) -> None:
    leases = fill_state(queue, state)
    first = queue.jobs(state, limit=10)
    gone = first.jobs[-1].id
    match state:
        case "ready" | "scheduled":
            assert queue.cancel(gone)
        case "running":
            assert queue.complete(leases[gone])
        case "dead":  # it dies again, and so moves to where we have been
            queue.enqueue(b"", id=gone)
            assert queue.fail(take(queue))
    found = [job.id for job in first.jobs]
    cursor = first.cursor
    while cursor:
        page = queue.jobs(state, cursor=cursor, limit=10)
        found += [job.id for job in page.jobs]
        cursor = page.cursor
    assert sorted(found) == sorted(MANY)


@pytest.mark.needs("ORDER")
def test_all_jobs_walks_the_pages(queue: Queue) -> None:
    ids = [receipt.id for receipt in queue.enqueue_many([b""] * 250)]
    assert [job.id for job in queue.all_jobs("ready")] == ids
    assert list(queue.all_jobs("dead")) == []
    assert drain(queue) == ids


@pytest.mark.needs("IDS", "LIMITS")
def test_a_page_shows_payloads_and_counters(queue: Queue) -> None:
    queue.enqueue(b"\0data", id="a", max_stalls=1)
    assert queue.retry(take(queue), delay=0, message="once")
    (job,) = queue.jobs("ready").jobs
    assert (job.data, job.failures, job.message, job.limits.max_stalls) == (b"\0data", 1, "once", 1)
    assert queue.get("a") == job
