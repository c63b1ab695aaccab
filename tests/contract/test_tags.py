"""Tags: a few short strings on a job, which stay with it wherever it goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.leasing import take
from windlass import JobRecord, Page, Queue, RawJob, State, Status, TagCounts
from windlass.errors import InvalidOption
from windlass.storage.formats import MAX_ITEMS

pytestmark = pytest.mark.needs("TAGS")


def tags_of(queue: Queue, id: str) -> tuple[str, ...]:
    job = queue.get(id)
    assert job is not None
    return job.tags


def test_a_job_keeps_its_tags_wherever_it_goes(queue: Queue) -> None:
    queue.enqueue(b"data", id="a", tags=["invoice", "eu"])
    assert tags_of(queue, "a") == ("invoice", "eu")
    lease = take(queue)
    assert lease.tags == ("invoice", "eu")
    assert tags_of(queue, "a") == ("invoice", "eu")  # while it runs
    assert queue.retry(lease, delay=60)
    assert tags_of(queue, "a") == ("invoice", "eu")  # scheduled
    assert queue.update("a", delay=0)
    lease = take(queue)
    assert (lease.tags, lease.failures) == (("invoice", "eu"), 1)
    assert queue.fail(lease, "no")
    assert tags_of(queue, "a") == ("invoice", "eu")  # dead
    assert queue.revive("a") == [True]
    lease = take(queue)
    assert lease.tags == ("invoice", "eu")
    assert queue.complete(lease)


def test_an_enqueue_replaces_the_tags_and_an_update_only_those_that_it_gives(queue: Queue) -> None:
    queue.enqueue(b"1", id="a", tags=["old"])
    assert queue.update("a", priority=1)
    assert tags_of(queue, "a") == ("old",)
    assert queue.update("a", tags=["new", "new"])
    assert tags_of(queue, "a") == ("new",)
    assert queue.update("a", tags=[])
    assert tags_of(queue, "a") == ()
    queue.enqueue(b"2", id="a", tags=["again"], update_data=False)
    assert tags_of(queue, "a") == ("again",)
    queue.enqueue(b"3", id="a", update_data=False)
    assert tags_of(queue, "a") == ("again",)
    queue.enqueue(b"4", id="a")
    assert tags_of(queue, "a") == ()


def test_the_tags_of_a_blocked_job_wait_with_it(queue: Queue) -> None:
    queue.enqueue(b"1", id="a", tags=["first"])
    first = take(queue)
    assert queue.enqueue(b"2", id="a", tags=["second"]).status is Status.BLOCKED
    assert [job.tags for job in queue.jobs(State.BLOCKED).jobs] == [("second",)]
    assert queue.update("a", tags=["third"])
    assert queue.complete(first)
    second = take(queue)
    assert (second.data, second.tags) == (b"2", ("third",))
    # A change that is merged into the retry of the running job.
    assert queue.enqueue(b"3", id="a", update_data=False, tags=["merged"]).status is Status.BLOCKED
    assert queue.retry(second, delay=0)
    third = take(queue)
    assert (third.data, third.tags) == (b"2", ("merged",))
    queue.enqueue(b"4", id="a", update_data=False)
    queue.update("a", tags=[])
    assert queue.retry(third, delay=0)
    assert take(queue).tags == ()


@pytest.mark.parametrize(
    "tags",
    [
        "invoice",
        b"invoice",
        iter(["invoice"]),
        7,
        [7],
        [""],
        ["two words"],
        ["a\nb"],
        ["x" * 65],
        ["\ud800"],
        [str(n) for n in range(11)],
    ],
    ids=lambda tags: repr(tags)[:20],
)
def test_bad_tags_are_refused_with_the_rule_and_nothing_is_added(queue: Queue, tags: Any) -> None:
    with pytest.raises(InvalidOption, match=r"tag"):
        queue.enqueue(b"", tags=tags)
    queue.enqueue(b"", id="a")
    with pytest.raises(InvalidOption, match=r"tag"):
        queue.update("a", tags=tags)
    assert queue.counts().ready == 1


def fill(queue: Queue, state: State, numbers: range, tag: str) -> None:
    """Bring jobs with a tag, and with one of their own, into a state."""
    ids = [f"{number:04}" for number in numbers]
    delay = 60 if state is State.SCHEDULED else 0
    queue.enqueue_many([RawJob(data=b"1", id=id, tags=[tag, f"n{id}"], delay=delay) for id in ids])
    if state in (State.READY, State.SCHEDULED):
        return
    for lease in queue.lease_many(len(ids)):
        if state is State.DEAD:
            queue.fail(lease, "no")
    if state is State.BLOCKED:
        queue.enqueue_many([RawJob(data=b"2", id=id, tags=[tag, f"n{id}"]) for id in ids])


LISTED = [state for state in State if state is not State.BROKEN]


@pytest.mark.parametrize("state", LISTED)
def test_a_page_of_a_tag_has_exactly_its_jobs_and_the_cursor_goes_on_behind_them(queue: Queue, state: State) -> None:
    fill(queue, state, range(10), "even")
    fill(queue, state, range(10, 20), "odd")
    everything = list(queue.all_jobs(state))
    assert len(everything) == 20
    for tag in ("even", "odd", "n0007", "absent"):
        wanted = [job for job in everything if tag in job.tags]
        assert list(queue.all_jobs(state, tag=tag)) == wanted
        found: list[JobRecord] = []
        cursor = None
        for _ in range(20):
            page = queue.jobs(state, tag=tag, limit=3, cursor=cursor)
            assert len(page.jobs) <= 3
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                break
        assert found == wanted
        assert cursor is None


def test_a_page_of_a_tag_looks_at_a_bounded_number_of_jobs(queue: Queue) -> None:
    queue.enqueue_many([RawJob(data=b"", id=f"{number:04}") for number in range(MAX_ITEMS)])
    queue.enqueue(b"", id="last", tags=["rare"])
    page = queue.jobs(State.READY, tag="rare")
    assert page.jobs == ()
    assert page.cursor is not None
    page = queue.jobs(State.READY, tag="rare", cursor=page.cursor)
    assert ([job.id for job in page.jobs], page.cursor) == (["last"], None)
    assert queue.jobs(State.READY, tag="none") == Page((), queue.jobs(State.READY, limit=MAX_ITEMS).cursor)


def test_a_page_of_a_tag_reads_a_bounded_number_of_bytes_of_dead_jobs(queue: Queue) -> None:
    for number in range(12):
        queue.enqueue(bytes(1024 * 1024), id=f"{number:02}", max_failures=0)
        queue.fail(take(queue), "no")
    page = queue.jobs(State.DEAD, tag="absent")
    assert page == Page((), page.cursor)
    assert page.cursor is not None
    assert queue.jobs(State.DEAD, tag="absent", cursor=page.cursor) == Page((), None)


def test_tags_are_counted_among_waiting_and_running_jobs(queue: Queue) -> None:
    assert queue.tags() == TagCounts({}, True)
    queue.enqueue(b"", id="a", tags=["eu", "x"])
    take(queue)
    queue.enqueue(b"", id="b", tags=["eu"])
    queue.enqueue(b"", id="c", tags=["eu", "y"], delay=60)
    queue.enqueue(b"", id="d", tags=["dead"], priority=0)
    queue.fail(take(queue), "no")
    queue.enqueue(b"", id="b", tags=["eu"])
    assert queue.tags() == TagCounts({"eu": 3, "x": 1, "y": 1}, True)


def test_a_filter_that_is_not_a_tag_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidOption, match="is not a tag"):
        queue.jobs(State.READY, tag="two words")
