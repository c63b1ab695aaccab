"""The first pass over a log: its processes, its faults, and the offsets of each queue's steps.

It decodes only the heads of answers. The result is small: each answer's offset and its place in the server's order;
and in full all rare records: faults, deaths, unanswered calls, the state at the end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from chaos.checker.frames import Shelf, decode, frames, kind
from chaos.log import Answered, Began, Ended, Fault, Healed, Inspected, Left, Rewound, Sent

_OFFSET_BITS = 40  # bits of an offset, in a number that names file and offset
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1
_STEP_BITS = 48  # bits of a step, in a number that names epoch and step
_IN_FLIGHT_NS = 60 * 10**9  # ns after a rewind during which an answer may belong to an earlier call


class _SentHead(msgspec.Struct, array_like=True, tag="sent"):
    t: int
    call: int
    queue: str


class _AnsweredHead(msgspec.Struct, array_like=True, tag="answered"):
    t: int
    call: int
    queue: str
    epoch: int
    step: int


class _BeatenHead(msgspec.Struct, array_like=True, tag="beaten"):
    t: int
    queue: str
    holder: str
    epoch: int
    step: int


class _ExtendedHead(msgspec.Struct, array_like=True, tag="extended"):
    t: int
    queue: str
    job: str
    fence: int
    kept: bool
    epoch: int
    step: int


_sent = msgspec.msgpack.Decoder(_SentHead).decode
_stamp = msgspec.msgpack.Decoder(_AnsweredHead | _BeatenHead | _ExtendedHead).decode


class Process(NamedTuple):
    """One process and its file, from its first to its last record."""

    pid: int
    role: str
    first: int
    last: int
    file: int


class Unheard(NamedTuple):
    """A call that may have been applied or not: unanswered, or given up in doubt."""

    t: int
    pid: int
    sent: Sent


class Step(NamedTuple):
    """One server answer: an `Answered` with its `Sent`, a `Beaten` or an `Extended`."""

    generation: int  # number of rewinds before it
    segment: int  # rises with every rewind, and with every new epoch
    file: int
    record: Any
    sent: Sent | None


class QueueIndex:
    """The offsets of one queue's answers, in the order in which the server gave them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._epochs: dict[int, int] = {}
        self._stamps = array("Q")  # epoch (a small number) and step
        self._places = array("Q")  # file and offset
        self._backs = array("I")  # distance from the answer back to its call, 0: none
        self._times = array("Q")  # when they were logged
        self._order = array("I")
        self._generations: bytearray | None = None
        self._segments: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, epoch: int, step: int, file: int, offset: int, sent: int | None, t: int) -> None:
        """Add one answer."""
        number = self._epochs.setdefault(epoch, len(self._epochs))
        self._stamps.append(number << _STEP_BITS | step)
        self._places.append(file << _OFFSET_BITS | offset)
        self._backs.append(offset - sent if sent is not None else 0)
        self._times.append(t)

    def sort(self, rewinds: list[Rewound], shelf: Shelf) -> None:
        """Sort into the server's order: by generation, epoch and step."""
        if rewinds:
            self._generations = self._tell_generations(rewinds, shelf)
        firsts: dict[tuple[int, int], int] = {}
        for entry, stamp in enumerate(self._stamps):
            key = (self._generation(entry), stamp >> _STEP_BITS)
            t = self._times[entry]
            if t < firsts.get(key, t + 1):
                firsts[key] = t
        ranked = sorted(firsts, key=lambda key: (key[0], firsts[key]))
        self._segments = {key: rank for rank, key in enumerate(ranked)}
        mask = (1 << _STEP_BITS) - 1
        keys = [
            (self._segments[self._generation(entry), stamp >> _STEP_BITS] << _STEP_BITS | stamp & mask) << 32 | entry
            for entry, stamp in enumerate(self._stamps)
        ]
        keys.sort()
        self._order = array("I", (key & 0xFFFFFFFF for key in keys))

    def _generation(self, entry: int) -> int:
        return self._generations[entry] if self._generations is not None else 0

    def _tell_generations(self, rewinds: list[Rewound], shelf: Shelf) -> bytearray:
        """The number of rewinds before each answer.

        An answer logged before the rewind is older; an answer to a call sent after it is newer. For a call in flight at
        that moment, the epoch decides if only one side has it. Otherwise the answer is newer, because its connection
        died with the server, unless the newer side has another answer with that number.
        """
        ends = [rewound.t for rewound in rewinds]
        certain = bytearray(bisect_right(ends, t) for t in self._times)
        under_way: list[int] = []
        for entry, t in enumerate(self._times):
            last = certain[entry]
            if last and t - ends[last - 1] < _IN_FLIGHT_NS and self._backs[entry]:
                place = self._places[entry]
                sent = shelf.read(place >> _OFFSET_BITS, (place & _OFFSET_MASK) - self._backs[entry])
                if sent.t <= ends[last - 1]:
                    under_way.append(entry)
        doubtful = set(under_way)
        concerned = {certain[entry] for entry in under_way}
        known = {
            (generation, stamp)
            for entry, (generation, stamp) in enumerate(zip(certain, self._stamps, strict=True))
            if generation in concerned and entry not in doubtful
        }
        epochs = {(generation, stamp >> _STEP_BITS) for generation, stamp in known}
        for entry in under_way:
            generation, stamp = certain[entry], self._stamps[entry]
            if (generation, stamp >> _STEP_BITS) not in epochs or (generation, stamp) in known:
                certain[entry] = generation - 1
        return certain

    def steps(self, shelf: Shelf) -> Iterator[Step]:
        """All answers in the server's order. Among answers with the same number, the one that wrote comes first."""
        order, stamps = self._order, self._stamps
        at, count = 0, len(order)
        while at < count:
            entry = order[at]
            stamp, generation = stamps[entry], self._generation(entry)
            until = at + 1
            while until < count and stamps[order[until]] == stamp and self._generation(order[until]) == generation:
                until += 1
            segment = self._segments[generation, stamp >> _STEP_BITS]
            if until == at + 1:
                yield self._step(generation, segment, entry, shelf)
            else:
                group = [self._step(generation, segment, order[one], shelf) for one in range(at, until)]
                group.sort(key=lambda step: (not wrote(step.record), step.record.t))
                yield from group
            at = until

    def _step(self, generation: int, segment: int, entry: int, shelf: Shelf) -> Step:
        place, back = self._places[entry], self._backs[entry]
        file, offset = place >> _OFFSET_BITS, place & _OFFSET_MASK
        sent = shelf.read(file, offset - back) if back else None
        return Step(generation, segment, file, shelf.read(file, offset), sent)


