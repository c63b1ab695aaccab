"""Keys of another kind, odd members and odd names: a clear error or none at all, and nothing written by halves."""

from __future__ import annotations

import pytest
import redis

from tests.compat.worqr.conftest import NAME, contents, members
from tests.contract.leasing import take
from windlass import Queue, State, Windlass
from windlass.errors import InvalidId, InvalidName, InvalidPayload, KeyConflict


@pytest.mark.parametrize(
    "key",
    [
        "worqr:queues:tubes",
        "worqr:workingProcesses:tubes",
        "worqr:workers",
        "worqr:expiringWorkers",
        "worqr:permanentWorkers",
    ],
)
def test_a_key_of_another_kind_is_named_and_nothing_is_written(client: redis.Redis, app: Windlass, key: str) -> None:
    queue = app.queue(NAME, layout="worqr")
    client.hset(key, "field", "value")
    for act in (
        lambda: queue.enqueue(b"T0"),
        lambda: queue.lease(),
        lambda: queue.beat("w1", register=True),
        lambda: queue.cancel("T0", running=True),
        lambda: queue.audit(repair=True),
        lambda: queue.counts(),
        lambda: queue.jobs(State.RUNNING),
        lambda: queue.get("T0"),
        lambda: queue.purge(),
    ):
        with pytest.raises(KeyConflict, match=key):
            act()
    assert client.keys("worqr:*") == [key.encode()]
    client.delete(key)


def test_a_process_that_is_no_list_is_nobodys(client: redis.Redis, queue: Queue) -> None:
    queue.enqueue_many([b"T0", b"T1"])
    lease = take(queue, holder="w1")
    (process,) = members(client, "worqr:workingProcesses:tubes")
    key = f"worqr:processes:{process}"
    client.delete(key)
    client.set(key, "odd")
    assert not queue.complete(lease)
    assert not queue.release(lease)
    assert queue.jobs(State.RUNNING).jobs == ()
    assert queue.get("T0") is None
    client.delete("worqr:workerTimers:w1")
    assert queue.clean().recovered == 0
    assert queue.audit(repair=True).recovered == 0
    assert client.get(key) == b"odd"
    client.delete(key)
    assert queue.complete(take(queue))


def test_members_that_lead_nowhere_are_harmless(client: redis.Redis, queue: Queue) -> None:
    client.sadd("worqr:workers", "ghost", "", "*", "a b\n")
    client.sadd("worqr:workingProcesses:tubes", "", "tubes_", "no process")
    queue.enqueue(b"T0")
    lease = take(queue, holder="w1")
    assert queue.clean().recovered == 0
    assert contents(client)["worqr:workers"] == {"w1"}, "they have failed"
    assert queue.cancel("T0", running=True)
    assert [job.data for job in queue.jobs(State.RUNNING).jobs] == [b"T0"]
    assert queue.complete(lease)
    assert queue.audit(repair=True).repaired == 3


@pytest.mark.parametrize("name", ["", "a b", "{a}", "a\n", "x" * 129, 5])
def test_a_queue_must_have_a_name_that_can_be_one(app: Windlass, name: str) -> None:
    with pytest.raises(InvalidName):
        app.queue(name, layout="worqr")


def test_tasks_are_bytes_and_ids_are_text(queue: Queue) -> None:
    with pytest.raises(InvalidPayload):
        queue.enqueue("T0")  # type: ignore[arg-type]
    for id in ("", "x" * 513, b"T0"):
        with pytest.raises(InvalidId):
            queue.cancel(id)  # type: ignore[arg-type]
    assert not queue.cancel("x" * 512, running=True)
    assert not queue.cancel("\0", running=True)
    assert queue.get("sha1:") is None
