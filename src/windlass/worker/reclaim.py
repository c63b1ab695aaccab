"""Reclaims the jobs of a dead runner: at once, in their old order, charging only the job at fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.app import Windlass
from windlass.storage.port import Layout
from windlass.transport import Flow, Session
from windlass.values.job import JobRecord, Lease
from windlass.values.outcome import Outcome

MAX_BATCH = 500  # jobs in one script call: the script settles them one by one and must stay within milliseconds
Decide = Callable[[Lease, JobRecord], Outcome]


async def reclaim(app: Windlass, queue: str, holder: str, decide: Decide) -> list[Outcome]:
    """Settle every lease of a holder on a queue with the outcome that `decide` returns, then forget the holder."""
    layout = app.layout(queue)
    return await app._flows.arun(lambda session: _reclaim(session, layout, holder, decide))


def _reclaim(session: Session, layout: Layout, holder: str, decide: Decide) -> Flow[list[Outcome]]:
    found = yield from all_held(session, layout, holder)
    outcomes = [decide(lease_of(record), record) for record in found]
    for batch in _batches(outcomes):
        yield from session.perform(layout.turn(batch))
    yield from session.perform(layout.unregister_holder(holder))
    return outcomes


def all_held(session: Session, layout: Layout, holder: str) -> Flow[list[JobRecord]]:
    """Return all jobs that a holder has leased on a queue."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = yield from session.perform(layout.held(holder, cursor, MAX_BATCH))
        held = [record for record in page.jobs if record.holder == holder]
        found += held
        cursor = page.cursor
        if cursor is None or len(held) < len(page.jobs):
            return found


def lease_of(record: JobRecord) -> Lease:
    """Build the lease from the record of a leased job."""
    assert record.fence is not None
    return Lease(
        record.queue,
        record.id,
        record.data,
        record.fence,
        record.priority,
        record.failures,
        record.stalls,
        record.limits,
        record.holder,
        record.marks,
        record.extras,
    )


def _batches(outcomes: list[Outcome]) -> Iterator[list[Outcome]]:
    for start in range(0, len(outcomes), MAX_BATCH):
        yield outcomes[start : start + MAX_BATCH]