def wrote(record: Any) -> bool:
    """Whether the server wrote anything for this answer. A read-only answer has the number of the step before."""
    if not isinstance(record, Answered):
        return True
    return bool(
        record.claims
        or record.statuses
        or record.cancelled
        or record.recovered
        or (record.settled and any(record.settled))
    )


class Index:
    """The result of the first pass over all files."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.log"))
        self.shelf = Shelf(self.paths)
        self.queues: dict[str, QueueIndex] = {}
        self.processes: dict[int, Process] = {}  # by file
        self.with_runs: list[tuple[int, int]] = []  # (begin, number) of each file with starts and ends of jobs
        self.ended: list[Ended] = []
        self.faults: list[Fault] = []
        self.rewinds: list[Rewound] = []
        self.healed: int | None = None
        self.left: list[Left] = []
        self.inspected: dict[str, Inspected] = {}
        self.unheard: dict[str, list[Unheard]] = {}
        self.calls = 0
        self.refused = 0
        self.wall_ahead: int | None = None  # wall clock minus monotonic clock, in ns: upper bound
        for number, path in enumerate(self.paths):
            self._look_at(number, path)
        self.with_runs.sort()
        self.faults.sort(key=lambda fault: fault.t)
        self.rewinds.sort(key=lambda rewound: rewound.t)
        for calls in self.unheard.values():
            calls.sort(key=lambda call: call.t)
        for queue in self.queues.values():
            queue.sort(self.rewinds, self.shelf)

    def _look_at(self, number: int, path: Path) -> None:
        began: Began | None = None
        calls: dict[int, int] = {}  # not answered so far, with their places
        runs = False
        body = b""
        for offset, body in frames(path):
            what = kind(body)
            if what == b"sta" or what == b"fin":
                runs = True
            elif what == b"sen":
                sent = _sent(body)
                calls[sent.call] = offset
                self.calls += 1
            elif what == b"ans" or what == b"bea" or what == b"ext":
                stamp = _stamp(body)
                place = calls.pop(stamp.call, None) if isinstance(stamp, _AnsweredHead) else None
                queue = self.queues.get(stamp.queue)
                if queue is None:
                    queue = self.queues[stamp.queue] = QueueIndex(stamp.queue)
                queue.add(stamp.epoch, stamp.step, number, offset, place, stamp.t)
            elif (record := self._note_rare(decode(body), calls)) is not None and began is None:
                began = record
        if began is None:
            return
        self.processes[number] = Process(began.pid, began.role, began.t, decode(body).t, number)
        if runs:
            self.with_runs.append((began.t, number))
        for offset in calls.values():
            call = self.shelf.read(number, offset)
            self.unheard.setdefault(call.queue, []).append(Unheard(call.t, began.pid, call))

    def _note_rare(self, record: Any, calls: dict[int, int]) -> Began | None:
        match record:
            case Began():
                if record.wall:
                    ahead = record.wall * 1_000_000 - record.t
                    self.wall_ahead = ahead if self.wall_ahead is None else max(self.wall_ahead, ahead)
                return record
            case Ended():
                self.ended.append(record)
            case Fault():
                self.faults.append(record)
            case Rewound():
                self.rewinds.append(record)
            case Healed():
                self.healed = record.t
            case Left():
                self.left.append(record)
            case Inspected():
                self.inspected[record.queue] = record
            case _:  # refused; a call in doubt counts as unanswered
                self.refused += 1
                if not record.in_doubt:
                    calls.pop(record.call, None)
        return None
