"""Checks whether a server is safe for jobs: `windlass doctor`, and the checks that a worker makes before it starts.

`facts.py` reads the server's settings and state, `checks.py` judges them, `known_bugs.py` lists known server bugs. In a
cluster every primary is examined; with Sentinel, the current primary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from windlass.doctor.checks import CHECKS, WORKER_CHECKS, Check
from windlass.doctor.facts import Facts, look, may_read_queues, read_briefly
from windlass.doctor.finding import SEVERITY, Finding, Level, danger
from windlass.transport.endpoint import Address
from windlass.transport.io_steps import Flow
from windlass.transport.session import Session

__all__ = ["SEVERITY", "Facts", "Finding", "Level", "can_read_queues", "dangers", "examine"]


def examine(session: Session, namespace: str = "") -> Flow[list[Finding]]:
    """Run all checks on every server. Each finding names its server."""
    seen = yield from session.examine(partial(look, session.endpoint, namespace))
    found: list[Finding] = []
    for address, facts in seen.items():
        if facts is None:
            down = danger("reach", "it cannot be reached, so its queues stand still", "start it, or check the network")
            found.append(msgspec.structs.replace(down, server=str(address)))
        else:
            found += _judge(facts, CHECKS)
    return found


def can_read_queues(session: Session, namespace: str = "") -> Flow[bool]:
    """Whether this user may list the queues and count their jobs, on every server that can be reached."""
    seen = yield from session.examine(partial(may_read_queues, namespace))
    return False not in seen.values()


def dangers(address: Address) -> Callable[[Session], Flow[list[Finding]]]:
    """The findings that make a worker refuse a server: jobs may be lost there, or none can run."""

    def flow(session: Session) -> Flow[list[Finding]]:
        facts = yield from session.visit(address, partial(read_briefly, session.endpoint))
        return [finding for finding in _judge(facts, WORKER_CHECKS) if finding.level == "danger"]

    return flow


def _judge(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    found = [finding for check in checks for finding in check(facts)]
    return [msgspec.structs.replace(finding, server=facts.server) for finding in found]
