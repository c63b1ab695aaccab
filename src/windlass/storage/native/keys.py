"""The keys of a native queue: the only place where they are spelled.

Every key of queue `q` is `windlass:{q}:<name>`. The braces make the server hash the queue's name alone, so all
keys of one queue lie in one cluster slot and a script may touch any of them. The beginnings of the channels stand in
the scripts as well (wake, cancel, watching): script texts are constant.
"""

from __future__ import annotations

import re

PREFIX = "windlass"

# The order in which every script gets those that it names; there they are called by these names in capitals.
NAMES = (
    "state",  # hash    counters, clocks, pause flag, and the last operation of each caller
    "ready",  # zset    id → priority and sequence
    "scheduled",  # zset    sequence + id → run time in ms
    "leases",  # hash    id → fence, place to return to, holder
    "held",  # zset    holder, NUL, id; all scores 0, so it is read by range of names
    "holders",  # zset    holder → when its leases end, in ms of the queue's clock
    "data",  # hash    id → the payload as it was given
    "meta",  # hash    id → options and counters; absent while all are plain
    "blocked",  # hash    id → what waits behind a running job of the same id
    "progress",  # hash    id → 0 to 1
    "last_errors",  # hash    id → message of the last failure
    "dead",  # zset    id → time of death in µs
    "broken",  # zset    id → when it was found undecodable, in µs
    "dead_records",  # hash    id → why, and what the job was: of the dead and the broken
    "inbox",  # list    payloads pushed by hand, from any language
    "idle",  # zset    waiter → when its registration ends
    "parked",  # zset    task, NUL, id of jobs whose task nobody here knew; a hint, scores 0
    "outbox",  # zset    sequence + packed job for another queue → sequence
    "watched",  # zset    id → until when somebody wants to hear of it, in ms of the queue's clock
    "schedules",  # hash    name → what to enqueue, when, and how
    "ticks",  # zset    name → when it is due next, in ms
)


def queue_key(queue: str, name: str) -> str:
    """One key of a queue."""
    return f"{PREFIX}:{{{queue}}}:{name}"


def queue_keys(queue: str, names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """Keys of a queue: all, or those of these names."""
    return tuple(queue_key(queue, name) for name in names)


# A queue that is in use has a state, or an inbox that somebody pushed into. One pattern finds both, and little else.
ANY_QUEUE = f"{PREFIX}:{{*}}:[si][tn][ab][to][ex]"
_QUEUE = re.compile(rf"{PREFIX}:\{{([^{{}}]+)\}}:(?:state|inbox)")


def queue_of(key: bytes) -> str | None:
    """The queue that a key found by `ANY_QUEUE` belongs to, if it is one's."""
    found = _QUEUE.fullmatch(key.decode(errors="replace"))
    return found[1] if found else None


def presence_keys() -> tuple[str, str]:
    """When each worker was last heard of (zset, ms), and what it told (hash). No queue's name begins with a dot."""
    return f"{PREFIX}:{{.workers}}:seen", f"{PREFIX}:{{.workers}}:about"


def result_key(queue: str, id: str) -> str:
    """Where the result of a job is kept for a while, if it was asked for."""
    return f"{PREFIX}:{{{queue}}}:result:{id}"


def event_channel(queue: str, id: str) -> str:
    """Where those who watch a job hear of it."""
    return f"{PREFIX}:event:{queue}:{id}"


def wake_channel(waiter: str) -> str:
    """Where a waiter listens while it has nothing to do."""
    return f"{PREFIX}:wake:{waiter}"


def cancel_channel(holder: str) -> str:
    """Where a holder hears of its running jobs that were cancelled."""
    return f"{PREFIX}:cancel:{holder}"
