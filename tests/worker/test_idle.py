"""An idle worker costs the server little, and still finds by itself what nobody told it of."""

from __future__ import annotations

from typing import Any

from tests.support.server import Server
from tests.support.workers import Workshop, pass_time
from windlass import Windlass
from windlass.layouts.native.keys import queue_key

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
