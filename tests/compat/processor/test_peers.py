"""Beside the published service: what it writes with its own commands, Windlass works on, and the other way round."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis

import windlass.storage.compat.processor
from tests.compat.processor.conftest import QUEUE, Look, Perform
from tests.contract.leasing import drain, take
from windlass import Cleaned, Queue, RawJob, Status
from windlass.errors import InvalidId, InvalidName, InvalidPayload, KeyConflict, UnsupportedByLayout
from windlass.storage.compat.processor import ProcessorLayout

LUA = Path(windlass.storage.compat.processor.__file__).with_name("processor.lua")


class Peer:
    """The published service, as far as the server sees it: several commands for each message."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    @staticmethod
    def _now() -> str:
        return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def add_job(self, uuid: str, **payload: Any) -> None:
        self._client.hset(uuid, "json", json.dumps({"uuid": uuid, "queue_name": QUEUE} | payload))
        self._client.lpush(f"jobs_queued:{QUEUE}", uuid)

    def worker_idle(self, worker: str) -> None:
        self._client.sadd(f"workers_idle:{QUEUE}", worker)
        self._client.srem(f"workers_busy:{QUEUE}", worker)
        self._client.zadd(f"workers_last_seen:{QUEUE}", {worker: time.time()})

    def dispatch(self) -> tuple[str, str] | None:
        if not self._client.scard(f"workers_idle:{QUEUE}") or not self._client.llen(f"jobs_queued:{QUEUE}"):
            return None
        uuid: Any = self._client.rpop(f"jobs_queued:{QUEUE}")
        worker: Any = self._client.spop(f"workers_idle:{QUEUE}")
        self._client.sadd(f"workers_busy:{QUEUE}", worker)
        self._client.zadd(f"jobs_dispatched:{QUEUE}", {uuid: time.time()})
        self._client.hset(uuid, "dispatched_at", self._now())
        return worker.decode(), uuid.decode()

    def job_accepted(self, worker: str, uuid: str) -> None:
        self._client.zrem(f"jobs_dispatched:{QUEUE}", uuid)
        self._client.zadd(f"jobs_processing:{QUEUE}", {uuid: time.time()})
        self._client.zadd(f"jobs_progress:{QUEUE}", {uuid: 0})
        self._client.hset(uuid, mapping={"started_at": self._now(), "worker_uuid": worker})

    def job_finished(self, worker: str, uuid: str) -> None:
        self.worker_idle(worker)
        self._client.zrem(f"jobs_processing:{QUEUE}", uuid)
        self._client.zrem(f"jobs_progress:{QUEUE}", uuid)
        self._client.hset(uuid, mapping={"finished_at": self._now(), "worker_uuid": worker})
        self._client.zadd(f"jobs_finished:{QUEUE}", {uuid: time.time()})


@pytest.fixture
def peer(client: redis.Redis, queue: Queue) -> Iterator[Peer]:
    yield Peer(client)
    client.delete(*(f"workers_{name}:{QUEUE}" for name in ("idle", "busy", "last_seen")))  # nobody else does


@pytest.mark.speaks("processor", "P9")
def test_jobs_of_a_peer_are_run_by_windlass_and_the_other_way_round(queue: Queue, peer: Peer, look: Look) -> None:
    peer.add_job("theirs", args=["-i", "a.mp4"])
    queue.enqueue_json({"args": []}, id="ours")
    lease = take(queue)
    assert (lease.id, lease.json()) == ("theirs", {"uuid": "theirs", "queue_name": QUEUE, "args": ["-i", "a.mp4"]})
    peer.worker_idle("w")
    assert peer.dispatch() == ("w", "ours")
    peer.job_accepted("w", "ours")
    assert queue.counts().running == 2
    peer.job_finished("w", "ours")
    assert queue.complete(lease)
    assert set(look()["jobs_finished"]) == {"ours", "theirs"}
    assert queue.counts().running == 0


@pytest.mark.speaks("processor", "P9", "P4", "P6")
def test_what_a_peer_loses_comes_back(queue: Queue, peer: Peer, later: Callable[[float], None], look: Look) -> None:
    for uuid in "abc":
        peer.add_job(uuid)
    peer.worker_idle("w1")
    peer.worker_idle("w2")
    given = dict(filter(None, [peer.dispatch(), peer.dispatch()]))
    peer.job_accepted("w1", given["w1"])
    later(9.1)
    assert queue.clean() == Cleaned(2)
    assert not [key for key in look() if key.startswith("workers")]
    assert drain(queue)[-1] == "c"


