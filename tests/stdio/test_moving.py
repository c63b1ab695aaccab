"""A worker that goes on through another service is none of the first one's any more: that one must not forget it."""

from __future__ import annotations

import pytest
import redis

from tests.stdio.conftest import Start
from tests.support.waiting import wait_until
from windlass import Windlass
from windlass.stdio.native import NativeDispatcher
from windlass.stdio.processor import ProcessorDispatcher


@pytest.mark.speaks("processor", "P2")
def test_a_service_that_ends_leaves_a_worker_to_the_one_that_hears_of_it_now(
    start: Start, client: redis.Redis, app: Windlass
) -> None:
    first, second = start("--tick", "off"), start("--tick", "off")
    first.idle("stays")
    first.idle("moves")
    wait_until(lambda: client.scard("workers_idle:ffmpeg") == 2, "both to be known")
    second.idle("moves")
    assert second.is_silent()
    assert first.end() == 0
    assert [worker["uuid"] for worker in second.listed("worker")["workers"]] == ["moves"]
    second.add("a")
    assert second.assigned() == ("moves", "a")
    second.job("job_accepted", "moves", "a")
    second.job("job_finished", "moves", "a")
    assert second.is_silent()
    app.queue("ffmpeg", layout="processor").purge()


async def test_nor_is_it_forgotten_by_one_that_has_not_heard_of_it_for_long(app: Windlass) -> None:
    first, second = ProcessorDispatcher(app), ProcessorDispatcher(app)
    assert await first.idle("ffmpeg", "w", 0)
    assert await second.idle("ffmpeg", "w", 0)
    await first.forget("ffmpeg", "w")
    assert (await first.list_entries("ffmpeg", "workers")).total == 1
    await second.forget("ffmpeg", "w")
    assert (await second.list_entries("ffmpeg", "workers")).total == 0


async def test_on_a_native_queue_a_job_accepted_elsewhere_is_not_taken_back(app: Windlass) -> None:
    queue = app.queue("ffmpeg", layout="native")
    first, second = NativeDispatcher(app, accept_timeout=0), NativeDispatcher(app)
    await queue.aenqueue_many([b"{}", b"{}"])
    for worker in ("v", "w"):
        assert await first.idle("ffmpeg", worker, 0)
    accepted, ignored = await first.dispatch("ffmpeg", ["v", "w"])
    assert await second.accept("ffmpeg", "v", 0, accepted.uuid, "now")
    assert await first.tick("ffmpeg") == 1, "one was not accepted by anybody"
    await first.forget("ffmpeg", "v")
    assert await second.finish("ffmpeg", "v", 0, accepted.uuid, "now", b"{}")
    record = await queue.aget(ignored.uuid)
    assert record is not None
    assert record.state == "ready"
    await queue.apurge()
