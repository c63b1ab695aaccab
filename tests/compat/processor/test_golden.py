"""Byte for byte: the keys, types and values after each verb, as the document and the published service have them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.compat.processor.conftest import QUEUE, Look, Perform
from tests.contract.leasing import take
from tests.support.server import Server
from windlass import Lease, Queue, RawJob, Status, Windlass
from windlass.storage.compat.processor import ProcessorLayout

JSON = f'{{"uuid":"a","queue_name":"{QUEUE}","priority":5,"args":[1]}}'


def add(queue: Queue) -> None:
    queue.enqueue(JSON.encode(), id="a")


def test_a_job_is_a_hash_of_its_uuid_and_an_entry_at_the_left(queue: Queue, look: Look) -> None:
    add(queue)
    assert look() == {"a": {"json": JSON}, "jobs_queued": ["a"]}
    queue.enqueue(b"{}", id="b")
    assert look()["jobs_queued"] == ["b", "a"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"{}", b'{ "uuid":"b","queue_name":"ffmpeg","priority":5}'),
        (b'{"n":1}', b'{"n":1, "uuid":"b","queue_name":"ffmpeg","priority":5}'),
        (b'{"n":1,"queue_name":"ffmpeg"}\n', b'{"n":1,"queue_name":"ffmpeg", "uuid":"b","priority":5}'),
        (b'{"uuid":"b","queue_name":"ffmpeg","n":1}', b'{"uuid":"b","queue_name":"ffmpeg","n":1, "priority":5}'),
        (b'{"priority":5,"uuid":"b","queue_name":"ffmpeg"}', b'{"priority":5,"uuid":"b","queue_name":"ffmpeg"}'),
    ],
)
def test_what_a_payload_lacks_is_put_in_and_taken_out_again(
    queue: Queue, client: redis.Redis, given: bytes, stored: bytes
) -> None:
    queue.enqueue(given, id="b")
    assert client.hget("b", "json") == stored
    assert {"uuid": "b", "queue_name": QUEUE, "priority": 5}.items() <= json.loads(stored).items()
    assert take(queue).data == given.strip()


def test_an_id_of_any_characters_comes_back(queue: Queue) -> None:
    for id in ('"quoted", "uuid":"x"}', "größer\n", "\\", "x" * 512):
        queue.enqueue(b'{"of": {"a": "b", "uuid":"c"}}', id=id)
        lease = take(queue)
        assert (lease.id, lease.data) == (id, b'{"of": {"a": "b", "uuid":"c"}}')
        queue.complete(lease)


def test_other_priorities_have_lists_of_their_own(queue: Queue, look: Look) -> None:
    for priority in (9, 0, 5):
        queue.enqueue(b"{}", id=f"p{priority}", priority=priority)
    seen = look()
    assert {key: seen[key] for key in seen if key.startswith("jobs")} == {
        "jobs_queued": ["p5"],
        "jobs_queued_0": ["p0"],
        "jobs_queued_9": ["p9"],
    }
    assert seen["p0"] == {"json": '{ "uuid":"p0","queue_name":"ffmpeg","priority":0}', "priority": "0"}
    assert set(seen["p5"]) == {"json"}


def test_a_lease_is_dispatched_and_accepted_at_once(queue: Queue, look: Look) -> None:
    add(queue)
    assert queue.beat("worker-1", 9, register=True) is False
    take(queue, seconds=9, holder="worker-1")
    assert look() == {
        "a": {"json": JSON, "dispatched_at": "now", "started_at": "now", "worker_uuid": "worker-1"},
        "jobs_processing": {"a": "now"},
        "jobs_progress": {"a": 0.0},
        "workers_busy": {"worker-1"},
        "workers_last_seen": {"worker-1": "now"},
    }


def test_times_are_written_as_its_peers_write_them(queue: Queue, client: redis.Redis) -> None:
    add(queue)
    take(queue)
    at: Any = client.hget("a", "started_at")
    assert re.fullmatch(rb"20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-5]\d\.\d{3}Z", at)


def test_a_lease_of_another_length_ends_for_peers_when_it_ends(queue: Queue, client: redis.Redis) -> None:
    """They count 9 s from the last sign."""
    for seconds in (3, 60):
        queue.enqueue(b"{}", id=f"for {seconds}")
        take(queue, seconds=seconds)
        second, microseconds = client.time()
        score = client.zscore(f"jobs_processing:{QUEUE}", f"for {seconds}")
        assert score is not None
        assert score + 9 == pytest.approx(second + microseconds / 1e6 + seconds, abs=1)


def test_progress_and_extension_are_signs_of_life(queue: Queue, client: redis.Redis, look: Look) -> None:
    add(queue)
    lease = take(queue, seconds=9, holder="w")
    key, seen = f"jobs_processing:{QUEUE}", f"workers_last_seen:{QUEUE}"
    signs: list[Callable[[], bool]] = [
        lambda: queue.progress(lease, 0.25),
        lambda: queue.extend(lease, 9),
        lambda: queue.beat("w", 9),
    ]
    for act in signs:
        client.zadd(key, {"a": 1000.0})
        client.zadd(seen, {"w": 1000.0})
        assert act()
        assert (look()["jobs_processing"], look()["workers_last_seen"]) == ({"a": "now"}, {"w": "now"})
    assert look()["jobs_progress"] == {"a": 0.25}


ENDINGS: dict[str, tuple[Callable[[Queue, Lease], bool], list[str]]] = {
    "release": (lambda queue, lease: queue.release(lease), ["c", "b", "a"]),
    "retry": (lambda queue, lease: queue.retry(lease, delay=0), ["a", "c", "b"]),
}


@pytest.mark.parametrize("verb", ENDINGS)
def test_a_job_that_comes_back_is_as_it_was(queue: Queue, look: Look, verb: str) -> None:
    act, waiting = ENDINGS[verb]
    add(queue)
    queue.enqueue_many([RawJob(b"{}", id="b"), RawJob(b"{}", id="c")])
    lease = take(queue, holder="w")
    assert act(queue, lease)
    seen = look()
    assert (seen["a"], seen["jobs_queued"]) == ({"json": JSON}, waiting)
    assert not {"jobs_processing", "jobs_progress", "workers_busy", "workers_idle"} & set(seen)
    assert not act(queue, lease)


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_what_is_finished_is_kept_for_its_peers_for_a_day(
    queue: Queue, client: redis.Redis, look: Look, verb: str
) -> None:
    add(queue)
    lease = take(queue)
    assert getattr(queue, verb)(lease)
    done = {"json": JSON, "dispatched_at": "now", "started_at": "now", "worker_uuid": f".{lease.fence}"}
    assert look() == {"a": done | {"finished_at": "now"}, "jobs_finished": {"a": "now"}}
    for key in ("a", f"jobs_finished:{QUEUE}"):
        assert 86_000_000 < client.pttl(key) <= 86_400_000
    assert queue.get("a") is None
    assert queue.enqueue(JSON.encode(), id="a").status == Status.ADDED
    assert look() == {"a": {"json": JSON}, "jobs_queued": ["a"]}
    assert client.ttl("a") == -1


def test_no_more_finished_jobs_are_kept_than_are_asked_for(server: Server, client: redis.Redis, look: Look) -> None:
    for most, left in ((2, {"8", "9"}), (0, set())):
        with Windlass(server.url, max_dead=most) as app:
            queue = app.queue(QUEUE, layout="processor")
            queue.enqueue_many([RawJob(b"{}", id=str(n)) for n in range(10)])
            for lease in queue.lease_many(10):
                assert queue.complete(lease)
            assert set(look()) == left | ({"jobs_finished"} if left else set())
            assert set(look().get("jobs_finished", {})) == left
            queue.purge()
            assert look() == {}


def test_what_is_finished_for_long_is_dropped(queue: Queue, client: redis.Redis, look: Look) -> None:
    client.zadd(f"jobs_finished:{QUEUE}", {"old": 1000.0})
    client.hset("old", mapping={"json": "{}", "finished_at": "1970-01-01T00:16:40.000Z"})
    add(queue)
    assert queue.complete(take(queue))
    assert set(look()) == {"a", "jobs_finished"}
    assert set(look()["jobs_finished"]) == {"a"}


def test_a_cancelled_job_is_gone(queue: Queue, look: Look) -> None:
    for priority in (5, 2):
        queue.enqueue(b"{}", id="a", priority=priority)
        assert queue.cancel("a")
        assert look() == {}
        assert not queue.cancel("a")


def test_dispatch_and_acceptance_as_the_service_does_them(
    queue: Queue, layout: ProcessorLayout, perform: Perform, look: Look, client: Any
) -> None:
    add(queue)
    assert perform(layout.hail("w", 0, busy=False))
    idle = {"workers_idle": {"w"}, "workers_last_seen": {"w": "now"}}
    assert look() == {"a": {"json": JSON}, "jobs_queued": ["a"]} | idle
    (job,) = perform(layout.dispatch(["w"]))
    assert (job.worker, job.id, job.json, job.priority) == ("w", "a", JSON.encode(), 5)
    busy = {"workers_busy": {"w"}, "workers_last_seen": {"w": "now"}}
    dispatched = {"json": JSON, "dispatched_at": "now", "worker_uuid": "w"}
    assert look() == {"a": dispatched, "jobs_dispatched": {"a": "now"}} | busy
    assert perform(layout.accept("w", 0, "a", "2026-01-02T03:04:05.006Z"))
    started = dispatched | {"started_at": "2026-01-02T03:04:05.006Z"}
    assert look() == {"a": started, "jobs_processing": {"a": "now"}, "jobs_progress": {"a": 0.0}} | busy
    assert perform(layout.hail("w", 0, busy=True, job="a", progress=0.5))
    assert look() == {"a": started, "jobs_processing": {"a": "now"}, "jobs_progress": {"a": 0.5}} | busy
    end = b'{"uuid":"a","queue_name":"ffmpeg","exit_code":0}'
    assert perform(layout.finish("w", 0, "a", "2026-01-02T03:04:06.007Z", end))
    finished = started | {"json": end.decode(), "finished_at": "2026-01-02T03:04:06.007Z"}
    assert look() == {"a": finished, "jobs_finished": {"a": "now"}} | idle
    perform(layout.unregister_holder("w"))
    assert set(look()) == {"a", "jobs_finished"}
    notes = client.hkeys(f"windlass:{{{QUEUE}}}:processor:state")
    assert not [note for note in notes if not note.startswith((b"caller:", b"fence", b"swept"))]


def test_a_purge_leaves_nothing(queue: Queue, look: Look) -> None:
    queue.enqueue_many([RawJob(b"{}", priority=n % 10) for n in range(30)])
    for lease in queue.lease_many(3):
        queue.complete(lease)
    queue.lease_many(3)
    assert queue.purge() == 27
    assert not [key for key in look() if not key.startswith("workers_")]
    assert queue.counts().ready == queue.counts().running == 0
