"""Bits that turn over in the log: the server has no sum over what it appends, and loads them in silence. We notice."""

from __future__ import annotations

import os
import random

import redis

from tests.native.test_torn_log import log_of
from tests.support.server import Server
from windlass import Lease, Queue, State, Windlass
from windlass.storage.native.keys import queue_key

FLIPS = int(os.environ.get("WINDLASS_BIT_FLIPS", "200"))
SEED = int(os.environ.get("WINDLASS_TORN_SEED", "3"))
AT_ONCE = 100
SUM = 5  # bytes behind the payload


def test_a_payload_with_a_turned_bit_is_never_delivered() -> None:
    chance = random.Random(SEED)
    with Server(appendonly=True, appendfsync="always") as server:
        payloads = {f"j{n}": chance.randbytes(chance.randint(16, 300)) for n in range(2 * AT_ONCE)}
        with Windlass(server.url) as app:
            for id, data in payloads.items():
                app.queue("rotten").enqueue(data, id=id)
            server.kill()
        whole = log_of(server).read_bytes()
        flipped = wrong = 0
        while flipped < FLIPS:
            chosen = chance.sample(sorted(payloads), min(AT_ONCE, FLIPS - flipped))
            log = bytearray(whole)
            for id in chosen:
                start = whole.index(payloads[id])
                log[start + chance.randrange(len(payloads[id]) + SUM)] ^= 1 << chance.randrange(8)
            log_of(server).write_bytes(log)
            server.start()
            with Windlass(server.url) as app:
                queue = app.queue("rotten")
                delivered = {lease.id: lease.data for lease in leased(queue)}
                broken = {job.id: job for job in queue.all_jobs(State.BROKEN)}
                wrong += sum(payloads[id] != data for id, data in delivered.items())
                assert set(broken) == set(chosen)
                assert set(delivered) == set(payloads) - set(chosen)
                assert all("checksum does not match" in (job.message or "") for job in broken.values())
            server.kill()
            flipped += len(chosen)
    assert wrong == 0
    print(f"{flipped} bits turned over in payloads, {wrong} wrong payloads delivered (seed {SEED})")


def leased(queue: Queue) -> list[Lease]:
    found: list[Lease] = []
    while batch := queue.lease_many(50):
        found += batch
    return found


def test_what_is_damaged_is_shown_as_such_in_every_state(raw_queue: Queue, client: redis.Redis) -> None:
    data = queue_key(raw_queue.name, "data")
    raw_queue.enqueue(b"payload", id="a")
    stored = client.hget(data, "a")
    assert isinstance(stored, bytes)
    client.hset(data, "a", bytes([stored[0] ^ 1]) + stored[1:])
    record = raw_queue.get("a")
    assert record is not None
    assert (record.data, record.state) == (b"", State.READY)
    assert "damaged" in (record.message or "")
    assert raw_queue.lease() is None
    record = raw_queue.get("a")
    assert record is not None
    assert (record.data, record.state, record.reason) == (b"", State.BROKEN, "broken")
    assert raw_queue.counts().broken == 1


def test_what_was_pushed_by_hand_is_watched_over_as_well(raw_queue: Queue, client: redis.Redis) -> None:
    client.lpush(queue_key(raw_queue.name, "inbox"), b"one", b"two \x00\xff")
    raw_queue.clean()
    data = queue_key(raw_queue.name, "data")
    for id in client.hkeys(data):
        stored = client.hget(data, id)
        assert isinstance(stored, bytes)
        if stored.startswith(b"one"):
            client.hset(data, id, b"One" + stored[3:])
    lease = raw_queue.lease()
    assert lease is not None
    assert lease.data == b"two \x00\xff"
    assert raw_queue.complete(lease)
    assert raw_queue.lease() is None
    assert raw_queue.counts().broken == 1


def test_a_schedule_with_a_turned_bit_does_not_tick(app: Windlass, raw_queue: Queue, client: redis.Redis) -> None:
    schedules = queue_key(raw_queue.name, "schedules")
    app.schedules.add("often", (raw_queue.name, b"pay 100 euro"), every=60)
    stored = client.hget(schedules, "often")
    assert isinstance(stored, bytes)
    at = stored.index(b'"data":"') + 12  # a letter of its base64, which stays one
    client.hset(schedules, "often", stored[:at] + (b"A" if stored[at : at + 1] != b"A" else b"B") + stored[at + 1 :])
    (record,) = app.schedules.list(raw_queue.name)
    assert record.schedule is None
    assert "damaged" in (record.problem or "")
