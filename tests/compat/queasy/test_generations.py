"""A queue of a newer Queasy (0.3 and later), which has other keys: every verb refuses it and touches nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import redis

from tests.compat.queasy.conftest import NAME
from tests.contract.leasing import take
from tests.support.internals import perform
from windlass import Lease, Limits, Queue, State, Windlass
from windlass.errors import KeyConflict
from windlass.storage.port import LeaseRequest
from windlass.values.outcome import Completed

KEY = f"{{{NAME}}}"
SOON = 4102444800000


def _waiting(client: redis.Redis) -> None:
    """A job that waits, and one that is blocked behind a running one with its id."""
    client.hset(f"{KEY}:waiting_job:a", mapping={"id": "a", "data": "1", "retry_count": 0, "stall_count": 0})
    client.zadd(KEY, {"a": SOON})


def _running(client: redis.Redis) -> None:
    """Nothing waits, and a client runs a job: the sorted set of the queue does not exist then."""
    client.hset(f"{KEY}:active_job:b", mapping={"id": "b", "data": "2", "retry_count": 1, "stall_count": 0})
    client.sadd(f"{KEY}:checkouts:client-1", "b")
    client.zadd(f"{KEY}:expiry", {"client-1": SOON})


def _failed(client: redis.Redis) -> None:
    """A job for a failure handler waits, and nothing else is there."""
    client.hset(f"{KEY}-fail:waiting_job:f", mapping={"id": "f", "data": '["a",1,{}]', "retry_count": 0})
    client.zadd(f"{KEY}-fail", {"f": 0})


def _failure_running(client: redis.Redis) -> None:
    client.hset(f"{KEY}-fail:active_job:f", mapping={"id": "f", "data": '["a",1,{}]', "retry_count": 0})
    client.sadd(f"{KEY}-fail:checkouts:client-1", "f")
    client.zadd(f"{KEY}-fail:expiry", {"client-1": SOON})


LEASE = Lease(NAME, "a", b"1", 7, 5, 0, 0, Limits(), None)
VERBS: dict[str, Callable[[Queue], object]] = {
    "enqueue": lambda queue: queue.enqueue(b"1", id="a"),
    "update": lambda queue: queue.update("a", delay=5),
    "lease": lambda queue: queue.lease(),
    "lease for a worker": lambda queue: perform(
        queue, lambda layout: layout.turn((), LeaseRequest(want=1, seconds=9, holder="w"))
    ),
    "complete": lambda queue: queue.complete(LEASE),
    "settle": lambda queue: perform(queue, lambda layout: layout.turn([Completed(LEASE)])),
    "extend": lambda queue: queue.extend(LEASE, 9),
    "beat": lambda queue: perform(queue, lambda layout: layout.beat("w", 10, register=True, failure_handler=Limits())),
    "held": lambda queue: perform(queue, lambda layout: layout.held("w", None, 10)),
    "cancel": lambda queue: queue.cancel("a"),
    "purge": lambda queue: queue.purge(),
    "clean": lambda queue: queue.clean(),
    "audit": lambda queue: queue.audit(),
    "repair": lambda queue: queue.audit(repair=True),
    "counts": lambda queue: queue.counts(),
    "get": lambda queue: queue.get("a"),
    "jobs": lambda queue: queue.jobs(State.READY),
}


def _stored(client: redis.Redis) -> dict[bytes, tuple[Any, ...]]:
    keys = sorted(cast(Any, client).keys("*"))
    return {key: (client.dump(key), client.pttl(key) >= 0) for key in keys}


@pytest.mark.parametrize("fill", [_waiting, _running, _failed, _failure_running])
@pytest.mark.parametrize("verb", VERBS)
def test_a_queue_of_a_newer_release_is_refused_and_not_touched(
    app: Windlass, client: redis.Redis, verb: str, fill: Callable[[redis.Redis], None]
) -> None:
    fill(client)
    before = _stored(client)
    queue = app.queue(NAME, layout="queasy")
    with pytest.raises(KeyConflict, match=r"newer release of Queasy.*\{emails\}:waiting.*another queue name") as raised:
        VERBS[verb](queue)
    keys = {
        "_waiting": KEY,
        "_running": f"{KEY}:expiry",
        "_failed": f"{KEY}-fail",
        "_failure_running": f"{KEY}-fail:expiry",
    }
    assert f" {keys[fill.__name__]} " in str(raised.value), "it names the key that it has found"
    assert _stored(client) == before
    client.delete(*before)


def test_a_newer_release_that_comes_later_is_seen_too(app: Windlass, client: redis.Redis) -> None:
    """Our jobs stay where they are, and go on when the queue of the other one is gone."""
    queue = app.queue(NAME, layout="queasy")
    queue.enqueue(b"1", id="ours")
    queue.enqueue(b"1", id="runs")
    leases = queue.lease_many(1, 600)
    _waiting(client)
    before = _stored(client)
    for verb in (lambda: queue.complete(leases[0]), queue.counts, lambda: queue.audit(repair=True)):
        with pytest.raises(KeyConflict, match="newer release of Queasy"):
            verb()
    assert _stored(client) == before
    client.delete(KEY, f"{KEY}:waiting_job:a")
    assert queue.complete(leases[0])
    assert queue.complete(take(queue))
    assert queue.counts().waiting == 0


def test_looking_for_a_newer_release_costs_one_command(app: Windlass, client: redis.Redis) -> None:
    queue = app.queue(NAME, layout="queasy")
    queue.counts()
    client.config_resetstat()
    queue.counts()
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_exists"]["calls"] == 1
