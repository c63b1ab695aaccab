"""The event log of a run: every process logs its actions and the answers it gets, outside the server under test.

Each process appends length-prefixed records to a file of its own, one `write` for each (`O_APPEND`), so a `kill -9`
of the process neither loses nor tears a record. The server's answers fix the order: `epoch` and `step` of an
answer order all steps of a queue, across processes, and `now` is the queue's own clock (ms). Times `t`
are `CLOCK_MONOTONIC` in nanoseconds, common to all processes of the machine. They serve to measure latencies,
overlaps and faults, never to order steps.

A call is logged before it is sent (`Sent`) and when it is answered. A call without an answer was applied once or not
at all: its process died, or gave up in doubt.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any
from zlib import crc32

import msgspec

_LENGTH = struct.Struct("<I")
_MAX_RECORD_BYTES = 1 << 28


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One event. `t` is when it was written."""

    t: int


class Began(Record, frozen=True, tag="began"):
    """A process begins: its role ("producer", "runner", "supervisor", "child", "driver"), and a runner's holder name.

    `wall` is its wall clock at `t`, in ms since 1970 (0: not logged), which relates run times to real time even if the
    server's clock was changed.
    """

    pid: int
    role: str
    holder: str = ""
    wall: int = 0


class Ended(Record, frozen=True, tag="ended"):
    """A process is dead, as its parent or the driver saw."""

    pid: int
    how: str  # "exit 0", "signal 9"


class Sent(Record, frozen=True, tag="sent"):
    """A call is about to be sent: its number within this file, and its arguments."""

    call: int
    queue: str
    enqueues: tuple[EnqueueAsked, ...] = ()
    settles: tuple[SettleAsked, ...] = ()
    cancels: tuple[str, ...] = ()
    want: int = 0
    holder: str = ""
    handed: tuple[Handed, ...] = ()  # jobs for other queues, sent through the outbox


class EnqueueAsked(msgspec.Struct, frozen=True, array_like=True):
    """One job of an enqueue. `run_at` in ms since 1970 (0: now), `delay` in ms; `check` is `digest(payload)`."""

    job: str
    check: int
    priority: int = 5
    run_at: int = 0
    delay: int = 0
    max_failures: int = 10
    max_stalls: int = 3
    singleton: bool = False  # the id may be enqueued again; `check` tells its generations apart


