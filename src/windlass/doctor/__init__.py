"""Whether a server can be trusted with jobs: `windlass doctor`, and what a worker refuses at its start.

`facts.py` reads what the server says of itself, `checks.py` judges it, `holes.py` is the table of known holes. In a
cluster every primary is examined, with Sentinel the primary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from windlass.doctor.checks import CHECKS, PERILS, Check
from windlass.doctor.facts import Facts, look, may_read_queues, read_briefly
from windlass.doctor.finding import GRAVITY, Finding, Level, danger
from windlass.transport.endpoint import Address
from windlass.transport.session import Session
from windlass.transport.wire import Flow

__all__ = ["GRAVITY", "Facts", "Finding", "Level", "can_read_queues", "examine", "perils"]


def examine(session: Session) -> Flow[list[Finding]]:
    """Look at everything on every server; each finding names its own."""
    seen = yield from session.examine(partial(look, session.endpoint))
    found: list[Finding] = []
    for address, facts in seen.items():
        if facts is None:
            silent = danger("reach", "it cannot be reached: its queues stand still", "start it, or look at the network")
            found.append(msgspec.structs.replace(silent, server=str(address)))
        else:
            found += _judge(facts, CHECKS)
    return found


def can_read_queues(session: Session) -> Flow[bool]:
    """Whether this user may list the queues and count their jobs, on every server that can be reached."""
    seen = yield from session.examine(may_read_queues)
    return False not in seen.values()


def perils(address: Address) -> Callable[[Session], Flow[list[Finding]]]:
    """What means that jobs are lost on a server, or that none can be worked on, as far as this user may see it."""

    def flow(session: Session) -> Flow[list[Finding]]:
        facts = yield from session.visit(address, partial(read_briefly, session.endpoint))
        return [finding for finding in _judge(facts, PERILS) if finding.level == "danger"]

    return flow


def _judge(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    found = [finding for check in checks for finding in check(facts)]
    return [msgspec.structs.replace(finding, server=facts.server) for finding in found]
