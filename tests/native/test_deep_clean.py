"""The deep clean: whatever a queue's keys have come to say, afterwards every job is in exactly one place.

Nothing in Windlass makes such a mess; people with redis-cli do, and restores of old backups. Each test makes
one kind of it, in the order of the header of lua/audit.lua, and looks at what the clean made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.queue_clock import read_core
from tests.support.repairing import repaired
from windlass import Cleaned, Counts, Queue, RawJob, State
from windlass.storage.native.keys import NAMES, queue_key

Later = Callable[[float], None]
NOTHING = Counts(0, 0, 0, 0, 0)


class Keys:
    """The keys of the queue under test, by name."""

    def __init__(self, queue: Queue, client: redis.Redis) -> None:
        self._queue = queue
        self._client = client

    def __getattr__(self, name: str) -> str:
        assert name in NAMES
        return queue_key(self._queue.name, name)

    def held_member(self, id: str) -> bytes:
        """The entry of a leased job in the index of its holder."""
        found = [bytes(member) for member, _ in self._client.zscan_iter(self.held)]
        (member,) = [member for member in found if member.endswith(b"\0" + id.encode())]
        return member

    def dump(self, *without: str) -> dict[str, object]:
        """All keys, byte for byte."""
        return {name: self._client.dump(getattr(self, name)) for name in NAMES if name not in without}


@pytest.fixture
def keys(raw_queue: Queue, client: redis.Redis) -> Keys:
    return Keys(raw_queue, client)


def mend(queue: Queue, *, mended: int = 1, recovered: int = 0) -> None:
    """A light clean does not see it, a deep one mends it, and a second finds nothing."""
    assert queue.clean() == Cleaned(0)
    assert repaired(queue) == (recovered, mended)
    assert repaired(queue) == (0, 0)


# -- data: a job in no index -----------------------------------------------------------------------


@pytest.mark.serves("R5")
def test_a_job_in_no_index_is_ready_again(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"lost", id="lost", priority=2, max_failures=4)
    queue.enqueue(b"other", id="other", priority=1)
    assert client.zrem(keys.ready, "lost") == 1
    assert queue.get("lost") is None
    assert queue.counts().waiting == 1
    mend(queue)
    lease, found = queue.lease_many(2)
    assert lease.id == "other"
    assert (found.id, found.data, found.priority, found.limits.max_failures) == ("lost", b"lost", 2, 4)


@pytest.mark.serves("R5")
@pytest.mark.parametrize("index", ["scheduled", "leases"])
def test_so_is_one_that_was_scheduled_or_leased(queue: Queue, client: redis.Redis, keys: Keys, index: str) -> None:
    if index == "scheduled":
        queue.enqueue(b"lost", id="lost", delay=60)
    else:
        queue.enqueue(b"lost", id="lost")
        take(queue, holder="worker-1")
        client.delete(keys.held)
    client.delete(getattr(keys, index))
    mend(queue)
    assert take(queue).data == b"lost"
    assert queue.lease() is None


def test_thousands_in_no_index_are_found(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    ids = {receipt.id for receipt in queue.enqueue_many([b""] * 3000)}
    client.delete(keys.ready)
    mend(queue, mended=3000)
    assert set(drain(queue)) == ids


# -- ready and scheduled: entries with no job ------------------------------------------------------


@pytest.mark.serves("R5")
def test_a_ready_entry_with_no_job_is_dropped(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="real")
    client.zadd(keys.ready, {"ghost": 1})
    mend(queue)
    assert queue.counts().ready == 1
    assert drain(queue) == ["real"]


@pytest.mark.serves("R3")
def test_a_lease_passes_over_an_entry_with_no_job(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="real")
    client.zadd(keys.ready, {"ghost-1": 1, "ghost-2": 2})
    assert take(queue).id == "real"
    assert queue.counts().ready == 0


@pytest.mark.serves("R5", "W5")
def test_a_leased_job_that_is_ready_too_is_not_given_out_twice(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    client.zadd(keys.ready, {"a": 1})
    mend(queue)
    assert queue.lease() is None
    assert queue.complete(lease)
    assert queue.counts() == NOTHING


@pytest.mark.serves("R5")
def test_a_scheduled_entry_with_no_job_is_dropped(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    client.zadd(keys.scheduled, {struct.pack(">Q", 1) + b"ghost": 2**45})
    mend(queue)
    assert queue.counts() == NOTHING


@pytest.mark.serves("R5", "Q8")
def test_a_stale_scheduled_entry_is_dropped_and_the_true_one_kept(
    queue: Queue, client: redis.Redis, keys: Keys, later: Later
) -> None:
    queue.enqueue(b"", id="a", delay=60)
    client.zadd(keys.scheduled, {struct.pack(">Q", 2**40) + b"a": 2**45})
    mend(queue)
    assert queue.counts().scheduled == 1
    later(61)
    assert drain(queue) == ["a"]


def test_a_ready_job_that_is_scheduled_too_stays_ready(
    queue: Queue, client: redis.Redis, keys: Keys, later: Later
) -> None:
    queue.enqueue(b"", id="a", delay=60)
    client.zadd(keys.ready, {"a": 1})
    mend(queue)
    assert (queue.counts().ready, queue.counts().scheduled) == (1, 0)
    assert drain(queue) == ["a"]
    later(61)
    assert queue.lease() is None


# -- leases and held -------------------------------------------------------------------------------


@pytest.mark.serves("R5", "Q11")
def test_a_lease_on_no_job_is_dropped_and_what_waits_behind_it_runs(
    queue: Queue, client: redis.Redis, keys: Keys
) -> None:
    queue.enqueue(b"first", id="a")
    lease = take(queue)
    queue.enqueue(b"second", id="a")
    client.hdel(keys.data, "a")
    mend(queue)
    assert not queue.complete(lease)
    assert take(queue).data == b"second"
    assert queue.counts().running == 1


@pytest.mark.serves("R5", "W3")
def test_a_lease_that_no_holder_holds_returns_to_the_front(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    for id in ("0a", "0b"):
        queue.enqueue(b"", id=id, priority=0)
    queue.enqueue(b"", id="5a")
    lease = take(queue, holder="worker-1")
    client.zrem(keys.held, keys.held_member("0a"))
    mend(queue)
    assert not queue.complete(lease)
    assert drain(queue) == ["0a", "0b", "5a"]


@pytest.mark.serves("R5")
def test_a_lease_that_is_not_ours_returns_to_the_front(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="a")
    take(queue, holder="worker-1")
    client.hset(keys.leases, "a", "scribble")
    assert queue.audit(repair=True).repaired >= 1
    assert repaired(queue) == (0, 0)
    assert drain(queue) == ["a"]


@pytest.mark.serves("R5")
def test_a_held_entry_with_no_lease_is_dropped(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue, holder="worker-1")
    client.zadd(keys.held, {b"worker-1\0ghost": 0, b"worker-2\0a": 0, b"scribble": 0})
    mend(queue, mended=3)
    assert queue.complete(lease)


@pytest.mark.serves("R5", "W14")
def test_jobs_of_a_holder_that_is_not_known_come_back(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    ids = [queue.enqueue(b"").id for _ in range(3)]
    queue.lease_many(2, holder="worker-1")
    client.zrem(keys.holders, "worker-1")
    assert repaired(queue) == (2, 1)
    assert [(lease.id, lease.stalls) for lease in queue.lease_many(5)] == [(ids[0], 1), (ids[1], 1), (ids[2], 0)]


# -- blocked ---------------------------------------------------------------------------------------


@pytest.mark.serves("R5", "Q11")
def test_a_successor_of_nothing_becomes_a_job(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"first", id="a")
    take(queue)
    queue.enqueue(b"second", id="a", priority=3)
    client.delete(keys.data, keys.leases, keys.held, keys.holders)
    mend(queue)
    lease = take(queue)
    assert (lease.data, lease.priority) == (b"second", 3)
    assert queue.counts().blocked == 0


@pytest.mark.serves("R5", "Q11")
@pytest.mark.parametrize("delay", [None, 60])
def test_a_successor_of_a_job_that_waits_is_merged_into_it(
    queue: Queue, client: redis.Redis, keys: Keys, delay: float | None
) -> None:
    queue.enqueue(b"first", id="a")
    take(queue)
    queue.enqueue(b"second", id="a", priority=3, update_data=False, update_run_at=False)
    blocked = client.hget(keys.blocked, "a")
    assert blocked is not None
    queue.purge()
    queue.enqueue(b"waiting", id="a", delay=delay)
    client.hset(keys.blocked, "a", blocked)
    mend(queue)
    job = queue.get("a")
    assert job is not None
    assert (job.data, job.priority) == (b"waiting", 3)
    assert job.state is (State.SCHEDULED if delay else State.READY)
    assert queue.counts().waiting == 1


# -- what belongs to nothing -----------------------------------------------------------------------


@pytest.mark.serves("R5")
@pytest.mark.parametrize("name", ["meta", "progress", "last_errors", "dead_records"])
def test_records_of_no_job_are_dropped(queue: Queue, client: redis.Redis, keys: Keys, name: str) -> None:
    queue.enqueue(b"", id="a", max_failures=3)
    assert queue.retry(take(queue), delay=0, message="note")
    lease = take(queue)
    assert queue.progress(lease, 0.5)
    before = keys.dump("state")
    client.hset(getattr(keys, name), "ghost", "x")
    mend(queue)
    assert keys.dump("state") == before
    assert queue.complete(lease)


@pytest.mark.serves("R5")
def test_a_dead_entry_with_no_grave_is_dropped(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="a")
    assert queue.fail(take(queue))
    client.zadd(keys.dead, {"ghost": 1})
    mend(queue)
    assert [job.id for job in queue.jobs("dead").jobs] == ["a"]


@pytest.mark.serves("R5", "W4")
def test_callers_and_waiters_of_long_ago_are_dropped(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"")
    clock = read_core(client, queue.name).clock
    client.hset(
        keys.state, mapping={"caller:old": f"7 {clock - 601_000} 1 a", "caller:young": f"7 {clock - 500_000} 1 a"}
    )
    client.zadd(keys.idle, {"old": clock - 1, "young": clock + 30_000})
    mend(queue, mended=2)
    assert client.hexists(keys.state, "caller:young")
    assert client.zrange(keys.idle, 0, -1) == [b"young"]
    client.zrem(keys.idle, "young")


def test_a_caller_record_that_is_not_ours_does_not_stop_a_clean(queue: Queue, client: redis.Redis, keys: Keys) -> None:
    queue.enqueue(b"", id="a")
    client.hset(keys.state, "caller:scribble", "not a record")
    client.zadd(keys.ready, {"ghost": 1})
    assert queue.audit(repair=True).repaired >= 1
    assert drain(queue) == ["a"]


# -- beside the living -----------------------------------------------------------------------------


@pytest.mark.serves("R5")
def test_a_light_clean_touches_expired_leases_only(queue: Queue, client: redis.Redis, keys: Keys, later: Later) -> None:
    queue.enqueue(b"", id="expired", priority=0)
    take(queue, seconds=10)
    queue.enqueue(b"", id="held", priority=0)
    take(queue, seconds=1000)
    queue.enqueue_many([RawJob(b"", id="ready"), RawJob(b"", id="late", delay=5000), RawJob(b"", id="lost")])
    client.zrem(keys.ready, "lost")
    client.zadd(keys.ready, {"ghost": 2**60})
    client.hset(keys.last_errors, "ghost", "x")
    client.hset(keys.dead_records, "ghost", "x")
    later(11)
    same = ("scheduled", "data", "blocked", "progress", "last_errors", "dead", "dead_records", "inbox", "idle")
    before = {name: client.dump(getattr(keys, name)) for name in same}
    assert queue.clean() == Cleaned(recovered=1)
    assert {name: client.dump(getattr(keys, name)) for name in same} == before
    assert [member for member, _ in client.zscan_iter(keys.ready)] == [b"expired", b"ready", b"ghost"]
    assert client.hkeys(keys.leases) == [b"held"]


@pytest.mark.serves("R5", "W5", "W2")
def test_a_deep_clean_beside_live_workers_mends_and_disturbs_nobody(
    raw_queue: Queue, client: redis.Redis, keys: Keys
) -> None:
    jobs = [f"job-{number}" for number in range(600)]
    lost = jobs[::40]
    raw_queue.enqueue_many(RawJob(b"", id=id) for id in jobs)

    def work(_: int) -> list[str]:
        done: list[str] = []
        while leases := raw_queue.lease_many(5, seconds=60):
            assert raw_queue.complete_many(leases) == [True] * len(leases)
            done += [lease.id for lease in leases]
        return done

    assert client.zrem(keys.ready, *lost) == len(lost)
    client.zadd(keys.ready, {f"ghost-{number}": 2**50 + number for number in range(20)})
    with ThreadPoolExecutor(5) as pool:
        cleaning = [pool.submit(repaired, raw_queue) for _ in range(3)]
        done = [id for part in pool.map(work, range(2)) for id in part]
        cleaned = [each.result() for each in cleaning]
    done += work(0)  # what was mended after the workers had gone
    assert sorted(done) == sorted(jobs), "each once"
    assert sum(recovered for recovered, _ in cleaned) == 0
    assert sum(mended for _, mended in cleaned) >= len(lost)
    assert repaired(raw_queue) == (0, 0)
    assert raw_queue.counts() == NOTHING


def test_a_clean_goes_on_past_more_entries_without_a_lease_than_one_turn_looks_at(
    raw_queue: Queue, client: redis.Redis, keys: Keys, later: Later
) -> None:
    raw_queue.enqueue(b"", id="z")
    take(raw_queue, seconds=10, holder="w")
    client.zadd(keys.held, {f"w\0gone-{number:04}": 0 for number in range(2500)})
    later(11)
    assert raw_queue.clean() == Cleaned(recovered=1)
    assert (client.exists(keys.held), drain(raw_queue)) == (0, ["z"])
