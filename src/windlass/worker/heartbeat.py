"""One heartbeat of a holder on one queue: the flow of the supervisor and of the worker inside another program."""

from __future__ import annotations

from windlass.storage.port import Capability, Layout
from windlass.transport import Flow, Session
from windlass.worker.app_facts import QueueFacts
from windlass.worker.settings import BEATS_PER_LEASE, lease_on


def send_heartbeat(
    session: Session, layout: Layout, holder: str, lease: float, facts: QueueFacts, *, register: bool
) -> Flow[bool]:
    """Renew all leases of a holder, and take back the jobs that were parked for a task that this worker knows.

    Returns whether the server knew the holder, or has registered it now.
    """
    seconds = lease_on(layout, lease)
    failures = facts.failure_handler if Capability.FAILURE_HANDLERS in layout.can else None
    call = layout.beat(holder, seconds, register=register, failure_handler=failures)
    beat = yield from session.perform(call, None if register else seconds / BEATS_PER_LEASE)
    if beat.parked and facts.tasks:
        yield from session.perform(layout.unpark(facts.tasks))
    return beat.known or register
