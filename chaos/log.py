"""The event log of a run: what every process did and heard, written outside the server that is under test.

Each process appends length-prefixed records to a file of its own, one `write` for each (`O_APPEND`), so a `kill -9`
of the process loses none of them and tears none. What the server did is told by its own words: `epoch` and `step` of
the answer put all steps of a queue in order, whoever made them, and `now` is the queue's own clock (ms). Times `t`
are `CLOCK_MONOTONIC` in nanoseconds, common to all processes of the machine; they serve latencies, overlaps and
faults, never the order of steps.

A call is noted before it is sent (`Sent`) and when it is answered. A call without an answer may have been applied or
not, never both: its process died, or gave up in doubt.
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
_MOST = 1 << 28


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One event. `t` is when it was written."""

    t: int


class Began(Record, frozen=True, tag="began"):
    """A process begins: its role ("producer", "runner", "supervisor", "child", "driver"), for a runner its holder's
    name.

    `wall` is what its clock showed at `t`, in ms since 1970 (0: not noted): so run times can be compared with real
    time, whatever was done to the server's clock.
    """

    pid: int
    role: str
    holder: str = ""
    wall: int = 0


class Ended(Record, frozen=True, tag="ended"):
    """A process is known to be dead, as its parent or the driver saw it."""

    pid: int
    how: str  # "exit 0", "signal 9"


class Sent(Record, frozen=True, tag="sent"):
    """A call is about to be sent: its number within this file, and what it asks for."""

    call: int
    queue: str
    enqueues: tuple[EnqueueAsked, ...] = ()
    settles: tuple[SettleAsked, ...] = ()
    cancels: tuple[str, ...] = ()
    want: int = 0
    holder: str = ""
    handed: tuple[Handed, ...] = ()  # for other queues, by way of the outbox


class EnqueueAsked(msgspec.Struct, frozen=True, array_like=True):
    """One job of an enqueue. `run_at` in ms since 1970 (0: now), `delay` in ms; `check` is `digest(payload)`."""

    job: str
    check: int
    priority: int = 5
    run_at: int = 0
    delay: int = 0
    max_failures: int = 10
    max_stalls: int = 3
    singleton: bool = False  # others may enqueue the same id again: its generations are told apart by `check`


class SettleAsked(msgspec.Struct, frozen=True, array_like=True):
    """One outcome: "completed", "released", "retried", "failed", "crashed", "broken", "unknown", "unhandled".

    `delay` (ms) is that of a retry; 0: at once.
    """

    job: str
    fence: int
    outcome: str
    delay: int = 0
    alone: bool = True  # of a crash: it was certainly this job's, and is charged


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """A job for another queue, from a finished one: it must arrive there if that one's outcome was accepted."""

    parent: str
    queue: str
    asked: EnqueueAsked


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One lease that an answer brought; counts as they are stored with the job."""

    job: str
    fence: int
    check: int
    priority: int
    failures: int
    stalls: int
    caught: bool = False  # not the job itself but its failure, for a failure handler


class Answered(Record, frozen=True, tag="answered"):
    """The answer to a call of this file.

    `statuses` of its enqueues, `settled` of its outcomes, `cancelled` of its cancels, each in the order of `Sent`.
    """

    call: int
    queue: str
    epoch: int
    step: int
    now: int
    statuses: str = ""  # a letter each: a added, u updated, k kept, b blocked, m missing
    level: str = ""  # the durability that the receipts state
    settled: tuple[bool, ...] = ()
    returned: tuple[int, ...] = ()  # fences of broken jobs that were released, because the queue keeps enough of them
    cancelled: tuple[bool, ...] = ()
    claims: tuple[Claim, ...] = ()
    recovered: int = 0  # jobs that this step took back from lost holders
    holder: str = ""
    lease: int = 0  # ms: whoever holds under this name is safe until now + lease
    wall: int = 0  # the server's wall clock for run times (`due`), ms since 1970


class Refused(Record, frozen=True, tag="refused"):
    """A call that was given up: `in_doubt` it may have been applied, else it certainly was not."""

    call: int
    why: str
    in_doubt: bool


class Beaten(Record, frozen=True, tag="beaten"):
    """A heartbeat was answered; `known` false: the holder has lost everything."""

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
    """User code came to its end: "ok", "raised", "stopped"."""

    pid: int
    queue: str
    job: str
    fence: int
    how: str


class Fault(Record, frozen=True, tag="fault"):
    """The nemesis began or ended something: kill, stop, partition, clock …; `pids` that it concerns (0: the server).

    Without any pid it concerns everybody. Names tell the kind: "kill …", "stop …", "partition …", "… clock …"; what
    has "server" in its name concerns the server, whatever its pids are.
    """

    name: str
    begins: bool
    pids: tuple[int, ...] = ()
    detail: str = ""


class Rewound(Record, frozen=True, tag="rewound"):
    """The server was made to forget: "flushed", "restored", "failover", or "killed" below fsync.

    What was acknowledged after `since` (monotonic ns) may be gone, and (epoch, step) begin again. It is noted while the
    server is down, or right after it was flushed: what is sent later is answered from what is left.
    """

    how: str
    since: int


class Healed(Record, frozen=True, tag="healed"):
    """All faults have ended; from here on everything must drain."""


class Left(Record, frozen=True, tag="left"):
    """A job that is on the server at the end: its state ("ready" … "dead", "broken"), its counts, why it is dead."""

    queue: str
    job: str
    state: str
    failures: int
    stalls: int
    reason: str
    check: int


class Inspected(Record, frozen=True, tag="inspected"):
    """The end of a run on one queue: counts, what an audit found amiss, keys that are left, how long draining took."""

    queue: str
    drained: bool
    drained_after: float
    amiss: int
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
    """A short sum of a payload, to see that it comes out as it went in."""
    return crc32(payload)


class LogWriter:
    """The file of one process. Made anew after a fork: two processes never share one."""

    def __init__(self, folder: Path, role: str, holder: str = "") -> None:
        self._pid = os.getpid()
        path = folder / f"{role}-{self._pid}-{monotonic_ns()}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.calls = 0
        self.write(Began(monotonic_ns(), self._pid, role, holder, time_ns() // 1_000_000))

    @property
    def ours(self) -> bool:
        """Whether this process opened it, and not the one that it was forked from."""
        return self._pid == os.getpid()

    def next_call(self) -> int:
        """A number for a call."""
        self.calls += 1
        return self.calls

    def write(self, record: Record) -> None:
        """Append one record, whole."""
        body = _encode(record)
        os.write(self._file, _LENGTH.pack(len(body)) + body)

    def close(self) -> None:
        """No more records."""
        os.close(self._file)


def read_log(path: Path) -> Iterator[Any]:
    """All records of one file, in the order of writing. A torn one at the end is an error: it cannot happen."""
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(head)
            assert length < _MOST, f"{path} is no log"
            body = file.read(length)
            assert len(body) == length, f"{path} ends in the middle of a record"
            yield _decode(body)
