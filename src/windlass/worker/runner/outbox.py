"""Forwards jobs from queue to queue. A completed job can hand over jobs; those for other queues wait in an outbox.

Any number of workers may forward the same outbox at the same time: the sequence number of a parcel is its operation id
at the target queue, so each parcel arrives once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from windlass.errors import WindlassError
from windlass.storage.port import Layout, Parcel
from windlass.transport import Flow, Session

MAX_PARCELS = 100  # in one round trip: payloads may be large, and an outbox is usually short


def empty_outbox(session: Session, source: Layout, find: Callable[[str], Layout]) -> Flow[int]:
    """Send all jobs in the outbox of a queue, and return how many were sent.

    If a target queue fails, the others still get their jobs, and its error is raised at the end.
    """
    sent: list[int] = []
    seen = total = 0
    problems: dict[str, WindlassError] = {}
    while True:
        parcels: list[Parcel] = yield from session.perform(source.outbox(MAX_PARCELS, sent, seen))
        if not parcels:
            break
        sent, seen = [], parcels[-1].seq
        sendable = [parcel for parcel in parcels if parcel.queue not in problems]
        sendable.sort(key=lambda parcel: parcel.queue)  # stable: keeps the order within each queue
        for queue, group in groupby(sendable, key=lambda parcel: parcel.queue):
            own = list(group)
            try:
                total += yield from session.perform(find(queue).forward(source.queue, own))
            except WindlassError as error:
                problems[queue] = error
            else:
                sent += [parcel.seq for parcel in own]
    for problem in problems.values():
        raise problem
    return total
