"""Giving back what a dead runner held: at once, in the old order, and charged to nobody but whose fault it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.app import Windlass
from windlass.storage.port import Layout
from windlass.transport import Flow, Session
from windlass.values.job import JobRecord, Lease
from windlass.values.outcome import Outcome

MOST = 500  # jobs in one step: each of these is settled by itself inside the script
Decide = Callable[[Lease, JobRecord], Outcome]


async def reclaim(app: Windlass, queue: str, holder: str, decide: Decide) -> list[Outcome]:
    """End every lease that a holder has on a queue, by the outcomes that `decide` gives; then forget the holder."""
    layout = app.layout(queue)
    return await app.arun(lambda session: _reclaim(session, layout, holder, decide))


def _reclaim(session: Session, layout: Layout, holder: str, decide: Decide) -> Flow[list[Outcome]]:
    found = yield from all_held(session, layout, holder)
    outcomes = [decide(lease_of(record), record) for record in found]
    for batch in _batches(outcomes):
        yield from session.perform(layout.turn(batch))
    yield from session.perform(layout.retire(holder))
    return outcomes


def all_held(session: Session, layout: Layout, holder: str) -> Flow[list[JobRecord]]:
    """Everything that a holder has on a queue."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = yield from session.perform(layout.held(holder, cursor, MOST))
        ours = [record for record in page.jobs if record.holder == holder]
        found += ours
        cursor = page.cursor
        if cursor is None or len(ours) < len(page.jobs):
            return found


def lease_of(record: JobRecord) -> Lease:
    """The lease that a leased job's record tells of."""
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
    )


def _batches(outcomes: list[Outcome]) -> Iterator[list[Outcome]]:
    for start in range(0, len(outcomes), MOST):
        yield outcomes[start : start + MOST]