Speak = Callable[[str, str], object]


@pytest.mark.speaks("processor", "P9")
@pytest.mark.parametrize("seed", range(4))
def test_a_finished_job_stays_finished_whatever_the_order_of_lines(
    queue: Queue,
    peer: Peer,
    layout: ProcessorLayout,
    perform: Perform,
    look: Look,
    later: Callable[[float], None],
    client: redis.Redis,
    seed: int,
) -> None:
    """The published service checks nothing: what it hears late, it writes. Each line goes to either service."""
    chance = random.Random(seed)
    theirs: dict[str, Speak] = {
        "accepted": peer.job_accepted,
        "finished": peer.job_finished,
    }
    ours: dict[str, Speak] = {
        "accepted": lambda worker, uuid: perform(layout.accept(worker, 0, uuid, "now")),
        "finished": lambda worker, uuid: perform(layout.finish(worker, 0, uuid, peer._now(), b"{}")),
        "progress": lambda worker, uuid: perform(layout.hail(worker, 0, busy=True, job=uuid, progress=0.5)),
    }
    uuids = [f"job-{n}" for n in range(250)]
    for uuid in uuids:
        peer.add_job(uuid)
        worker = f"worker-of-{uuid}"
        if chance.random() < 0.5:
            peer.worker_idle(worker)
            assert peer.dispatch() == (worker, uuid)
        else:
            assert perform(layout.hail(worker, 0, busy=False))
            assert [job.id for job in perform(layout.dispatch([worker]))] == [uuid]
        for line in chance.sample(sorted(ours), 3):
            (theirs if chance.random() < 0.5 and line in theirs else ours)[line](worker, uuid)
        client.srem(f"workers_idle:{QUEUE}", worker)  # it takes no more
    finished = {uuid for uuid in uuids if client.hexists(uuid, "finished_at")}
    later(9.1)
    queue.clean()
    waiting = {job.id for job in queue.all_jobs("ready")}
    assert len(finished) > 100
    assert waiting == set(uuids) - finished, "a job whose end nobody could record comes back, and no other"
    assert queue.counts().running == 0
    assert not {"jobs_dispatched", "jobs_processing", "jobs_progress"} & set(look())


@pytest.mark.speaks("processor", "P9")
def test_a_job_that_was_added_again_after_its_end_is_not_finished(
    queue: Queue, peer: Peer, later: Callable[[float], None]
) -> None:
    peer.worker_idle("w")
    for life in ("first", "second"):
        peer.add_job("a")
        assert peer.dispatch() == ("w", "a")
        peer.job_accepted("w", "a")
        if life == "first":
            peer.job_finished("w", "a")
    later(9.1)
    assert queue.clean() == Cleaned(1), "its worker died in its second life"
    assert queue.complete(take(queue))


@pytest.mark.speaks("processor", "P9")
def test_a_peers_assignment_can_be_accepted_and_finished_through_windlass(
    queue: Queue, peer: Peer, layout: ProcessorLayout, perform: Perform, look: Look
) -> None:
    peer.add_job("a")
    peer.worker_idle("w")
    assert peer.dispatch() == ("w", "a")
    peer.worker_idle("w")  # it crossed its assignment
    assert perform(layout.accept("w", 0, "a", "now"))
    assert look()["workers_busy"] == {"w"}
    assert "workers_idle" not in look()
    assert not perform(layout.accept("other", 0, "a", "now"))
    assert perform(layout.finish("w", 0, "a", "now", b"{}"))


def test_a_peer_may_queue_a_job_twice_but_it_runs_once_at_a_time(
    queue: Queue, peer: Peer, look: Look, client: redis.Redis
) -> None:
    peer.add_job("a")
    peer.add_job("a")
    lease = take(queue)
    assert queue.lease() is None
    assert queue.complete(lease)
    peer.add_job("a")  # again, after it was finished
    again = take(queue)
    assert "jobs_finished" not in look()
    assert client.ttl("a") == -1
    assert queue.complete(again)


def test_entries_without_a_job_are_dropped(queue: Queue, client: redis.Redis, look: Look) -> None:
    client.lpush(f"jobs_queued:{QUEUE}", "gone", "a string", "b")
    client.set("a string", "x")
    client.hset("b", "json", "{}")
    assert take(queue).id == "b"
    assert queue.counts().ready == 0
    client.delete("a string")


