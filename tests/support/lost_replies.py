"""Calls whose request or reply is lost on the way: the tests that every layout shares.

A layout brings a table of its verbs, and what it wants to see on the server afterwards.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from tests.support.proxy import CUT_REQUEST, DROP_REPLY, DROP_REQUEST, Fault, FaultProxy, nth, random_faults
from windlass import Lease, Queue, Status, Windlass

T = TypeVar("T")
Left = TypeVar("Left")

SCRIPT_CALLS = {"EVALSHA"}

EACH_LOSS = pytest.mark.parametrize(
    "fault", [DROP_REPLY, DROP_REQUEST, CUT_REQUEST], ids=["reply lost", "request lost", "request cut"]
)


@dataclass(frozen=True)
class Verb(Generic[T, Left]):
    """A call: what is done before it, the call itself, its answer, and what is left after it."""

    prepare: Callable[[T], Any]
    act: Callable[[T, Any], Any]
    answer: Any
    left: Left | None = None

    def survives(self, target: T, proxy: FaultProxy, fault: Fault) -> None:
        """The call meets the fault once, is repeated, and answers as if nothing had happened."""
        prepared = self.prepare(target)
        proxy.faults = nth(fault, only=SCRIPT_CALLS)
        assert self.act(target, prepared) == self.answer
        assert sum(proxy.counts[kind] for kind in ("drop_reply", "drop_request", "cut_request")) == 1


def nothing(_: object) -> None:
    """What is done before a call that needs nothing."""


@contextmanager
def queue_behind(proxy: FaultProxy, name: str, layout: str = "native") -> Iterator[Queue]:
    """A queue whose calls go through the proxy; purged in the end, without faults."""
    with Windlass(proxy.url, retry_for=30) as app:
        queue = app.queue(name, layout=layout)
        yield queue
        proxy.faults = None
        queue.purge()


def lease_losing_the_reply(queue: Queue, proxy: FaultProxy, holder: str | None = None) -> list[Lease]:
    """Two leases from a call whose first reply was lost."""
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    leases = queue.lease_many(2, 60, holder=holder)
    proxy.faults = None
    return leases


def live_with_losses(queue: Any, proxy: FaultProxy, operations: int, seed: int, *, charges: bool = True) -> None:
    """Add, retry, release and complete jobs at random, while 1 % of the replies and 1 % of the requests are lost.

    Each job is added once and completed once. If the layout `charges` failures, each retry is one.
    """
    proxy.faults = random_faults(seed, drop_reply=0.01, drop_request=0.005, cut_request=0.005, only=SCRIPT_CALLS)
    chance = random.Random(seed)
    added: set[str] = set()
    done: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    count = 0
    while count < operations or len(done) < len(added):
        count += 1
        if count < operations and chance.random() < 0.4:
            receipt = queue.enqueue(b"%d" % count, id=f"job-{count}")
            assert receipt.status is Status.ADDED
            added.add(receipt.id)
            continue
        for lease in queue.lease_many(chance.randint(1, 3), 600):
            count += 1
            assert lease.failures == failures[lease.id] * charges, "a failure was charged twice, or not at all"
            match chance.choices(("complete", "retry", "release"), (8, 1, 1)):
                case ["complete"]:
                    assert queue.complete(lease)
                    done[lease.id] += 1
                case ["retry"]:
                    assert queue.retry(lease, delay=0)
                    failures[lease.id] += 1
                case _:
                    assert queue.release(lease)
    assert set(done) == added
    assert set(done.values()) == {1}
    assert queue.counts().waiting == queue.counts().running == 0
    assert proxy.counts["drop_reply"] > operations // 400
