"""An idle worker costs the server little, and still finds by itself what nobody told it of."""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest

from tests.support.server import Server
from tests.support.workers import Workshop, pass_time
from windlass import Windlass
from windlass.layouts.native.keys import queue_key
from windlass.worker.feed import ENOUGH_LOOKS, LONGEST_POLL, POLL_FLOOR, Feed

SOON = 2.5  # seconds: the poll floor, and a loaded machine


def begin_idle(shop: Workshop) -> None:
    """Start a worker, and let it look in vain."""
    shop.start("gated", queues={"gated": 1}, lease=30.0)
    pass_time(1.5)


def test_it_mostly_glances(server: Server, shop: Workshop) -> None:
    begin_idle(shop)
    with server.client() as client:
        client.config_resetstat()
        pass_time(3.0)
        stats: Any = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    print(f"\n{sum(calls.values()) / 3:.1f} commands a second, {calls['evalsha'] / 3:.1f} of them sent by the worker")
    assert calls["evalsha"] / 3 <= 2
    assert sum(calls.values()) / 3 <= 15


def test_a_job_that_was_pushed_by_hand_is_found(server: Server, shop: Workshop) -> None:
    begin_idle(shop)
    with server.client() as client:
        client.lpush(queue_key("gated", "inbox"), b'{"task": "loop_gate", "args": ["/"]}')
    shop.journal.wait(1, "end", timeout=SOON)
    shop.wait_empty("gated")


def test_a_lease_that_ends_earlier_than_it_knew_is_found(server: Server, shop: Workshop) -> None:
    with Windlass(server.url) as other:
        queue = other.queue("gated")
        id = shop.send("loop_gate", "/", queue="gated")
        lease = queue.lease(60)
        assert lease is not None
        begin_idle(shop)
        assert queue.extend(lease, 0.5)  # nobody is told of that
        shop.journal.wait(1, "start", id=id, timeout=0.5 + SOON)
        shop.wait_empty("gated")


@pytest.mark.parametrize(
    ("waiting", "at_most"),
    [(0, POLL_FLOOR), (ENOUGH_LOOKS, POLL_FLOOR), (3 * ENOUGH_LOOKS, 3 * POLL_FLOOR), (1000, LONGEST_POLL)],
)
async def test_the_more_wait_the_less_often_does_each_of_them_look(
    server: Server, waiting: int, at_most: float
) -> None:
    async with Windlass(server.url) as app:
        queue = app.queue("quiet")
        try:
            for number in range(waiting):
                look = app.layout("quiet").turn((), want=1, seconds=15.0, holder="w", waiter=f"waiter-{number}")
                await app.arun(lambda session, look=look: session.perform(look))  # type: ignore[misc]
            feed = Feed(app, "quiet", 1, frozenset({"loop"}), "w", 15.0)
            began = monotonic()
            await feed.turn(1)
            for _ in range(20):  # each time by chance, so that not all look at once
                assert not await feed.glance()
                assert POLL_FLOOR + (at_most - POLL_FLOOR) / 2 <= feed.next_look - began
                assert feed.next_look - monotonic() <= at_most
        finally:
            await queue.apurge()
