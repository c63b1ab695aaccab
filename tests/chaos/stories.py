"""Logs for tests of the checker: short ones built event by event, and forged ones with one change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from chaos.checker import Limits, Report, check
from chaos.checker.forge import SMALL, forge
from chaos.log import (
    Answered,
    Beaten,
    Began,
    Claim,
    Ended,
    EnqueueAsked,
    Extended,
    Fault,
    Finished,
    Healed,
    Inspected,
    Left,
    Record,
    Rewound,
    Sent,
    SettleAsked,
    Started,
    read_log,
)

QUEUE = "q"
LEASE = 1000
MS = 1_000_000
WALL = 1_700_000_000_000
EPOCH = 7

_encode = msgspec.msgpack.Encoder().encode


def write_log(path: Path, records: list[Any]) -> None:
    """A whole file of a log."""
    with path.open("wb") as file:
        for record in records:
            body = _encode(record)
            file.write(len(body).to_bytes(4, "little") + body)


def check_of(job: str) -> int:
    return crc32(job.encode())


def asked(job: str, **more: Any) -> EnqueueAsked:
    return EnqueueAsked(job, **{"check": check_of(job), **more})


class Story:
    """A log of one queue, built event by event. `at` is the time in seconds; every event takes two milliseconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, list[Any]] = {}
        self._calls = 0
        self._fence = 100
        self._pids: dict[str, int] = {}
        self.at = 1.0
        self.step = 0
        self.epoch = EPOCH
        self.clock_ahead = 0  # ms that the queue's clock is ahead
        self.wall_ahead = 0  # the same of the server's clock for run times
        self.dead: list[Left] = []
        self._write("driver", None)

    @property
    def t(self) -> int:
        return round(self.at * 1000) * MS

    @property
    def now(self) -> int:
        return WALL + round(self.at * 1000) + self.clock_ahead

    @property
    def wall(self) -> int:
        return WALL + round(self.at * 1000) + self.wall_ahead

    def pid(self, who: str) -> int:
        self._write(who, None)
        return self._pids[who]

    def _write(self, who: str, record: Record | None) -> None:
        if who not in self._files:
            self._pids[who] = 1000 + len(self._pids)
            role = {"p": "producer", "d": "driver"}.get(who[0], "runner")
            self._files[who] = [Began(self.t, self._pids[who], role, wall=WALL + self.t // MS)]
        if record is not None:
            self._files[who].append(record)

    def _tick(self) -> int:
        self.at += 0.001
        return self.t

    def _call(self, who: str, sent: dict[str, Any], answer: dict[str, Any] | None, took: float = 0) -> None:
        self._calls += 1
        self._write(who, Sent(self._tick(), self._calls, QUEUE, **sent))
        self.at += took
        if answer is not None:
            self.step += 1
            self._write(
                who,
                Answered(self._tick(), self._calls, QUEUE, self.epoch, self.step, self.now, wall=self.wall, **answer),
            )

    # -- what happens --------------------------------------------------------------------------------

    def enqueue(
        self, *jobs: str | EnqueueAsked, by: str = "p", statuses: str = "", level: str = "fsync", heard: bool = True
    ) -> None:
        given = tuple(job if isinstance(job, EnqueueAsked) else asked(job) for job in jobs)
        answer = {"statuses": statuses or "a" * len(given), "level": level}
        self._call(by, {"enqueues": given}, answer if heard else None)

    def claim(
        self,
        who: str,
        *jobs: str | Claim,
        settles: tuple[SettleAsked, ...] = (),
        settled: tuple[bool, ...] | None = None,
        recovered: int = 0,
        want: int = 10,
        heard: bool = True,
        took: float = 0,
        **more: Any,
    ) -> int:
        """A worker's turn: settles, and leases jobs. Returns the fence of the last one.

        `took`: the answer came that many seconds later, to a repeat, and carries the time of the repeat.
        """
        claims = []
        for job in jobs:
            if isinstance(job, str):
                self._fence += 1
                job = Claim(job, self._fence, check_of(job), 5, 0, 0)
            else:
                self._fence = max(self._fence, job.fence)
            claims.append(job)
        answer = {
            "settled": settled if settled is not None else (True,) * len(settles),
            "claims": tuple(claims),
            "recovered": recovered,
            "holder": who,
            "lease": LEASE if claims else 0,
        }
        sent = {"settles": settles, "want": want, "holder": who, **more}
        self._call(who, sent, answer if heard else None, took)
        return self._fence

    def settle(self, who: str, job: str, fence: int, outcome: str = "completed", **more: Any) -> None:
        """A single outcome. `ours`: the server's answer; `heard`: whether the answer arrives."""
        ours, heard = more.pop("ours", True), more.pop("heard", True)
        self.claim(who, settles=(SettleAsked(job, fence, outcome, **more),), settled=(ours,), want=0, heard=heard)

    def cancel(self, job: str, *, by: str = "p", done: bool = True, heard: bool = True) -> None:
        self._call(by, {"cancels": (job,)}, {"cancelled": (done,)} if heard else None)

    def beat(self, who: str, *, known: bool = True, lease: int = LEASE) -> None:
        self.step += 1
        self._write(who, Beaten(self._tick(), QUEUE, who, self.epoch, self.step, self.now, lease, known))

    def extend(self, who: str, job: str, fence: int, *, kept: bool = True, lease: int = 0) -> None:
        self.step += 1
        self._write(who, Extended(self._tick(), QUEUE, job, fence, kept, self.epoch, self.step, self.now, lease))

    def start(self, who: str, job: str, fence: int, *, attempt: int = 1, check: int | None = None) -> None:
        payload = check if check is not None else check_of(job)
        self._write(who, Started(self._tick(), self.pid(who), QUEUE, job, fence, payload, attempt))

    def finish(self, who: str, job: str, fence: int, how: str = "ok") -> None:
        self._write(who, Finished(self._tick(), self.pid(who), QUEUE, job, fence, how))

    def complete(self, who: str, job: str, fence: int, *, attempt: int = 1) -> None:
        """The job runs and completes."""
        self.start(who, job, fence, attempt=attempt)
        self.finish(who, job, fence)
        self.settle(who, job, fence)

    def fault(self, name: str, *who: str, begins: bool = True) -> None:
        pids = tuple(self.pid(one) if one != "server" else 0 for one in who)
        self._write("driver", Fault(self._tick(), name, begins, pids))

    def kill(self, who: str) -> None:
        self.fault("kill runner", who)
        self._write("driver", Ended(self._tick(), self.pid(who), "signal 9"))

    def rewind(self, how: str, since: float) -> None:
        self._write("driver", Rewound(self._tick(), how, round(since * 1000) * MS))

    def heal(self) -> None:
        self._write("driver", Healed(self._tick()))

    def bury(self, job: str, failures: int, stalls: int, reason: str, check: int | None = None) -> None:
        payload = check if check is not None else check_of(job)
        self.dead.append(Left(0, QUEUE, job, "dead", failures, stalls, reason, payload))

    def end(self, **limits: Any) -> Report:
        """The final inspection, and the checker's report."""
        for left in self.dead:
            self._write("driver", msgspec.structs.replace(left, t=self._tick()))
        counts = {"ready": 0, "running": 0, "dead": len(self.dead)}
        self._write("driver", Inspected(self._tick(), QUEUE, True, 0.1, 0, 3, counts))
        for who, records in self._files.items():
            write_log(self._folder / f"{who}.log", records)
        return check(self._folder, Limits(**limits))


class Noted(NamedTuple):
    """One call of a forged log: its file, and the positions of request and answer."""

    file: str
    at: int
    sent: Sent
    answered_at: int
    answer: Answered


class Forged:
    """A legal log in memory that can be changed. Step numbers leave room for nine more between two steps."""

    def __init__(self, files: dict[str, list[Any]]) -> None:
        self.files = files
        self._calls: list[Noted] | None = None
        self._next_call = 1_000_000

    @classmethod
    def make(cls, folder: Path, jobs: int, seed: int) -> Forged:
        forge(folder, jobs, seed=seed, mix=SMALL)
        return cls({path.name: [_spaced(record) for record in read_log(path)] for path in folder.glob("*.log")})

    def copy(self) -> Forged:
        copied = Forged({name: list(records) for name, records in self.files.items()})
        copied._calls = self.calls()
        return copied

    def check(self, folder: Path) -> Report:
        for name, records in self.files.items():
            write_log(folder / name, records)
        return check(folder)

    # -- finding ---------------------------------------------------------------------------------------

    def all(self, kind: type[Record]) -> Iterator[tuple[str, int, Any]]:
        for name, records in self.files.items():
            for at, record in enumerate(records):
                if isinstance(record, kind):
                    yield name, at, record

    def calls(self) -> list[Noted]:
        """All answered calls, in the order of steps."""
        if self._calls is not None:
            return self._calls
        found = []
        for name, records in self.files.items():
            sent = {record.call: (at, record) for at, record in enumerate(records) if isinstance(record, Sent)}
            found += [
                Noted(name, *sent[record.call], at, record)
                for at, record in enumerate(records)
                if isinstance(record, Answered)
            ]
        self._calls = sorted(found, key=lambda noted: (noted.answer.queue, noted.answer.step))
        return self._calls

    def claims(self, job: str) -> list[tuple[Noted, Claim]]:
        return [(noted, claim) for noted in self.calls() for claim in noted.answer.claims if claim.job == job]

    def settles(self, job: str) -> list[tuple[Noted, SettleAsked]]:
        return [(noted, one) for noted in self.calls() for one in noted.sent.settles if one.job == job]

    def plain(self) -> str:
        """An ordinary job: enqueued, leased, run and completed, each once."""
        once: dict[str, int] = {}
        ended: dict[str, list[str]] = {}
        for noted in self.calls():
            for claim in noted.answer.claims:
                once[claim.job] = once.get(claim.job, 0) + 1
            for one in noted.sent.settles:
                ended.setdefault(one.job, []).append(one.outcome)
        answered = {(noted.file, noted.sent.call) for noted in self.calls()}
        in_doubt = {
            one.job
            for name, _, sent in self.all(Sent)
            if (name, sent.call) not in answered
            for one in (*sent.enqueues, *sent.settles)
        }
        return next(
            job
            for job, count in once.items()
            if count == 1 and ended.get(job) == ["completed"] and job.startswith("p") and job not in in_doubt
        )

    # -- changing --------------------------------------------------------------------------------------

    def put(self, name: str, at: int, **changes: Any) -> None:
        """Change one record."""
        self._calls = None
        self.files[name][at] = msgspec.structs.replace(self.files[name][at], **changes)

    def change(self, kind: type[Record], about: str, **changes: Any) -> None:
        """Change the first record of this kind about a job."""
        name, at, _ = next(found for found in self.all(kind) if found[2].job == about)
        self.put(name, at, **changes)

    def drop(self, keep: Callable[[Any], bool]) -> None:
        """Remove all records that `keep` rejects."""
        self._calls = None
        self.files = {name: [record for record in records if keep(record)] for name, records in self.files.items()}

    def insert(self, name: str, *records: Any) -> None:
        """Insert records by their time."""
        self._calls = None
        self.files[name] = sorted([*self.files[name], *records], key=lambda record: record.t)

    def call_after(self, noted: Noted, sent: dict[str, Any], answer: dict[str, Any], *, name: str = "") -> None:
        """Insert a call right after a step."""
        self._next_call += 1
        last = noted.answer
        self.insert(
            name or noted.file,
            Sent(last.t + 1, self._next_call, last.queue, **sent),
            Answered(
                last.t + 2, self._next_call, last.queue, last.epoch, last.step + 1, last.now, wall=last.wall, **answer
            ),
        )


def _spaced(record: Any) -> Any:
    if isinstance(record, Answered | Beaten | Extended):
        return msgspec.structs.replace(record, step=record.step * 10)
    return record
