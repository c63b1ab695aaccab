"""The same protocol on native queues: a program in any language is a worker of theirs over a pipe."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable

import pytest
import redis

from tests.stdio.conftest import Service, Start
from tests.support.queue_clock import pass_time
from tests.support.server import Server
from tests.support.waiting import wait_until
from windlass import Queue, RawJob, State, Windlass
from windlass.stdio.native import NativeDispatcher
from windlass.storage.native.keys import queue_key
from windlass.values.decode_guard import MAX_UNDECODABLE_IN_A_ROW


@pytest.fixture
def queue(app: Windlass, native: Service) -> Queue:
    return app.queue(native.queue)


@pytest.fixture
def later(client: redis.Redis, queue: Queue) -> Callable[[float], None]:
    """Let time pass for the queue, without waiting for it."""

    return lambda seconds: pass_time(client, queue.name, seconds)


def test_the_life_of_a_job(native: Service, queue: Queue) -> None:
    queue.enqueue_json({"task": "resize", "args": {"path": "a.png"}}, id="a", priority=3)
    assert native.listed("job")["jobs"] == [{"uuid": "a", "priority": 3}]
    native.idle("w")
    message = native.hear()
    assert message["topic"] == "default/job_queue/workers/w/job_assignment"
    assert message["payload"].pop("dispatched_at")
    expected = {"task": "resize", "args": {"path": "a.png"}, "uuid": "a", "queue_name": queue.name, "priority": 3}
    assert message["payload"] == expected
    assert native.listed("leased")["jobs"] == [{"uuid": "a", "worker_uuid": "w"}]
    native.job("job_accepted", "w", "a")
    assert native.listed("leased")["jobs"] == []
    native.job("worker_progress", "w", "a", progress=0.5)
    assert native.listed("progress")["jobs"] == [{"uuid": "a", "worker_uuid": "w", "progress": 0.5}]
    assert native.listed("worker")["workers"] == [{"uuid": "w", "state": "busy"}]
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.holder, job.progress) == (State.RUNNING, "w", 0.5)
    native.job("job_finished", "w", "a")
    (worker,) = native.listed("worker")["workers"]
    assert (worker["uuid"], worker["state"]) == ("w", "idle")
    assert queue.get("a") is None


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"[1, 2]", {"data": [1, 2]}),
        (b'"text"', {"data": "text"}),
        (b"\xff\0", {"base64": "/wA="}),
        (b"", {"base64": ""}),
        (b'{"uuid": "lies",\n "n": 1e400}', {"n": float("inf")}),
    ],
)
def test_any_payload_can_be_assigned(native: Service, queue: Queue, data: bytes, shown: dict[str, object]) -> None:
    queue.enqueue(data, id="a")
    native.idle("w")
    payload = native.hear()["payload"]
    assert payload.pop("dispatched_at")
    assert payload == shown | {"uuid": "a", "queue_name": queue.name, "priority": 5}


def test_jobs_added_by_messages_are_plain_jobs(native: Service, queue: Queue) -> None:
    native.add("a", priority=2, args=[1])
    native.add("a", args=[2])
    assert "exists already" in native.log()["log_message"]
    assert native.is_silent()
    lease = queue.lease()
    assert lease is not None
    assert (lease.id, lease.priority) == ("a", 2)
    assert lease.json() == {"uuid": "a", "queue_name": queue.name, "priority": 2, "args": [1]}


def test_a_job_is_announced_to_an_idle_worker_at_once(native: Service, queue: Queue, client: redis.Redis) -> None:
    native.idle("w")
    wait_until(lambda: client.zcard(queue_key(queue.name, "idle")), "the service to wait for jobs")
    wait_until(client.pubsub_channels, "the service to listen")
    queue.enqueue(b"1", id="a")
    assert native.assigned() == ("w", "a")


def test_signs_of_life_keep_the_lease(native: Service, queue: Queue, later: Callable[[float], None]) -> None:
    queue.enqueue(b"1", id="a")
    native.idle("w")
    assert native.assigned() == ("w", "a")
    native.job("job_accepted", "w", "a")
    for word in ("worker_progress", "worker_busy", "worker_busy"):
        assert native.is_silent()
        later(8)
        if word == "worker_progress":
            native.job(word, "w", "a", progress=0.5)
        else:
            native.send(word, "w", queue_name=queue.name)
        native.send("tick")
    assert [job["uuid"] for job in native.listed("progress")["jobs"]] == ["a"]
    later(13)
    native.send("tick")
    assert "lost jobs queued again: 1" in native.log()["log_message"]
    native.job("job_finished", "w", "a")
    assert "does not belong to this worker" in native.complaint()
    native.idle("w2")
    assert native.assigned() == ("w2", "a")


def test_one_job_at_a_time_and_only_ones_own(native: Service, queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2"])
    native.idle("w")
    _, uuid = native.assigned()
    native.idle("w")  # it crossed its assignment
    assert native.is_silent()
    native.job("job_accepted", "other", uuid)
    assert "does not belong to this worker" in native.complaint()
    native.job("job_finished", "w", uuid)
    assert native.assigned()[0] == "w"


def test_a_worker_may_go_on_through_another_service(start: Start, native: Service, queue: Queue) -> None:
    queue.enqueue(b"1", id="a")
    native.idle("w")
    assert native.assigned() == ("w", "a")
    other = start("--layout", "native", "--tick", "off")
    other.queue = queue.name
    other.job("job_accepted", "w", "a")
    other.job("job_finished", "w", "a")
    assert other.is_silent()
    assert queue.get("a") is None


def test_when_its_input_ends_what_was_not_accepted_is_given_back(start: Start, app: Windlass) -> None:
    service = start("--layout", "native")
    queue = app.queue(service.queue)
    queue.enqueue_many([b"1", b"2"])
    for worker in ("w1", "w2"):
        service.idle(worker)
    first, _ = service.assigned(), service.assigned()
    service.job("job_accepted", *first)
    assert service.end() == 0
    assert (queue.counts().running, queue.counts().ready) == (1, 1)
    (job,) = queue.jobs("ready").jobs
    assert job.stalls == 0, "nobody is to blame"


async def test_what_is_not_accepted_in_time_is_released_and_not_charged(app: Windlass, client: redis.Redis) -> None:
    queue = app.queue("patience")
    await queue.aenqueue(json.dumps({}).encode(), id="a")
    hasty = NativeDispatcher(app, accept_timeout=0.001)
    patient = NativeDispatcher(app)
    for dispatcher, back in ((patient, 0), (hasty, 1)):
        assert await dispatcher.idle("patience", "w", 0)
        (job,) = await dispatcher.dispatch("patience", ["w"])
        assert (job.worker, job.uuid) == ("w", "a")
        assert await _ticked(dispatcher, back) == back
        if not back:
            await dispatcher.forget("patience", "w")
    record = await queue.aget("a")
    assert record is not None
    assert (record.state, record.stalls) == (State.READY, 0)
    await queue.apurge()


async def _ticked(dispatcher: NativeDispatcher, expected: int) -> int:
    """The first tick may come before the accept timeout of a millisecond."""
    async with asyncio.timeout(5):
        while (back := await dispatcher.tick("patience")) < expected:
            pass
    return back


async def test_a_service_with_wrong_keys_leaves_the_queue_to_others(server: Server, client: redis.Redis) -> None:
    right, wrong = os.urandom(32), os.urandom(32)
    async with (
        Windlass(server.url, signing_keys={"k": right}) as ours,
        Windlass(server.url, signing_keys={"k": wrong}) as other,
    ):
        queue = ours.queue("stdio-guard")
        await queue.aenqueue_many([RawJob(b"x", id=f"job-{n}") for n in range(3 * MAX_UNDECODABLE_IN_A_ROW)])
        dispatcher = NativeDispatcher(other)
        assert await dispatcher.dispatch(queue.name, [f"w{n}" for n in range(2 * MAX_UNDECODABLE_IN_A_ROW)]) == []
        assert await dispatcher.dispatch(queue.name, ["w1"]) == [], "the queue is suspended"
        counts = await queue.acounts()
        assert (counts.broken, counts.ready, counts.running) == (
            MAX_UNDECODABLE_IN_A_ROW,
            2 * MAX_UNDECODABLE_IN_A_ROW,
            0,
        )
        await queue.apurge()
