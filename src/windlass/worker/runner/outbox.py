"""Jobs on their way from one queue to another: what finished jobs handed over is sent from the outbox to its queue.

Whoever finds something in an outbox may send it, several at once too: the sequence of a parcel is its operation id
at the other queue, so it arrives once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from windlass.errors import WindlassError
from windlass.storage.port import Layout, Parcel
from windlass.transport import Flow, Session

MOST = 100


def empty_outbox(session: Session, source: Layout, find: Callable[[str], Layout]) -> Flow[int]:
    """Send everything that waits in the outbox of a queue; how many jobs that were.

    A queue that cannot be reached, or is damaged, does not keep the others from theirs; its error is raised in the end.
    """
    sent: list[int] = []
    seen = total = 0
    problems: dict[str, WindlassError] = {}
    while True:
        parcels: list[Parcel] = yield from session.perform(source.outbox(MOST, sent, seen))
        if not parcels:
            break
        sent, seen = [], parcels[-1].seq
        ours = [parcel for parcel in parcels if parcel.queue not in problems]
        ours.sort(key=lambda parcel: parcel.queue)  # stable: in order within each queue
        for queue, group in groupby(ours, key=lambda parcel: parcel.queue):
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
