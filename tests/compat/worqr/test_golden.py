"""Golden bytes: the exact keys, types and values of Worqr after each verb, and what is said on its channels."""

from __future__ import annotations

import json
import re

import pytest
import redis

from tests.compat.worqr.conftest import NAME, ClockView, Later, contents, members, worker_keys
from tests.contract.leasing import take
from tests.support.internals import perform
from tests.support.server import Server
from windlass import Queue, State, Windlass

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
WAITING = "worqr:queues:tubes"
RUNNING = "worqr:workingProcesses:tubes"


@pytest.mark.speaks("worqr", "W6", "W8")
def test_enqueue_pushes_at_the_head(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue(b"T0")
    queue.enqueue_many([b"T1", b"\x00\xff"])
    assert contents(client) == {WAITING: [b"\x00\xff", b"T1", b"T0"]}
    assert heard() == [("worqr_tubes_work", b"1"), ("worqr_tubes_work", b"2")]


@pytest.mark.speaks("worqr", "W8", "W9", "W11", "W12")
def test_a_lease_starts_a_task_of_a_worker(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    heard()
    take(queue, seconds=10, holder="w1")
    (process,) = members(client, RUNNING)
    assert re.fullmatch(f"tubes_{UUID4}", process)
    assert contents(client) == {
        WAITING: [b"T1"],
        RUNNING: {process},
        f"worqr:processes:{process}": [b"T0"],
        **worker_keys("w1"),
    }
    assert 5000 < client.pttl("worqr:workerTimers:w1") <= 10_000
    assert heard() == []


@pytest.mark.speaks("worqr", "W11")
def test_a_raw_lease_is_a_worker_of_its_own(client: redis.Redis, queue: Queue) -> None:
    queue.enqueue(b"T0")
    lease = take(queue, seconds=10)
    (process,) = members(client, RUNNING)
    running = {RUNNING: {process}, f"worqr:processes:{process}": [b"T0"]}
    assert contents(client) == {**running, **worker_keys(f".{lease.fence}")}
    assert queue.complete(lease)
    assert contents(client) == {}
    queue.enqueue_many([b"T1", b"T2"])
    names = {f".{lease.fence}" for lease in queue.lease_many(2)}
    assert members(client, "worqr:workers") == members(client, "worqr:expiringWorkers") == names
    assert {key for key in contents(client) if "workerTimers" in key} == {
        f"worqr:workerTimers:{name}" for name in names
    }


@pytest.mark.speaks("worqr", "W4", "W9")
def test_complete_finishes_a_task(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    lease = take(queue, holder="w1")
    heard()
    assert queue.complete(lease)
    assert contents(client) == {WAITING: [b"T1"], **worker_keys("w1")}
    assert heard() == [("worqr_tubes_done", b'{"workerId":"w1","task":"T0"}')]


@pytest.mark.speaks("worqr", "W3", "W9")
def test_release_stops_a_task_which_is_in_front_again(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    lease = take(queue, holder="w1")
    heard()
    assert queue.release(lease)
    assert contents(client) == {WAITING: [b"T1", b"T0"], **worker_keys("w1")}
    assert heard() == [("worqr_tubes_work", b"1")]


@pytest.mark.speaks("worqr", "W9")
def test_what_is_tried_again_goes_to_the_back(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    lease = take(queue, holder="w1")
    heard()
    assert queue.retry(lease, delay=0)
    assert contents(client) == {WAITING: [b"T0", b"T1"], **worker_keys("w1")}
    assert heard() == [("worqr_tubes_work", b"1")]


@pytest.mark.speaks("worqr", "W4", "W9")
def test_what_failed_is_finished(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue(b"T0")
    lease = take(queue, holder="w1")
    heard()
    assert queue.fail(lease, "it cannot be done")
    assert contents(client) == worker_keys("w1")
    assert heard() == [("worqr_tubes_done", b'{"workerId":"w1","task":"T0"}')]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (b'{"a": "\\/\n"}', '{"a": "\\/\n"}'),
        ("ŁJé 漢 😀".encode(), "ŁJé 漢 😀"),
        (b"\x00\x1f\x7f", "\x00\x1f\x7f"),
        (b"a\xff\xc3", "a��"),
        (b"", ""),
        (b"x" * 100_000, "x" * 100_000),
    ],
)
def test_done_says_the_task_as_json(queue: Queue, heard: ClockView, task: bytes, said: str) -> None:
    queue.enqueue(task)
    lease = take(queue)
    heard()
    assert queue.complete(lease)
    ((channel, message),) = heard()
    assert channel == "worqr_tubes_done"
    assert json.loads(message) == {"workerId": f".{lease.fence}", "task": said}


@pytest.mark.parametrize("task", [b"T0", b"/a/b \\/ c", "ŁJé 漢 😀\t\n".encode()])
def test_done_is_written_byte_for_byte_as_the_package_writes_it(queue: Queue, heard: ClockView, task: bytes) -> None:
    queue.enqueue(task)
    lease = take(queue, holder="w1")
    heard()
    assert queue.complete(lease)
    ((_, message),) = heard()
    packages = {"workerId": "w1", "task": task.decode()}  # JSON.stringify drops the result of a task that has none
    assert message == json.dumps(packages, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.speaks("worqr", "W11", "W12")
def test_a_worker_registers_and_retires(client: redis.Redis, queue: Queue) -> None:
    assert not queue.beat("w1", 3), "a sign of life alone does not register it"
    assert contents(client) == {}
    queue.beat("w1", 3, register=True)
    assert contents(client) == worker_keys("w1")
    assert 0 < client.pttl("worqr:workerTimers:w1") <= 3000
    assert queue.beat("w1", 60)
    assert contents(client) == worker_keys("w1")
    assert 50_000 < client.pttl("worqr:workerTimers:w1") <= 60_000
    assert queue.beat("w1", 3), "a worker may have promised more on another queue"
    assert 50_000 < client.pttl("worqr:workerTimers:w1") <= 60_000
    perform(queue, lambda layout: layout.unregister_holder("w1"))
    assert contents(client) == {}


@pytest.mark.speaks("worqr", "W12")
def test_a_worker_of_two_queues_stops_work_on_one_after_the_other(client: redis.Redis, app: Windlass) -> None:
    red, blue = app.queue("red", layout="worqr"), app.queue("blue", layout="worqr")
    for queue in (red, blue):
        queue.beat("w1", 30, register=True)
    assert contents(client) == {**worker_keys("w1"), "worqr:workingQueues:w1": {"red", "blue"}}
    perform(red, lambda layout: layout.unregister_holder("w1"))
    assert contents(client) == worker_keys("w1", "blue")
    perform(blue, lambda layout: layout.unregister_holder("w1"))
    assert contents(client) == {}


@pytest.mark.speaks("worqr", "W10")
def test_cancel_takes_every_waiting_copy(client: redis.Redis, queue: Queue, heard: ClockView) -> None:
    queue.enqueue_many([b"T1", b"T0", b"T1"])
    heard()
    assert queue.cancel("T1")
    assert contents(client) == {WAITING: [b"T0"]}
    assert heard() == [], "who runs one is not told unless asked for"
    assert queue.cancel("T0", running=True)
    assert contents(client) == {}
    assert heard() == [("worqr_tubes_cancel", b"T0")]


@pytest.mark.parametrize("state", [None, State.READY])
def test_purge_deletes_the_queue(client: redis.Redis, queue: Queue, heard: ClockView, state: State | None) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2"])
    take(queue, holder="w1")
    heard()
    assert queue.purge(state) == (3 if state is None else 2)
    left = {} if state is None else {key: value for key, value in contents(client).items() if "rocesses:" in key}
    assert contents(client) == {**left, **worker_keys("w1")}
    assert heard() == ([("worqr_tubes_delete", b"")] if state is None else [])


@pytest.mark.speaks("worqr", "W3", "W13", "W14")
def test_a_failed_worker_leaves_nothing_but_its_tasks(
    client: redis.Redis, queue: Queue, later: Later, heard: ClockView
) -> None:
    queue.enqueue_many([b"T0", b"T1", b"T2", b"T3"])
    queue.lease_many(3, seconds=10, holder="w1")
    heard()
    later(11)
    assert queue.clean().recovered == 3
    assert contents(client) == {WAITING: [b"T3", b"T2", b"T1", b"T0"]}
    assert heard() == [("worqr_tubes_work", b"3")]


@pytest.mark.speaks("worqr", "W4")
def test_in_the_end_there_is_not_one_key(server: Server, client: redis.Redis) -> None:
    with Windlass(server.url) as program:
        queue = program.queue(NAME, layout="worqr")
        queue.enqueue_many([b"T0", b"T1", b"T2"])
        queue.beat("w1", 3, register=True)
        assert queue.complete(take(queue))
        assert queue.complete(take(queue, holder="w1"))
        assert queue.fail(take(queue, holder="w2"))
    assert client.keys("*") == []