class SettleAsked(msgspec.Struct, frozen=True, array_like=True):
    """One outcome: "completed", "released", "retried", "snoozed", "failed", "crashed", "broken", "unknown" or
    "unhandled".

    `delay` (ms) is that of a retry, a snooze or a crash; 0: immediately.
    """

    job: str
    fence: int
    outcome: str
    delay: int = 0
    alone: bool = True  # for a crash: this job certainly caused it, and is charged


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """A job for another queue, from a finished one: it must arrive if the finished job's outcome was accepted."""

    parent: str
    queue: str
    asked: EnqueueAsked


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One lease in an answer, with the counts stored in the job."""

    job: str
    fence: int
    check: int
    priority: int
    failures: int
    stalls: int
    caught: bool = False  # a failure job for a failure handler


class Answered(Record, frozen=True, tag="answered"):
    """The answer to a call of this file.

    `statuses` of the enqueues, `settled` of the outcomes, `cancelled` of the cancels, each in the order of `Sent`.
    """

    call: int
    queue: str
    epoch: int
    step: int
    now: int
    statuses: str = ""  # one letter each: a added, u updated, k kept, b blocked, m missing
    level: str = ""  # the durability in the receipts
    settled: tuple[bool, ...] = ()
    returned: tuple[int, ...] = ()  # fences of broken jobs that were released because the queue is full of them
    cancelled: tuple[bool, ...] = ()
    claims: tuple[Claim, ...] = ()
    recovered: int = 0  # jobs that this step reclaimed from lost holders
    holder: str = ""
    lease: int = 0  # ms: this holder's leases are valid until now + lease
    wall: int = 0  # the server's wall clock for run times (`due`), ms since 1970


class Refused(Record, frozen=True, tag="refused"):
    """A call was given up. `in_doubt`: it may have been applied; otherwise it certainly was not."""

    call: int
    why: str
    in_doubt: bool


class Beaten(Record, frozen=True, tag="beaten"):
    """A heartbeat was answered. `known` is false if the holder has lost all leases."""

    queue: str
    holder: str
    epoch: int
    step: int
    now: int
    lease: int
    known: bool


class Extended(Record, frozen=True, tag="extended"):
    """An extension (or progress) of one lease was answered."""

    queue: str
    job: str
    fence: int
    kept: bool
    epoch: int
    step: int
    now: int
    lease: int


class Started(Record, frozen=True, tag="started"):
    """User code began to run a job, under this fence, in this process."""

    pid: int
    queue: str
    job: str
    fence: int
    check: int
    attempt: int


class Finished(Record, frozen=True, tag="finished"):
    """User code ended: "ok", "raised", "stopped"."""

    pid: int
    queue: str
    job: str
    fence: int
    how: str


class Fault(Record, frozen=True, tag="fault"):
    """The nemesis began or ended a fault: kill, stop, partition, clock …; `pids` are the processes hit (0: the server).

    A fault without pids hits every process. Its name gives the kind: "kill …", "stop …", "partition …", "… clock …"; a
    name with "server" in it means the server, whatever the pids.
    """

    name: str
    begins: bool
    pids: tuple[int, ...] = ()
    detail: str = ""


class Rewound(Record, frozen=True, tag="rewound"):
    """The server lost state: "flushed", "restored", "failover", or "killed" below fsync.

    Steps acknowledged after `since` (monotonic ns) may be gone, and (epoch, step) start over. The record is written
    while the server is down, or right after a flush, so later calls are answered from the remaining state.
    """

    how: str
    since: int


class Healed(Record, frozen=True, tag="healed"):
    """All faults have ended; from here on every queue must drain."""


class Left(Record, frozen=True, tag="left"):
    """A job on the server at the end: its state ("ready" … "dead", "broken"), its counts, why it is dead."""

    queue: str
    job: str
    state: str
    failures: int
    stalls: int
    reason: str
    check: int


class Inspected(Record, frozen=True, tag="inspected"):
    """One queue at the end of a run: counts, number of audit findings, remaining keys, seconds it took to drain."""

    queue: str
    drained: bool
    drained_after: float
    problems: int
    keys: int
    counts: dict[str, int]


Any_ = (
    Began
    | Ended
    | Sent
    | Answered
    | Refused
    | Beaten
    | Extended
    | Started
    | Finished
    | Fault
    | Rewound
    | Healed
    | Left
    | Inspected
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Any_).decode


def digest(payload: bytes) -> int:
    """A short checksum of a payload, to detect changes."""
    return crc32(payload)


class LogWriter:
    """The log file of one process. A forked process opens its own: two processes never share a file."""

    def __init__(self, folder: Path, role: str, holder: str = "") -> None:
        self._pid = os.getpid()
        path = folder / f"{role}-{self._pid}-{monotonic_ns()}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.calls = 0
        self.write(Began(monotonic_ns(), self._pid, role, holder, time_ns() // 1_000_000))

    @property
    def ours(self) -> bool:
        """Whether this process opened the file, not its parent."""
        return self._pid == os.getpid()

    def next_call(self) -> int:
        """The next call number."""
        self.calls += 1
        return self.calls

    def write(self, record: Record) -> None:
        """Append one record, whole."""
        body = _encode(record)
        os.write(self._file, _LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_log(path: Path) -> Iterator[Any]:
    """All records of one file, in write order. A torn record at the end is an error: appends cannot tear."""
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            assert length < _MAX_RECORD_BYTES, f"{path} is not a log file"
            body = file.read(length)
            assert len(body) == length, f"{path} ends in the middle of a record"
            yield _decode(body)
