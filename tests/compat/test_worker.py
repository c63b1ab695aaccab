"""The worker on every layout: whatever of it is killed, nothing is lost, and what it cannot do there is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.layouts import LAYOUTS
from tests.support.server import Server
from tests.support.workers import Worker, Workshop, keys_left
from windlass import Windlass
from windlass.errors import UnsupportedByLayout
from windlass.worker.runner.concurrency import INITIAL_LIMIT

QUEUES = ("loops", "threads", "processes")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All queues have it, here and in the workers."""
    monkeypatch.setenv("WINDLASS_LAYOUTS", request.param)
    return str(request.param)


@pytest.fixture
def shop(layout: str, server: Server, tmp_path: Path) -> Iterator[Workshop]:
    """A workshop whose queues have that layout."""
    with Workshop(server, tmp_path) as shop:
        yield shop


def start(shop: Workshop) -> Worker:
    return shop.start("spoken", lease=2.0, processes=2, threads=2, concurrency=4)


def numbers(shop: Workshop, what: str) -> set[int]:
    return {entry.more["number"] for entry in shop.journal.all(what)}


def send(shop: Workshop, count: int, seconds: float) -> None:
    calls = [
        shop.call(f"{queue.rstrip('s').removesuffix('e')}_work", number, seconds, queue=queue)
        for number, queue in enumerate(QUEUES * count)
    ]
    shop.send_many(calls)


@pytest.mark.speaks("queasy", "Q6", "Q1")
@pytest.mark.speaks("worqr", "W1", "W11", "W14")
def test_nothing_is_lost_whatever_is_killed(shop: Workshop) -> None:
    first = start(shop)
    send(shop, 30, 0.05)
    child, runner = (shop.journal.wait(1, "start", task=f"{way}_work")[0].pid for way in ("process", "loop"))
    assert child != runner, "what computes does not hold up the event loop"
    # A child, then the runner, then the supervisor, then a whole worker at a stroke.
    os.kill(child, signal.SIGKILL)
    shop.journal.wait(20, "end")
    os.kill(runner, signal.SIGKILL)
    shop.journal.wait(30, "end")
    second = start(shop)
    os.kill(first.supervisor, signal.SIGKILL)
    shop.journal.wait(45, "end")
    start(shop)
    second.signal_all(signal.SIGSTOP)
    second.signal_all(signal.SIGKILL)
    shop.wait(lambda: len(numbers(shop, "end")) == 90, "all of them to end")
    shop.wait_empty(*QUEUES)
    assert not shop.journal.overlaps()


@pytest.mark.speaks("queasy", "Q7", "Q2")
@pytest.mark.speaks("hworker", "H2")
def test_what_fails_or_takes_too_long_is_tried_again(shop: Workshop) -> None:
    start(shop)
    shop.send_many([shop.call("loop_stumble", 1, queue="loops"), shop.call("process_hang", 2, queue="processes")])
    shop.wait(lambda: numbers(shop, "end") == {1, 2}, "both to end")
    assert [entry.more["number"] for entry in shop.journal.all("start")].count(2) == 2
    shop.wait_empty(*QUEUES)


def test_a_job_that_snoozes_runs_again_later_and_is_not_charged(shop: Workshop) -> None:
    worker = start(shop)
    shop.send("loop_snooze", 1, queue="loops")
    (end,) = shop.journal.wait(1, "end")
    first, again = shop.journal.all("start")
    assert again.at - first.at >= 0.3
    assert end.more["failures"] == 0
    assert "snoozed: rate limit" in worker.log
    assert "failed" not in worker.log
    shop.wait_empty("loops")


@pytest.mark.speaks("worqr", "W12", "W9")
def test_a_worker_that_stops_gives_back_what_it_had(shop: Workshop) -> None:
    worker = shop.start("spoken", lease=2.0, grace=0.5, processes=1, threads=1, concurrency=2)
    send(shop, 4, 30)
    shop.journal.wait(4, "start")
    assert worker.stop() == 0
    counts = [shop.queue(name).counts() for name in QUEUES]
    assert [(count.ready + count.scheduled, count.running) for count in counts] == [(4, 0)] * 3, worker.log


@pytest.mark.speaks("worqr", "W4")
def test_a_worker_that_stops_leaves_no_key(shop: Workshop, server: Server) -> None:
    worker = start(shop)
    send(shop, 2, 0.01)
    shop.wait(lambda: len(numbers(shop, "end")) == 6, "all of them to end")
    shop.wait_empty(*QUEUES)
    assert worker.stop() == 0
    shop.app.close()
    ours = [key for key in keys_left(server) if key.startswith("windlass:")]
    assert ours == [], "the other keys are finished jobs of Processor Job Queue"


@pytest.mark.speaks("queasy", "Q12")
def test_concurrency_adapts_here_too(shop: Workshop) -> None:
    """It begins with ten jobs at once. These only wait, so it takes more, long before the first of them ends."""
    worker = shop.start("spoken", lease=2.0, grace=0.2, auto=True, concurrency=50)
    shop.send_many([shop.call("loop_work", number, 60, queue="loops") for number in range(20)])
    shop.wait(lambda: len(numbers(shop, "start")) > INITIAL_LIMIT, "more of them to start")
    assert not numbers(shop, "end")
    assert worker.stop() == 0


def test_a_layout_without_tags_and_expiry_refuses_them_wherever_they_are_used(layout: str, server: Server) -> None:
    with Windlass(server.url) as app:
        queue = app.queue("tagged")
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*expiring jobs"):
            queue.enqueue(b"1", expires="1h")
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*expiring jobs"):
            app.task(queue="loops", expires="1h", name="short")(lambda: None)
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*(counting snoozes|limits)"):
            queue.enqueue(b"1", max_snoozes=3)
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*(counting snoozes|limits)"):
            app.task(queue="loops", max_snoozes=3, name="bound")(lambda: None)
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*(counting snoozes|limits)"):
            app.handler("raw", max_snoozes=3)(lambda data: None)
        for use in (
            lambda: queue.enqueue(b"1", tags=["eu"]),
            lambda: queue.jobs("ready", tag="eu"),
            queue.tags,
        ):
            with pytest.raises(UnsupportedByLayout, match=f"{layout}.*tag"):
                use()
        assert list(queue.all_jobs("ready")) == []


def test_what_a_layout_cannot_do_is_refused_when_it_is_declared(layout: str, server: Server) -> None:
    with Windlass(server.url) as app:
        with pytest.raises(UnsupportedByLayout, match=f"{layout}.*results and events.*native"):
            app.task(queue="loops", keep_result="1h", name="kept")(lambda: None)
        if layout not in ("queasy",):
            with pytest.raises(UnsupportedByLayout, match="limits for failures"):
                app.handler("raw", max_failures=3)(lambda data: None)
            handler = app.handler("raw")(lambda data: None)
            with pytest.raises(UnsupportedByLayout, match="failure handlers"):
                handler.on_failure(lambda data: None)


def test_a_queue_that_the_app_does_not_name_may_lack_what_its_tasks_have(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_LAYOUTS", "thumbs=worqr")
    with Workshop(server, tmp_path) as shop:
        worker = shop.start("catching", queues={"thumbs": 1})  # its tasks have failure handlers, on other queues
        assert worker.stop() == 0
        assert "failure handler" not in worker.log
