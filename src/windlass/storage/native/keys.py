"""The keys of a native queue: the only place that spells them.

Every key of queue `q` is `windlass:{q}:<name>`; in the namespace `shop` it is `windlass/shop:{q}:<name>`. The braces
make the server hash only the queue's name, so all keys of a queue are in one cluster slot and a script may use any of
them.
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
    "ended",  # zset    id → how a job ended that did not complete, and when this is forgotten
)


def prefix(namespace: str = "") -> str:
    """The beginning of all keys and channels of a namespace. Names have no slash, so no key belongs to two."""
    return f"{PREFIX}/{namespace}:" if namespace else f"{PREFIX}:"


def queue_key(queue: str, name: str, namespace: str = "") -> str:
    """One key of a queue."""
    return f"{prefix(namespace)}{{{queue}}}:{name}"


def queue_keys(queue: str, names: tuple[str, ...] = NAMES, namespace: str = "") -> tuple[str, ...]:
    """All keys of a queue, or the keys with these names."""
    return tuple(queue_key(queue, name, namespace) for name in names)


def any_queue(namespace: str = "") -> str:
    """A pattern for the keys of all queues.

    A queue in use has a state, or an inbox with pushed payloads. One pattern finds both, and few other keys: its
    brackets match the five letters of `state` and of `inbox`, one by one.
    """
    return f"{prefix(namespace)}{{*}}:[si][tn][ab][to][ex]"


_QUEUE = re.compile(rf"{PREFIX}(?:/[^:{{}}]+)?:\{{([^{{}}]+)\}}:(?:state|inbox)")


def queue_of(key: bytes) -> str | None:
    """The queue of a key found by `any_queue`; None for any other key."""
    found = _QUEUE.fullmatch(key.decode(errors="replace"))
    return found[1] if found else None


def presence_keys(namespace: str = "") -> tuple[str, str]:
    """Last heartbeat of each worker (zset, ms), and its description (hash). No queue's name begins with a dot."""
    return queue_key(".workers", "seen", namespace), queue_key(".workers", "about", namespace)


def result_key(queue: str, id: str, namespace: str = "") -> str:
    """The key of a job's result, if `keep_result` asked for one."""
    return queue_key(queue, f"result:{id}", namespace)


# The scripts name these in capitals, like keys: `PARKED_CHANNEL` is the channel's beginning in the queue's namespace.
CHANNELS = {"WAKE_CHANNEL": "wake", "CANCEL_CHANNEL": "cancel", "EVENT_CHANNEL": "event", "PARKED_CHANNEL": "parked"}


def channel_in_lua(kind: str) -> str:
    """The Lua expression for a channel's beginning. The first key of every script is a key of the queue."""
    return f"(string.match(KEYS[1], '^[^{{]*') .. '{kind}:')"


def event_channel(queue: str, id: str, namespace: str = "") -> str:
    """The channel with the events of a watched job."""
    return f"{prefix(namespace)}event:{queue}:{id}"


def parked_channel(queue: str, namespace: str = "") -> str:
    """The channel with the tasks of the jobs that workers park."""
    return f"{prefix(namespace)}parked:{queue}"


def wake_channel(waiter: str, namespace: str = "") -> str:
    """The channel on which an idle waiter is woken."""
    return f"{prefix(namespace)}wake:{waiter}"


def cancel_channel(holder: str, namespace: str = "") -> str:
    """The channel with the cancelled running jobs of a holder."""
    return f"{prefix(namespace)}cancel:{holder}"
