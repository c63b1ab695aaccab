"""The rows of Processor Job Queue in its own layout: idle and busy workers, dispatch, loss, progress, priorities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import redis

from tests.compat.processor.conftest import QUEUE, Look, Perform
from tests.contract.leasing import drain, take
from tests.support.internals import perform_call
from tests.support.server import Server
from windlass import Cleaned, Queue, RawJob, State, Windlass
from windlass.storage.compat.processor import ProcessorLayout

Later = Callable[[float], None]


def add(queue: Queue, *ids: str, **options: Any) -> None:
    queue.enqueue_many([RawJob(b"{}", id=id, **options) for id in ids])


@pytest.fixture
def assign(layout: ProcessorLayout, perform: Perform) -> Callable[..., list[tuple[str, str]]]:
    """Workers say that they are idle, and get jobs: (worker, job) for each."""

    def assign(*workers: str) -> list[tuple[str, str]]:
        for worker in workers:
            assert perform(layout.hail(worker, 0, busy=False))
        return [(job.worker, job.id) for job in perform(layout.dispatch(workers))]

    return assign


# -- dispatch ------------------------------------------------------------------------------------


@pytest.mark.speaks("processor", "P3")
def test_only_idle_workers_get_a_job_and_are_idle_no_more(
    queue: Queue, layout: ProcessorLayout, perform: Perform, look: Look
) -> None:
    add(queue, "a", "b", "c", "d")
    assert perform(layout.dispatch(["w1"])) == [], "nobody has heard of it"
    for worker in ("w1", "w2", "w3"):
        perform(layout.hail(worker, 0, busy=False))
    perform(layout.hail("w3", 0, busy=True))
    given = perform(layout.dispatch(["w1", "w3", "w2", "w1"]))
    assert [(job.worker, job.id) for job in given] == [("w1", "a"), ("w2", "b")]
    assert look()["workers_busy"] == {"w1", "w2", "w3"}
    assert "workers_idle" not in look()
    assert perform(layout.dispatch(["w1", "w2"])) == []
    assert perform(layout.hail("w3", 0, busy=False))
    assert (look()["workers_busy"], look()["workers_idle"]) == ({"w1", "w2"}, {"w3"})


@pytest.mark.speaks("processor", "P3")
def test_many_services_at_once_give_each_job_and_each_worker_once(
    server: Server, queue: Queue, layout: ProcessorLayout, perform: Perform
) -> None:
    add(queue, *(str(n) for n in range(150)))
    workers = [f"w{n}" for n in range(100)]
    for worker in workers:
        perform(layout.hail(worker, 0, busy=False))

    def serve(_: int) -> list[Any]:
        with Windlass(server.url) as app:
            own = cast(ProcessorLayout, app.layout(QUEUE, "processor"))
            return [job for w in workers for job in perform_call(app, own.dispatch([w]))]

    with ThreadPoolExecutor(4) as pool:
        given = [job for jobs in pool.map(serve, range(4)) for job in jobs]
    assert Counter(job.worker for job in given) == dict.fromkeys(workers, 1)
    assert sorted(int(job.id) for job in given) == list(range(100))


def test_a_worker_that_was_idle_longer_than_a_tick_ago_gets_no_job(
    queue: Queue, layout: ProcessorLayout, perform: Perform, look: Look
) -> None:
    add(queue, "a")
    for ago, heard in ((9_001, False), (8_000, True), (3_100, True)):
        assert perform(layout.hail("w", ago, busy=False)) == heard
        assert perform(layout.dispatch(["w"])) == []
    assert look()["workers_idle"] == {"w"}
    assert perform(layout.hail("w", 2_000, busy=False))
    assert len(perform(layout.dispatch(["w"]))) == 1


def test_an_idle_message_that_crossed_an_assignment_brings_no_second_job(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, later: Later
) -> None:
    add(queue, "a", "b")
    assert assign("w") == [("w", "a")]
    assert not perform(layout.hail("w", 0, busy=False))
    assert perform(layout.dispatch(["w"])) == []
    later(9.1)
    assert queue.clean() == Cleaned(1)
    assert assign("w") == [("w", "a")], "its time to accept is over, so it is idle indeed"


def test_who_was_not_assigned_a_job_cannot_accept_go_on_with_or_finish_it(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, look: Look
) -> None:
    add(queue, "a")
    assert assign("w1") == [("w1", "a")]
    before = look()
    for accepted in (False, True):
        if accepted:
            assert perform(layout.accept("w1", 0, "a", "now"))
            assert perform(layout.accept("w1", 0, "a", "now")), "again is no mistake"
            before = look()
        assert not perform(layout.accept("w2", 0, "a", "now"))
        assert not perform(layout.hail("w2", 0, busy=True, job="a", progress=1.0))
        assert not perform(layout.finish("w2", 0, "a", "now", b"{}"))
        assert look() == before
    assert not perform(layout.accept("w1", 0, "nothing", "now"))
    assert perform(layout.finish("w1", 0, "a", "now", b"{}"))
    assert not perform(layout.finish("w1", 0, "a", "now", b"{}"))


def test_who_works_on_a_job_has_accepted_it(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any
) -> None:
    add(queue, "a", "b")
    assert assign("w1", "w2") == [("w1", "a"), ("w2", "b")]
    assert perform(layout.hail("w1", 0, busy=True, job="a", progress=0.5))
    assert queue.get("a").progress == 0.5  # type: ignore[union-attr]
    assert perform(layout.finish("w2", 0, "b", "now", b"{}"))
    assert queue.counts().running == 1


# -- what is lost --------------------------------------------------------------------------------


@pytest.mark.speaks("processor", "P4")
def test_what_is_not_accepted_within_three_ticks_is_queued_again_at_the_front(
    queue: Queue, assign: Any, later: Later, look: Look
) -> None:
    add(queue, *"zmaq")
    assert assign("w1", "w2", "w3") == [("w1", "z"), ("w2", "m"), ("w3", "a")]
    later(8.5)
    assert queue.clean() == Cleaned(0)
    later(0.6)
    assert queue.clean() == Cleaned(3)
    assert look()["a"].keys() == {"json"}
    assert drain(queue) == list("zmaq")


@pytest.mark.speaks("processor", "P6")
def test_a_worker_not_seen_for_three_ticks_is_purged_and_its_jobs_come_back(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, later: Later, look: Look
) -> None:
    add(queue, "a", "b", "c")
    assert assign("lost", "living") == [("lost", "a"), ("living", "b")]
    for worker, job in (("lost", "a"), ("living", "b")):
        assert perform(layout.accept(worker, 0, job, "now"))
    assert perform(layout.hail("idle", 0, busy=False))
    later(6)
    assert perform(layout.hail("living", 0, busy=True))
    assert queue.clean() == Cleaned(0)
    later(3.1)
    assert queue.clean() == Cleaned(1)
    seen = look()
    assert (seen["workers_busy"], set(seen["workers_last_seen"])) == ({"living"}, {"living"})
    assert "workers_idle" not in seen
    assert not perform(layout.finish("lost", 0, "a", "now", b"{}")), "it came too late"
    assert drain(queue) == ["a", "c"]
    assert perform(layout.finish("living", 0, "b", "now", b"{}"))


@pytest.mark.speaks("processor", "P6")
def test_a_lost_windlass_worker_gives_its_jobs_back_in_their_order(queue: Queue, later: Later, look: Look) -> None:
    add(queue, *"abcdef")
    queue.beat("w", 9, register=True)
    queue.lease_many(4, 9, holder="w")
    later(5)
    assert queue.beat("w", 9)
    later(5)
    assert queue.clean() == Cleaned(0)
    later(4.1)
    assert queue.clean() == Cleaned(4)
    assert not [key for key in look() if key.startswith("workers")]
    assert drain(queue) == list("abcdef")


@pytest.mark.speaks("processor", "P6")
def test_two_that_recover_a_dead_worker_at_once_do_it_once(
    server: Server, queue: Queue, later: Later, client: redis.Redis
) -> None:
    ids = [str(n) for n in range(200)]
    add(queue, *ids)
    queue.lease_many(200, 9, holder="w")
    later(9.1)

    def clean(_: int) -> int:
        with Windlass(server.url) as app:
            return app.queue(QUEUE, layout="processor").clean().recovered

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(clean, range(4))) == 200
    assert client.llen(f"jobs_queued:{QUEUE}") == 200
    assert drain(queue) == ids


def test_every_word_of_a_worker_keeps_it_and_its_jobs(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, later: Later, client: redis.Redis
) -> None:
    add(queue, "a")
    assign("w")
    later(6)
    for word in (
        layout.accept("w", 0, "a", "now"),
        layout.hail("w", 0, busy=True, job="a"),
        layout.hail("w", 0, busy=True),
        layout.hail("w", 0, busy=True, job="a", progress=0.5),
    ):
        began = time.time()
        assert perform(word)
        assert cast(float, client.zscore(f"jobs_processing:{QUEUE}", "a")) > began - 1
        later(8.5)
        assert queue.clean() == Cleaned(0)
    later(0.6)
    assert queue.clean() == Cleaned(1)


@pytest.mark.parametrize(("beats", "order"), [(0, "zmaqb"), (3, "qzmab")])
def test_jobs_come_back_by_their_last_sign_of_life_even_if_the_ledger_is_lost(
    queue: Queue, later: Later, client: redis.Redis, beats: int, order: str
) -> None:
    add(queue, *"zmaqb")
    queue.lease_many(3, 9, holder="w1")
    queue.lease_many(1, 9, holder="w2")
    for _ in range(beats):
        assert queue.beat("w1", 9)
    client.delete(*client.keys("windlass:*"))
    assert queue.clean() == Cleaned(0)
    later(9.1)
    assert queue.clean() == Cleaned(4)
    assert drain(queue) == list(order)


def test_a_worker_that_says_it_is_idle_has_dropped_its_job(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, later: Later
) -> None:
    add(queue, "a", "b")
    assign("w")
    assert perform(layout.accept("w", 0, "a", "now"))
    later(5)
    assert perform(layout.hail("w", 0, busy=False))
    assert queue.clean() == Cleaned(0)
    later(4.1)
    assert queue.clean() == Cleaned(1)
    assert drain(queue) == ["a", "b"]


def test_a_windlass_worker_is_never_among_the_idle(queue: Queue, look: Look) -> None:
    """Nobody could tell it what it was assigned."""
    add(queue, "a", "b")
    queue.beat("w", 9, register=True)
    leases = queue.lease_many(2, 9, holder="w")
    for lease, busy in zip(leases, ({"w"}, None), strict=True):
        assert queue.complete(lease)
        assert (look().get("workers_busy"), look().get("workers_idle")) == (busy, None)
    assert queue.beat("w", 9)
    assert "workers_idle" not in look()


# -- progress, queues, priorities ----------------------------------------------------------------


@pytest.mark.speaks("processor", "P5")
def test_progress_can_be_read_and_ends_with_the_attempt(queue: Queue, client: redis.Redis) -> None:
    add(queue, "a")
    lease = take(queue)
    for value in (0.0, 0.125, 1.0):
        assert queue.progress(lease, value)
        assert client.zscore(f"jobs_progress:{QUEUE}", "a") == value
    (job,) = queue.jobs(State.RUNNING).jobs
    assert (job.progress, job.fence) == (1.0, lease.fence)
    assert queue.release(lease)
    assert not queue.progress(lease, 0.5)
    assert client.zscore(f"jobs_progress:{QUEUE}", "a") is None


@pytest.mark.speaks("processor", "P7")
def test_queues_are_made_by_the_first_job_or_worker_and_have_workers_of_their_own(
    app: Windlass, queue: Queue, layout: ProcessorLayout, perform: Perform
) -> None:
    other = cast(ProcessorLayout, app.layout("thumbs", "processor"))
    add(queue, "a")
    perform(other.hail("w", 0, busy=False))
    assert perform(other.dispatch(["w"])) == []
    assert perform(layout.dispatch(["w"])) == [], "it is idle on another queue"
    app.queue("thumbs", layout="processor").enqueue(b"{}", id="t")
    assert [job.id for job in perform(other.dispatch(["w"]))] == ["t"]
    assert app.queue("thumbs", layout="processor").get("a") is None
    assert app.queue("thumbs", layout="processor").purge() == 1


@pytest.mark.speaks("processor", "P8")
def test_priority_0_comes_first_and_9_last_also_for_what_comes_back(
    queue: Queue, layout: ProcessorLayout, perform: Perform, assign: Any, later: Later
) -> None:
    for priority in (9, 5, 0, 3):
        add(queue, f"{priority}a", f"{priority}b", priority=priority)
    assert assign("w1", "w2", "w3") == [("w1", "0a"), ("w2", "0b"), ("w3", "3a")]
    assert perform(layout.accept("w3", 0, "3a", "now"))
    first = take(queue)
    assert (first.id, first.priority) == ("3b", 3)
    assert queue.release(first)
    later(9.1)
    assert queue.clean() == Cleaned(3)
    assert [job.id for job in queue.jobs(State.READY).jobs] == ["0a", "0b", "3a", "3b", "5a", "5b", "9a", "9b"]
    assert drain(queue) == ["0a", "0b", "3a", "3b", "5a", "5b", "9a", "9b"]


def test_a_page_goes_on_behind_a_score_that_is_written_with_an_exponent(queue: Queue, client: redis.Redis) -> None:
    add(queue, "a", "b", "c")
    queue.lease_many(3)
    client.zadd(f"jobs_processing:{QUEUE}", {"a": 1.7948131507157831e9, "b": 1.7948131507157833e9, "c": 1.8e9})
    first = queue.jobs(State.RUNNING, limit=1)
    second = queue.jobs(State.RUNNING, limit=1, cursor=first.cursor)
    assert [job.id for page in (first, second) for job in page.jobs] == ["a", "b"]
