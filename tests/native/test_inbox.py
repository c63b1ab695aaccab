"""Any program that can push to a list creates jobs: `LPUSH windlass:{queue}:inbox …` and no library at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Counts, Lease, Limits, Queue, RawJob, State, Windlass
from windlass.errors import InvalidOption, UnsupportedByLayout
from windlass.storage.native.keys import queue_key


def inbox(queue: Queue) -> str:
    return queue_key(queue.name, "inbox")


def test_the_key_is_the_one_that_is_documented(queue: Queue) -> None:
    assert inbox(queue) == f"windlass:{{{queue.name}}}:inbox"


@pytest.mark.serves("H6")
def test_a_plain_push_becomes_a_job(queue: Queue, server: Server, client: redis.Redis) -> None:
    server.command("LPUSH", inbox(queue), '{"user": 42}')
    assert queue.counts() == Counts(0, 0, 0, 0, 0, inbox=1)
    lease = take(queue)
    assert lease.data == b'{"user": 42}'
    assert (lease.priority, lease.failures, lease.stalls, lease.limits) == (5, 0, 0, Limits())
    assert lease.id
    job = queue.get(lease.id)
    assert job is not None
    assert (job.state, job.data) == (State.RUNNING, b'{"user": 42}')
    assert queue.complete(lease)
    assert queue.counts() == Counts(0, 0, 0, 0, 0)


@pytest.mark.serves("H6", "W6")
@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), b"x" * 1024 * 1024], ids=len)
def test_what_is_pushed_is_the_payload_byte_for_byte(queue: Queue, client: redis.Redis, data: bytes) -> None:
    client.lpush(inbox(queue), data)
    assert take(queue).data == data


@pytest.mark.serves("H6", "W8")
def test_pushed_at_the_head_and_taken_from_the_tail(queue: Queue, client: redis.Redis) -> None:
    client.lpush(inbox(queue), "1", "2", "3")
    client.lpush(inbox(queue), "4")
    assert [lease.data for lease in queue.lease_many(10)] == [b"1", b"2", b"3", b"4"]


def test_pushed_jobs_queue_up_with_the_others(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"first")
    client.lpush(inbox(queue), "pushed")
    queue.enqueue(b"urgent", priority=0)
    queue.enqueue(b"idle", priority=9)
    assert [lease.data for lease in queue.lease_many(10)] == [b"urgent", b"first", b"pushed", b"idle"]


def test_every_pushed_job_has_an_id_of_its_own(queue: Queue, client: redis.Redis) -> None:
    queue.enqueue_many(RawJob(b"named", id=f"inbox-{number}", priority=9) for number in range(11, 41))
    client.lpush(inbox(queue), *["pushed"] * 5)  # somebody has used such names before
    leases = queue.lease_many(50)
    assert [lease.data for lease in leases] == [b"pushed"] * 5 + [b"named"] * 30
    assert len({lease.id for lease in leases}) == 35


@pytest.mark.serves("H6")
def test_pushed_jobs_live_like_others(queue: Queue, client: redis.Redis) -> None:
    client.lpush(inbox(queue), "a")
    lease = take(queue)
    assert queue.retry(lease, delay=0, message="once more")
    again = take(queue)
    assert (again.id, again.failures) == (lease.id, 1)
    assert queue.fail(again, "no")
    job = queue.get(lease.id)
    assert job is not None
    assert (job.state, job.data) == (State.DEAD, b"a")


def test_thousands_may_be_pushed(queue: Queue, client: redis.Redis) -> None:
    client.lpush(inbox(queue), *range(1050))
    came = [int(lease.data) for lease in _all(queue)]
    assert came == list(range(1050))
    assert not client.exists(inbox(queue))


def test_a_pushed_job_is_taken_in_once(raw_queue: Queue, client: redis.Redis) -> None:
    client.lpush(inbox(raw_queue), *range(500))
    with ThreadPoolExecutor(8) as pool:
        came = [int(lease.data) for part in pool.map(lambda _: _all(raw_queue), range(8)) for lease in part]
    assert sorted(came) == list(range(500))


def test_a_clean_takes_pushed_jobs_in(queue: Queue, client: redis.Redis) -> None:
    client.lpush(inbox(queue), "a")
    queue.clean()
    counts = queue.counts()
    assert (counts.ready, counts.inbox) == (1, 0)


def test_a_paused_queue_keeps_what_is_pushed(queue: Queue, client: redis.Redis) -> None:
    queue.pause()
    client.lpush(inbox(queue), "a")
    assert queue.lease() is None
    assert queue.counts().waiting == 1
    queue.resume()
    assert drain(queue) != []


@pytest.mark.serves("H6", "W7")
def test_a_waiter_finds_a_pushed_job_within_the_poll_floor(queue: Queue, client: redis.Redis) -> None:
    # Nobody announces it: redis-cli knows nothing of waiters.
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.lease(wait=FOREVER_S)))
    waiter.start()
    wait_until(lambda: client.zcard(queue_key(queue.name, "idle")), "the waiter to be idle")
    client.lpush(inbox(queue), "a")
    waiter.join(LIMIT_S)
    assert [lease and lease.data for lease in got] == [b"a"]


def _all(queue: Queue) -> list[Lease]:
    leases: list[Lease] = []
    while part := queue.lease_many(100):
        leases += part
    return leases


@pytest.mark.serves("R2", "H6")
def test_a_push_can_be_part_of_a_callers_own_transaction(raw_queue: Queue, client: redis.Redis) -> None:
    """Any write of the caller's in the same slot, and the job: both or neither."""
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set(f"order:{{{raw_queue.name}}}", b"paid")
        assert raw_queue.enqueue_in(pipeline, b"ship it") is None
        pipeline.execute()
    lease = raw_queue.lease()
    assert lease is not None
    assert lease.data == b"ship it"
    client.delete(f"order:{{{raw_queue.name}}}")


def test_a_pipeline_that_cannot_carry_a_job_is_refused(raw_queue: Queue, client: redis.Redis, server: Server) -> None:
    with pytest.raises(InvalidOption, match="Leave out id, or use enqueue"):
        raw_queue.enqueue_in(client.pipeline(), b"1", id="a")
    with (
        Windlass(server.url, signing_keys={"k": b"k" * 32}) as sealed,
        pytest.raises(UnsupportedByLayout, match="signs or encrypts its jobs"),
    ):
        sealed.queue(raw_queue.name).enqueue_in(client.pipeline(), b"1")
    with Windlass(server.url) as app:
        for layout in ("worqr", "queasy", "hworker", "processor"):
            with pytest.raises(UnsupportedByLayout, match=f"{layout}.*own pipeline.*native or workqueue"):
                app.queue("pipes", layout=layout).enqueue_in(client.pipeline(), b"{}")
