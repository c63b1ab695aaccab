"""An idle queue of another system has no key of Windlass: their programs and suites find the server as they left it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from tests.contract.leasing import take
from tests.native.test_late_calls import Straggler
from tests.support.layouts import LAYOUTS, queue_on
from tests.support.proxy import FaultProxy
from tests.support.server import Server
from windlass import Queue, Windlass
from windlass.storage.formats import CALLER_TTL_MS

NAME = "idle"
Ours = Callable[[], list[str]]


@pytest.fixture(params=LAYOUTS)
def queue(app: Windlass, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of each layout."""
    queue = queue_on(app, request.param, NAME)
    yield queue
    queue.purge()


@pytest.fixture
def ours(client: redis.Redis) -> Ours:
    """The keys that Windlass made."""
    return lambda: sorted(key.decode() for key in cast(Any, client).keys("windlass:*"))


def test_a_lease_that_finds_nothing_leaves_no_key(queue: Queue, ours: Ours) -> None:
    assert queue.lease() is None
    assert queue.lease_many(5, holder="w") == []
    assert ours() == []


def test_a_wait_in_vain_leaves_no_key(queue: Queue, ours: Ours) -> None:
    assert queue.lease(wait=0.05) is None
    assert ours() == []


def test_a_clean_and_an_audit_leave_no_key(queue: Queue, ours: Ours) -> None:
    queue.clean()
    queue.audit()
    queue.audit(repair=True)
    queue.counts()
    queue.beat("nobody")
    assert ours() == []


def test_after_the_last_job_the_next_look_takes_the_last_key(queue: Queue, ours: Ours) -> None:
    """The program stays connected: only its last answer was still kept, in case the reply was lost."""
    queue.enqueue_many([b"1", b"2", b"3"])
    assert queue.complete(take(queue))
    assert queue.release(take(queue))
    assert queue.complete_many(queue.lease_many(2)) == [True, True]
    assert queue.lease() is None
    assert ours() == []


def test_a_program_that_ends_takes_the_last_key(queue: Queue, server: Server, ours: Ours) -> None:
    with Windlass(server.url) as other:
        again = queue_on(other, queue.layout, NAME)
        again.enqueue(b"1")
        assert again.complete(take(again))
    assert ours() == []


def test_an_answer_stays_while_its_request_may_still_arrive(
    queue: Queue, proxy: FaultProxy, client: redis.Redis
) -> None:
    """The request of this enqueue is late, and was repeated: when it arrives, its job is done."""
    with Windlass(proxy.url, retry_for=10) as other:
        again = queue_on(other, queue.layout, NAME)
        proxy.faults = straggler = Straggler()
        again.enqueue(b"1")
        assert again.complete(take(again))
        assert again.lease() is None
        with pytest.raises(redis.ResponseError, match="STALEOP"):
            straggler.arrive(client)
        assert queue.lease() is None, "it was done once, and is not queued again"
    state = f"windlass:{{{NAME}}}:{queue.layout}:state"
    assert 0 < client.pttl(state) <= CALLER_TTL_MS, "and for that the answer is kept some minutes"


def test_a_job_that_is_leased_keeps_the_ledger(queue: Queue, server: Server, ours: Ours) -> None:
    queue.enqueue(b"1")
    lease = take(queue)
    with Windlass(server.url) as other:
        assert queue_on(other, queue.layout, NAME).lease() is None
    assert ours(), "the lease and its fence"
    assert queue.complete(lease)
