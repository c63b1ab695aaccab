"""The keys of a native queue: the only place that spells them.

Every key of queue `q` is `windlass:{q}:<name>`. The braces make the server hash only the queue's name, so all keys of a
queue are in one cluster slot and a script may use any of them.
"""

from __future__ import annotations

import re

PREFIX = "windlass"

# Every script gets the keys that it names in this order. A script writes the names in capitals.
NAMES = (
    "state",  # hash    counters, clocks, pause flag, and the last operation of each caller
    "ready",  # zset    id → priority and sequence
    "scheduled",  # zset    sequence + id → run time in ms
    "leases",  # hash    id → fence, place to return to, holder
    "held",  # zset    holder, NUL, id; all scores 0, so the jobs of a holder are a range of names
    "holders",  # zset    holder → when its leases end, in ms of the queue's clock
    "data",  # hash    id → the payload and its checksum
    "meta",  # hash    id → options and counters; absent while all are plain
    "blocked",  # hash    id → the change that waits behind a running job of the same id
    "progress",  # hash    id → 0 to 1
    "last_errors",  # hash    id → message of the last failure
    "dead",  # zset    id → time of death in µs
    "broken",  # zset    id → when it was found undecodable, in µs
    "dead_records",  # hash    id → reason, counters, message, payload of a dead or broken job
    "inbox",  # list    payloads pushed by hand, from any language
    "idle",  # zset    waiter → when its registration ends
    "parked",  # zset    task, NUL, id of jobs whose task no worker here knows; a hint, scores 0
    "outbox",  # zset    sequence + packed job for another queue → sequence
    "watched",  # zset    id → until when its events are published, in ms of the queue's clock
    "schedules",  # hash    name → counts of its ticks, and its record
    "ticks",  # zset    name → time of the next tick, in ms
)


def queue_key(queue: str, name: str) -> str:
    """One key of a queue."""
    return f"{PREFIX}:{{{queue}}}:{name}"


def queue_keys(queue: str, names: tuple[str, ...] = NAMES) -> tuple[str, ...]:
    """All keys of a queue, or the keys with these names."""
    return tuple(queue_key(queue, name) for name in names)


# A queue in use has a state, or an inbox with pushed payloads. One pattern finds both, and few other
# keys: its brackets match the five letters of `state` and of `inbox`, one by one.
ANY_QUEUE = f"{PREFIX}:{{*}}:[si][tn][ab][to][ex]"
_QUEUE = re.compile(rf"{PREFIX}:\{{([^{{}}]+)\}}:(?:state|inbox)")


def queue_of(key: bytes) -> str | None:
    """The queue of a key found by `ANY_QUEUE`; None for any other key."""
    found = _QUEUE.fullmatch(key.decode(errors="replace"))
    return found[1] if found else None


def presence_keys() -> tuple[str, str]:
    """Last heartbeat of each worker (zset, ms), and its description (hash). No queue's name begins with a dot."""
    return f"{PREFIX}:{{.workers}}:seen", f"{PREFIX}:{{.workers}}:about"


def result_key(queue: str, id: str) -> str:
    """The key of a job's result, if `keep_result` asked for one."""
    return f"{PREFIX}:{{{queue}}}:result:{id}"


# The scripts name these in capitals, like keys.
CHANNEL_PREFIXES = {
    "WAKE_CHANNEL": f"{PREFIX}:wake:",
    "CANCEL_CHANNEL": f"{PREFIX}:cancel:",
    "EVENT_CHANNEL": f"{PREFIX}:event:",
    "PARKED_CHANNEL": f"{PREFIX}:parked:",
}


def event_channel(queue: str, id: str) -> str:
    """The channel with the events of a watched job."""
    return f"{CHANNEL_PREFIXES['EVENT_CHANNEL']}{queue}:{id}"


def parked_channel(queue: str) -> str:
    """The channel with the tasks of the jobs that workers park."""
    return CHANNEL_PREFIXES["PARKED_CHANNEL"] + queue


def wake_channel(waiter: str) -> str:
    """The channel on which an idle waiter is woken."""
    return CHANNEL_PREFIXES["WAKE_CHANNEL"] + waiter


def cancel_channel(holder: str) -> str:
    """The channel with the cancelled running jobs of a holder."""
    return CHANNEL_PREFIXES["CANCEL_CHANNEL"] + holder