def test_a_job_that_vanishes_while_it_runs_is_not_put_back(
    queue: Queue, client: redis.Redis, later: Callable[[float], None], look: Look
) -> None:
    queue.enqueue(b"{}", id="a")
    lease = take(queue)
    client.delete("a")
    assert not queue.complete(lease)
    later(60)
    queue.clean()
    assert look() == {}


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"1", b"[1]", b'"a"', b"null", b'{"a":NaN}', b'{"a":"\xff"}', b"{" * 9999])
def test_a_payload_must_be_a_json_object(queue: Queue, look: Look, data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"needs a JSON object.*Pass a dict to enqueue_json"):
        queue.enqueue(data)
    assert look() == {}


@pytest.mark.parametrize(
    "fields", [{"uuid": "b"}, {"queue_name": "other"}, {"priority": 2}, {"uuid": 7}, {"uuid": None}]
)
def test_a_payload_that_contradicts_its_job_is_refused(queue: Queue, look: Look, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload, match="Remove the field"):
        queue.enqueue_json(fields, id="a")
    assert look() == {}


@pytest.mark.parametrize("id", ["jobs_queued:x", "jobs_queued_3:x", "workers_idle:ffmpeg", "windlass:{x}:state"])
def test_an_id_that_could_be_another_key_is_refused(queue: Queue, id: str) -> None:
    with pytest.raises(InvalidId, match="another id"):
        queue.enqueue(b"{}", id=id)


def test_a_key_that_is_no_job_is_left_alone(queue: Queue, client: redis.Redis, look: Look) -> None:
    client.sadd("session", "x")
    client.hset("user", "name", "Ada")
    for id in ("session", "user"):
        with pytest.raises(KeyConflict):
            queue.enqueue_many([RawJob(b"{}", id="fine"), RawJob(b"{}", id=id)])
        assert queue.counts().ready == 0, "nothing is written then"
    assert look() == {"session": {"x"}, "user": {"name": "Ada"}}
    client.delete("session", "user")


def test_a_key_of_a_wrong_type_stops_all_verbs(queue: Queue, client: redis.Redis) -> None:
    client.set(f"jobs_queued_7:{QUEUE}", "x")
    for act in (lambda: queue.enqueue(b"{}"), queue.lease, queue.clean, queue.counts):
        with pytest.raises(KeyConflict, match="jobs_queued_7"):
            act()
    client.delete(f"jobs_queued_7:{QUEUE}")


def test_what_the_layout_cannot_do_is_refused(queue: Queue) -> None:
    queue.enqueue(b"{}", id="a")
    lease = take(queue)
    for act in (
        lambda: queue.enqueue(b"{}", delay=5),
        lambda: queue.enqueue(b"{}", max_failures=3),
        lambda: queue.update("a", priority=1),
        lambda: queue.cancel("a", running=True),
        lambda: queue.retry(lease, delay=5),
        lambda: queue.revive("a"),
        queue.pause,
    ):
        with pytest.raises(UnsupportedByLayout, match="'processor'"):
            act()
    assert queue.complete(lease)


def test_a_queue_must_have_a_name_that_fits(app: Any) -> None:
    for name in ("", "a b", "a{b}", "x" * 129):
        with pytest.raises(InvalidName):
            app.queue(name, layout="processor")


def test_an_id_is_one_job_on_the_whole_server(app: Any, queue: Queue) -> None:
    queue.enqueue(b"{}", id="a")
    other = app.queue("thumbs", layout="processor")
    assert other.enqueue(b"{}", id="a").status == Status.KEPT
    assert (other.counts().ready, other.get("a"), other.cancel("a")) == (0, None, False)
    assert take(queue).id == "a"


def test_the_calendar_in_lua_is_the_usual_one(client: redis.Redis) -> None:
    text = LUA.read_text()
    function = text[text.index("local function iso(ms)") : text.index("-- A field of a job")]
    script = client.register_script(f"local DAY_MS = 86400000\n{function}\nreturn iso(tonumber(ARGV[1]))")
    for moment in (
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        datetime(2000, 2, 29, 12, tzinfo=UTC),
        datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC),
        datetime(2026, 3, 1, tzinfo=UTC),
        datetime(2100, 2, 28, 1, 2, 3, 4_000, tzinfo=UTC),
        datetime(2100, 3, 1, tzinfo=UTC),
    ):
        expected = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert script(args=[round(moment.timestamp() * 1000)]) == expected.encode()
