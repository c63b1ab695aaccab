"""Tags: a few short strings on a job, which stay with it wherever it goes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.leasing import take
from windlass import Queue, State, Status
from windlass.errors import InvalidOption

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
    ["invoice", b"invoice", 7, [7], [""], ["two words"], ["a\nb"], ["x" * 65], ["\ud800"], [str(n) for n in range(11)]],
    ids=lambda tags: repr(tags)[:20],
)
def test_bad_tags_are_refused_with_the_rule_and_nothing_is_added(queue: Queue, tags: Any) -> None:
    with pytest.raises(InvalidOption, match=r"tag"):
        queue.enqueue(b"", tags=tags)
    queue.enqueue(b"", id="a")
    with pytest.raises(InvalidOption, match=r"tag"):
        queue.update("a", tags=tags)
    assert queue.counts().ready == 1
