"""Random lives of a queue on each layout of another system, with a peer of the published kind on it.

After every step all keys are looked at with a plain client and compared with a model in plain Python; see
tests/support/lives.py. `WINDLASS_LIVES_STEPS` is how many steps a life has, `WINDLASS_LIVES_SEED` where it begins. A
life that fails says its seed and its last steps.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis_work_queue import Item, KeyPrefix, WorkQueue  # type: ignore[import-untyped]

from tests.compat.hworker.peer import Peer as HworkerPeer
from tests.compat.queasy.peer import Peer as QueasyPeer
from tests.compat.worqr.peer import Peer as WorqrPeer
from tests.support.layouts import LAYOUTS
from tests.support.lives import NAME, Life, Peer, Seen, Step
from tests.support.server import Server

SEED = int(os.environ.get("WINDLASS_LIVES_SEED", "1"))
STEPS = int(os.environ.get("WINDLASS_LIVES_STEPS", "500"))

# How often each step is taken.
WEIGHTS = {
    "enqueue": 12,
    "enqueue_again": 5,
    "lease": 16,
    "turn": 12,
    "settle": 14,
    "complete_many": 4,
    "extend": 5,
    "beat": 5,
    "progress": 3,
    "wait": 10,
    "clean": 5,
    "cancel": 4,
    "revive": 2,
    "purge": 2,
    "restart": 2,
    "counts": 2,
    "jobs": 2,
    "get": 2,
    "held": 2,
    "peer_adds": 4,
    "peer_takes": 6,
    "peer_completes": 5,
    "peer_completes_late": 3,
    "peer_cleans": 4,
    "peer_snatches": 1,
}


class Workqueue:
    """The published package itself."""

    lasts = 20.0

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._queue = WorkQueue(KeyPrefix(NAME))

    def look(self) -> Seen:
        waiting, held = (
            [id.decode() for id in reversed(self._client.lrange(f"{NAME}:{key}", 0, -1))]
            for key in ("queue", "processing")
        )
        items = {key.decode().removeprefix(f"{NAME}:item:") for key in self._client.scan_iter(f"{NAME}:item:*")}
        leased = {key.decode().rpartition(":")[2] for key in self._client.scan_iter(f"{NAME}:lease*")}
        assert items == {*waiting, *held}, f"items {items} and entries {waiting} {held} differ"
        assert not leased & set(waiting), "who waits has no lease"
        assert not self._client.exists(f"{NAME}:cleaning")
        return Seen(waiting, held)

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        self._queue.add_item(self._client, Item(data, id=id))
        return id, data

    def take(self) -> tuple[str, Any] | None:
        item = self._queue.lease(self._client, round(self.lasts), block=False)
        return (item.id(), item) if item else None

    def complete(self, token: Any) -> bool:
        return bool(self._queue.complete(self._client, token))

    def clean(self) -> bool:
        self._queue.light_clean(self._client)
        return False

    def leave(self) -> None: ...


class Worqr:
    """A worker of the published package, by its commands."""

    lasts = 600.0

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._peer = WorqrPeer(client, "peer")

    def look(self) -> Seen:
        waiting = [task.decode() for task in reversed(self._client.lrange(f"worqr:queues:{NAME}", 0, -1))]
        listed = {token.decode() for token in self._client.smembers(f"worqr:workingProcesses:{NAME}")}
        held = {
            key.decode().removeprefix("worqr:processes:"): self._client.lrange(key, 0, -1)
            for key in self._client.scan_iter(f"worqr:processes:{NAME}_*")
        }
        assert listed == set(held), "the list of processes and the processes differ"
        assert all(len(tasks) == 1 for tasks in held.values())
        return Seen(waiting, [task.decode() for (task,) in held.values()])

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        self._peer.enqueue(NAME, data)
        return data.decode(), data

    def take(self) -> tuple[str, Any] | None:
        self._peer.start(NAME, seconds=round(self.lasts))
        found = self._peer.dequeue(NAME)
        return (found[1].decode(), found[0]) if found else None

    def complete(self, token: Any) -> bool:
        self._peer.finish(token)
        return True

    def clean(self) -> bool:
        """Whoever fails a worker takes back all that runs on its queues."""
        everybody = self._client.smembers("worqr:expiringWorkers") - {b"peer"}
        silent = [name for name in everybody if not self._client.exists(b"worqr:workerTimers:" + name)]
        self._peer.clean_up()
        return bool(silent)

    def leave(self) -> None:
        self._peer.fail("peer")


class Queasy:
    """A peer that runs the functions of the document."""

    lasts = 10.0

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._peer = QueasyPeer(client, NAME)

    def look(self) -> Seen:
        now = time.time() * 1000 + 1  # the peer rounds
        waiting: dict[str, float] = {
            id.decode(): score for id, score in self._client.zrange(f"{{{NAME}}}:waiting", 0, -1, withscores=True)
        }
        members = [member.decode() for member in self._client.zrange(f"{{{NAME}}}:active", 0, -1)]
        held = [member.rpartition(":")[0] for member in members]
        for ids, part in ((waiting, "waiting"), (held, "active")):
            prefix = f"{{{NAME}}}:{part}_job:"
            hashes = {key.decode().removeprefix(prefix) for key in self._client.scan_iter(f"{prefix}*")}
            assert hashes == set(ids), f"{part}: {hashes} and {set(ids)} differ"
        blocked = [id for id, score in waiting.items() if score < 0]
        assert set(blocked) <= set(held), "blocked by nothing"
        return Seen(
            [id for id in waiting if id not in blocked],
            held,
            blocked=blocked,
            later=[id for id, score in waiting.items() if score > now],
        )

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        self._peer.notify(json.loads(data), id)
        return id, json.dumps(json.loads(data)).encode()

    def take(self) -> tuple[str, Any] | None:
        found = self._peer.dequeue()
        return (found[0]["id"], found[0]) if found else None

    def complete(self, token: Any) -> bool:
        self._peer.success(token["id"])
        return True

    def clean(self) -> bool:
        self._peer.clear_stall()
        return False

    def leave(self) -> None: ...


class Hworker:
    """A worker and a monitor of the published kind."""

    lasts = 120.0

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._peer = HworkerPeer(client, NAME)

    def look(self) -> Seen:
        return Seen(
            [_id(text) for text in self._peer.waiting()],
            [_id(text) for text in self._peer.running()],
            dead=[_id(text) for text in self._client.lrange(self._peer.failed, 0, -1)],
            broken=[_id(text) for text in self._client.hkeys(self._peer.broken)],
        )

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        self._peer.queue(b"[%s,%s]" % (json.dumps(id).encode(), data))
        return id, data

    def take(self) -> tuple[str, Any] | None:
        text = self._peer.take()
        return (_id(text), [text]) if text else None

    def complete(self, token: Any) -> bool:
        return self._peer.complete(token[0])

    def clean(self) -> bool:
        self._peer.monitor()
        return False

    def leave(self) -> None: ...


def _id(text: bytes) -> str:
    id: str = json.loads(text)[0]
    return id


class Processor:
    """The published service with a worker for each job: several commands for each message."""

    lasts = 9.0

    def __init__(self, client: redis.Redis) -> None:
        self._client: Any = client
        self._workers = 0

    def look(self) -> Seen:
        waiting = [
            id.decode()
            for key in ("jobs_queued" if priority == 5 else f"jobs_queued_{priority}" for priority in range(10))
            for id in reversed(self._client.lrange(f"{key}:{NAME}", 0, -1))
        ]
        dispatched, processing, progress, finished = (
            [id.decode() for id in self._client.zrange(f"jobs_{key}:{NAME}", 0, -1)]
            for key in ("dispatched", "processing", "progress", "finished")
        )
        assert sorted(processing) == sorted(progress)
        hashes = {key.decode() for key in self._client.scan_iter(_type="hash") if not key.startswith(b"windlass:")}
        places = [*waiting, *dispatched, *processing, *finished]
        assert hashes == set(places), f"jobs {hashes} and entries {places} differ"
        assert len(places) == len(hashes), "twice"
        return Seen(waiting, [*dispatched, *processing])

    def add(self, id: str, data: bytes) -> tuple[str, bytes]:
        text = json.dumps(json.loads(data) | {"uuid": id, "queue_name": NAME})
        self._client.hset(id, "json", text)
        self._client.lpush(f"jobs_queued:{NAME}", id)
        return id, text.encode()

    def take(self) -> tuple[str, Any] | None:
        id = self._client.rpop(f"jobs_queued:{NAME}")
        if id is None:
            return None
        self._workers += 1
        worker, now = f"peer-{self._workers}", time.time()
        self._client.zadd(f"workers_last_seen:{NAME}", {worker: now})
        self._client.sadd(f"workers_busy:{NAME}", worker)
        self._client.hset(id, "dispatched_at", "2026-01-01T00:00:00.000000Z")
        self._client.zadd(f"jobs_dispatched:{NAME}", {id: now})
        if self._workers % 3:
            self._accept(id.decode(), worker, now)
        return id.decode(), (id.decode(), worker)

    def _accept(self, id: str, worker: str, now: float) -> None:
        self._client.zrem(f"jobs_dispatched:{NAME}", id)
        self._client.zadd(f"jobs_processing:{NAME}", {id: now})
        self._client.zadd(f"jobs_progress:{NAME}", {id: 0})
        self._client.hset(id, mapping={"started_at": "2026-01-01T00:00:00.000000Z", "worker_uuid": worker})

    def complete(self, token: Any) -> bool:
        id, worker = token
        now = time.time()
        for key in ("dispatched", "processing", "progress"):
            self._client.zrem(f"jobs_{key}:{NAME}", id)
        self._client.hset(id, mapping={"finished_at": "2026-01-01T00:00:00.000000Z", "worker_uuid": worker})
        self._client.zadd(f"jobs_finished:{NAME}", {id: now})
        self._client.srem(f"workers_busy:{NAME}", worker)
        self._client.sadd(f"workers_idle:{NAME}", worker)
        self._client.zadd(f"workers_last_seen:{NAME}", {worker: now})
        return True

    def clean(self) -> bool:
        """One tick: what is silent for three is put back."""
        limit = time.time() - 9
        for key in ("dispatched", "processing"):
            for id in reversed(self._client.zrange(f"jobs_{key}:{NAME}", "-inf", limit, byscore=True)):
                self._client.zrem(f"jobs_{key}:{NAME}", id)
                self._client.zrem(f"jobs_progress:{NAME}", id)
                self._client.rpush(f"jobs_queued:{NAME}", id)
        return False

    def leave(self) -> None:
        self._client.delete(*(f"workers_{name}:{NAME}" for name in ("idle", "busy", "last_seen")))


PEERS: dict[str, type[Peer]] = {
    "worqr": Worqr,
    "workqueue": Workqueue,
    "queasy": Queasy,
    "hworker": Hworker,
    "processor": Processor,
}


def make_steps(seed: int, count: int) -> list[Step]:
    """A life by chance."""
    chance = random.Random(seed)
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [(name, chance.getrandbits(32)) for name in names]


@pytest.fixture
def life(layout: str, server: Server, client: redis.Redis) -> Iterator[Life]:
    made: Any = PEERS[layout]
    life = Life(layout, server.url, client, made(client))
    yield life
    life.close()


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_life_of_a_queue_loses_a_job_or_gives_one_twice(life: Life) -> None:
    try:
        life.run(make_steps(SEED, STEPS))
        life.end()
    except Exception as error:
        steps = "\n".join(life.log[-40:])
        pytest.fail(f"{life.layout}, WINDLASS_LIVES_SEED={SEED}, step {len(life.log)}: {error!r}\n{steps}")
