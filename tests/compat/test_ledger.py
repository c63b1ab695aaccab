"""What the ledger adds to every layout: suspects, holders, and what outlives the one who looked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.contract.leasing import take
from tests.support.cluster import Cluster
from tests.support.internals import perform, settle
from tests.support.layouts import LAYOUTS, pass_time, queue_on
from tests.support.server import Server
from windlass import Lease, Page, Queue, Windlass
from windlass.errors import UnsupportedByLayout
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Call, Layout
from windlass.storage.port import Capability as C
from windlass.values.outcome import Completed, Crashed, Released, Retried

NAME = "ledger"


@pytest.fixture(params=LAYOUTS)
def queue(app: Windlass, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue of each layout."""
    queue = queue_on(app, request.param, NAME)
    yield queue
    queue.purge()


def _held(layout: Layout, after: str | None) -> Call[Page]:
    return layout.held("w", after, 10)


def leases_of(queue: Queue, count: int, **how: Any) -> list[Lease]:
    queue.enqueue_many(b"%d" % number for number in range(count))
    leases = queue.lease_many(count, **how)
    assert len(leases) == count
    return leases


def test_suspects_are_charged_nothing_and_run_alone_next(queue: Queue) -> None:
    leases = leases_of(queue, 5, holder="w")
    assert settle(queue, *(Crashed(lease, "its process died", is_cause=False) for lease in leases)) == (True,) * 5
    again = queue.lease_many(5, holder="w")
    assert sorted(lease.data for lease in again) == sorted(lease.data for lease in leases)
    assert {(lease.suspect, lease.stalls, lease.failures) for lease in again} == {(True, 0, 0)}
    # One that comes to an end by itself is none any more, however it ends.
    assert settle(queue, *(Retried(lease, ("in", 0)) for lease in again)) == (True,) * 5
    assert not any(lease.suspect for lease in queue.lease_many(5, holder="w"))


def test_a_job_that_surely_crashed_its_process_runs_alone_next(queue: Queue) -> None:
    (lease,) = leases_of(queue, 1, holder="w")
    assert settle(queue, Crashed(lease, "it died", is_cause=True)) == (True,)
    again = take(queue, holder="w")
    assert again.suspect
    assert settle(queue, Released(again)) == (True,)
    assert take(queue, holder="w").suspect, "given back, it is one still"


def test_one_that_crashes_all_the_time_does_not_keep_the_others_waiting(queue: Queue) -> None:
    queue.enqueue_many([b"poison", b"one", b"two"])
    done = set()
    for _ in range(6):
        lease = queue.lease()
        if lease is None:
            break
        poison = lease.data == b"poison"
        assert settle(queue, Crashed(lease, "it died", is_cause=True) if poison else Completed(lease)) == (True,)
        done |= {lease.data} - {b"poison"}
    assert done == {b"one", b"two"}


def test_a_lease_of_a_named_holder_lasts_as_long_as_the_holder(queue: Queue, client: redis.Redis) -> None:
    queue.beat("w", 60, register=True)
    (lease,) = leases_of(queue, 1, seconds=0.2, holder="w")
    pass_time(client, queue.layout, NAME, 2.5)
    assert queue.lease() is None
    assert queue.extend(lease, 0.2)
    pass_time(client, queue.layout, NAME, 2.5)
    assert queue.lease() is None
    assert queue.complete(lease)


def test_what_a_holder_has_is_told_in_pages(queue: Queue) -> None:
    leases = leases_of(queue, 25, holder="w")
    queue.enqueue(b"another's")
    take(queue, holder="w2")
    found = [perform(queue, lambda layout: layout.held("w", None, 10))]
    for _ in range(2):
        after = found[-1].cursor
        found.append(perform(queue, partial(_held, after=after)))
    assert [record.fence for page in found for record in page.jobs] == [lease.fence for lease in leases]
    assert [bool(page.cursor) for page in found] == [True, True, False]


def test_who_waited_in_vain_takes_no_notes_along(queue: Queue, server: Server, client: redis.Redis) -> None:
    (lease,) = leases_of(queue, 1)
    key = f"windlass:{{{NAME}}}:{queue.layout}:state"
    client.hdel(key, "swept")
    with Windlass(server.url) as looker:
        assert queue_on(looker, queue.layout, NAME).lease(wait=0.05) is None
        assert client.hget(key, "swept"), "when the queue was swept last"
    assert client.hget(key, "swept")
    assert queue.complete(lease)


def test_options_that_it_cannot_honour_are_refused(queue: Queue) -> None:
    if queue.layout != "queasy":
        with pytest.raises(UnsupportedByLayout):
            queue.enqueue(b"", id="a", update_data=False)
        with pytest.raises(UnsupportedByLayout):
            queue.enqueue(b"", id="a", if_exists="update")
    needs = {"scheduled": C.RUN_TIME, "blocked": C.SINGLETON, "dead": C.DEAD, "broken": C.BROKEN}
    for state, capability in needs.items():
        if capability in CAPABILITIES[queue.layout]:
            assert queue.purge(state) == 0
        else:
            with pytest.raises(UnsupportedByLayout, match=f"purge {state} jobs"):
                queue.purge(state)


def test_a_cluster_is_refused_by_those_whose_keys_lie_in_many_slots() -> None:
    with Cluster() as cluster, Windlass(cluster.url, retry_for=2) as app:
        for layout in LAYOUTS:
            queue = queue_on(app, layout, NAME)
            if layout == "queasy":
                queue.enqueue(b"")
                queue.purge()
            else:
                with pytest.raises(UnsupportedByLayout, match="use the layout native or queasy"):
                    queue.enqueue(b"")
