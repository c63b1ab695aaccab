"""Calls whose reply or request was lost: repeated, applied once, answered as the first time. Peers see one effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.compat.processor.conftest import QUEUE, Look
from tests.support.internals import perform_call
from tests.support.lost_replies import EACH_LOSS, SCRIPT_CALLS, Verb, lease_losing_the_reply, nothing
from tests.support.proxy import DROP_REPLY, FaultProxy, nth
from windlass import Cleaned, Lease, Queue, RawJob, Receipt, Status, Windlass
from windlass.storage.compat.processor import ProcessorLayout
from windlass.storage.port import Call


class Desk:
    """A queue behind a proxy, and what the service asks of its layout."""

    def __init__(self, app: Windlass) -> None:
        self.queue: Queue = app.queue(QUEUE, layout="processor")
        self.layout = cast(ProcessorLayout, app.layout(QUEUE, "processor"))
        self._app = app

    def do(self, call: Call[Any]) -> Any:
        return perform_call(self._app, call)

    def waiting(self) -> None:
        self.queue.enqueue(b"{}", id="a")

    def leased(self) -> Lease:
        self.waiting()
        lease = self.queue.lease(60)
        assert lease is not None
        return lease

    def idle(self) -> None:
        self.waiting()
        assert self.do(self.layout.hail("w", 0, busy=False))

    def dispatched(self) -> None:
        self.idle()
        assert self.do(self.layout.dispatch(["w"]))

    def accepted(self) -> None:
        self.dispatched()
        assert self.do(self.layout.accept("w", 0, "a", "now"))


@pytest.fixture
def desk(proxy: FaultProxy) -> Iterator[Desk]:
    with Windlass(proxy.url, retry_for=10) as app:
        desk = Desk(app)
        yield desk
        proxy.faults = None
        desk.queue.purge()


WAITS, RUNS, DONE = {"jobs_queued"}, {"jobs_processing", "jobs_progress"}, {"jobs_finished"}
SENT = {"jobs_dispatched"}

# Each verb: what was before, the call, its answer, and the keys of jobs that are there afterwards.
VERBS: dict[str, Verb[Desk, set[str]]] = {
    "enqueue": Verb(nothing, lambda d, _: d.queue.enqueue(b"{}", id="a"), Receipt("a", Status.ADDED), WAITS),
    "enqueue twice": Verb(Desk.waiting, lambda d, _: d.queue.enqueue(b"{}", id="a"), Receipt("a", Status.KEPT), WAITS),
    "complete": Verb(Desk.leased, lambda d, lease: d.queue.complete(lease), True, DONE),
    "release": Verb(Desk.leased, lambda d, lease: d.queue.release(lease), True, WAITS),
    "retry": Verb(Desk.leased, lambda d, lease: d.queue.retry(lease, delay=0), True, WAITS),
    "fail": Verb(Desk.leased, lambda d, lease: d.queue.fail(lease), True, DONE),
    "extend": Verb(Desk.leased, lambda d, lease: d.queue.extend(lease, 60), True, RUNS),
    "progress": Verb(Desk.leased, lambda d, lease: d.queue.progress(lease, 0.5), True, RUNS),
    "cancel": Verb(Desk.waiting, lambda d, _: d.queue.cancel("a"), True, set()),
    "purge": Verb(Desk.waiting, lambda d, _: d.queue.purge(), 1, set()),
    "clean": Verb(Desk.leased, lambda d, _: d.queue.clean(), Cleaned(0), RUNS),
    "idle": Verb(Desk.waiting, lambda d, _: d.do(d.layout.hail("w", 0, busy=False)), True, WAITS),
    "busy": Verb(Desk.accepted, lambda d, _: d.do(d.layout.hail("w", 0, busy=True, job="a")), True, RUNS),
    "dispatch": Verb(Desk.idle, lambda d, _: [j.id for j in d.do(d.layout.dispatch(["w"]))], ["a"], SENT),
    "accept": Verb(Desk.dispatched, lambda d, _: d.do(d.layout.accept("w", 0, "a", "now")), True, RUNS),
    "finish": Verb(Desk.accepted, lambda d, _: d.do(d.layout.finish("w", 0, "a", "now", b"{}")), True, DONE),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_answers_as_the_first(
    desk: Desk, proxy: FaultProxy, look: Look, verb: str, fault: Any
) -> None:
    VERBS[verb].survives(desk, proxy, fault)
    keys, seen = VERBS[verb].left or set(), look()
    assert {key for key in seen if key.startswith("jobs")} == keys
    assert len(seen.get("jobs_queued", [])) == len(keys & WAITS)


def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(desk: Desk, proxy: FaultProxy) -> None:
    desk.queue.enqueue_many([RawJob(b"{}", id=str(n), priority=n) for n in range(5)])
    for holder in (None, "w"):
        leases = lease_losing_the_reply(desk.queue, proxy, holder)
        assert [(lease.id, lease.priority) for lease in leases] == [("0", 0), ("1", 1)]
        assert desk.queue.counts().running == 2
        for lease in leases:
            assert desk.queue.release(lease)


def test_an_assignment_whose_reply_was_lost_is_not_another_one(desk: Desk, proxy: FaultProxy, look: Look) -> None:
    desk.queue.enqueue_many([RawJob(b"{}", id=str(n)) for n in range(5)])
    for worker in ("w1", "w2"):
        assert desk.do(desk.layout.hail(worker, 0, busy=False))
    proxy.faults = nth(DROP_REPLY, only=SCRIPT_CALLS)
    given = desk.do(desk.layout.dispatch(["w1", "w2", "w3"]))
    assert [(job.worker, job.id) for job in given] == [("w1", "0"), ("w2", "1")]
    assert set(look()["jobs_dispatched"]) == {"0", "1"}
    assert look()["workers_busy"] == {"w1", "w2"}
