"""A feature that is not used costs nothing: the commands that plain jobs cause, and the bytes that they leave.

The numbers below are those of a queue on which no option is used. A new feature must not raise them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from tests.support.internals import perform
from windlass import Queue, RawJob
from windlass.storage.formats import MAX_ITEMS
from windlass.storage.native.keys import queue_key
from windlass.storage.port import LeaseRequest, Turn
from windlass.values.outcome import Completed

JOBS = 20
PLAIN_COMMANDS = (7, 18, 18)  # enqueue, lease, settle: of one call each, however many jobs


def commands_of(client: redis.Redis, action: Callable[[], Any]) -> dict[str, int]:
    """The commands that an action causes, those inside scripts too, without those that count them."""
    client.config_resetstat()
    action()
    stats: Any = client.info("commandstats")
    return {
        name: stat["calls"]
        for name, stat in ((name.removeprefix("cmdstat_"), stat) for name, stat in stats.items())
        if name not in ("info", "config|resetstat")
    }


def lease(queue: Queue) -> Turn:
    return perform(queue, lambda layout: layout.turn((), LeaseRequest(want=JOBS, seconds=60)))


def settle(queue: Queue, turn: Turn) -> Turn:
    return perform(queue, lambda layout: layout.turn([Completed(each) for each in turn.leases]))


def run_a_round(client: redis.Redis, queue: Queue, jobs: list[bytes] | list[RawJob]) -> tuple[int, int, int]:
    """Enqueue, lease and settle some jobs. Returns the number of commands of each step."""
    queue.enqueue_many([b"first"])  # the scripts are loaded, and the state is there
    settle(queue, lease(queue))
    enqueue = commands_of(client, lambda: queue.enqueue_many(jobs))
    turns: list[Turn] = []
    leasing = commands_of(client, lambda: turns.append(lease(queue)))
    assert len(turns[0].leases) == JOBS
    settling = commands_of(client, lambda: settle(queue, turns[0]))
    return sum(enqueue.values()), sum(leasing.values()), sum(settling.values())


def test_plain_jobs_cause_no_command_for_what_they_do_not_use(client: redis.Redis, raw_queue: Queue) -> None:
    assert run_a_round(client, raw_queue, [b"job"] * JOBS) == PLAIN_COMMANDS


def test_tags_and_an_expiry_cost_one_command_to_read_and_none_more(client: redis.Redis, raw_queue: Queue) -> None:
    plain = run_a_round(client, raw_queue, [RawJob(b"job", priority=5, max_failures=3) for _ in range(JOBS)])
    tagged = run_a_round(
        client, raw_queue, [RawJob(b"job", max_failures=3, tags=["eu"], expires="1h") for _ in range(JOBS)]
    )
    assert tagged == plain


def test_plain_jobs_leave_no_byte_of_options(client: redis.Redis, raw_queue: Queue) -> None:
    raw_queue.enqueue_many([b"job"] * JOBS)
    assert not client.exists(queue_key(raw_queue.name, "meta"))
    raw_queue.enqueue(b"tagged", tags=["eu"])
    assert client.hlen(queue_key(raw_queue.name, "meta")) == 1


def test_many_expired_jobs_are_read_in_large_pieces(
    client: redis.Redis, raw_queue: Queue, later: Callable[[float], None]
) -> None:
    raw_queue.enqueue_many([RawJob(b"job", expires="1s") for _ in range(MAX_ITEMS)])
    later(2)
    turns: list[Turn] = []
    request = LeaseRequest(want=MAX_ITEMS, seconds=60)
    commands = commands_of(client, lambda: turns.append(perform(raw_queue, lambda layout: layout.turn((), request))))
    assert len(turns[0].expired) == MAX_ITEMS
    assert commands["zpopmin"] == 2


def test_expired_jobs_count_among_the_bytes_of_a_turn(
    client: redis.Redis, raw_queue: Queue, later: Callable[[float], None]
) -> None:
    large = b"x" * (1024 * 1024)
    raw_queue.enqueue_many([RawJob(large, expires="1s") for _ in range(20)])
    raw_queue.enqueue(b"last", id="last")
    later(2)
    turn = perform(raw_queue, lambda layout: layout.turn((), LeaseRequest(want=MAX_ITEMS, seconds=60)))
    assert turn.more
    assert 8 <= len(turn.expired) < 20
    lease_after = raw_queue.lease()
    assert lease_after is not None
    assert lease_after.id == "last"
