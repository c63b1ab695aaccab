"""Jobs and enqueue arguments as plain values, used by the book."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PLAIN_LIMITS = (10, 3, 2_000, 300_000)
SUSPECT, LIMITED = 1, 4
UPDATE_DATA, RESET, UPDATE_PRIORITY, KEEP, MUST_EXIST, LIMITS_GIVEN = 1, 128, 256, 512, 1024, 2048
UPDATE_LIMITS = (8, 16, 32, 64)
REPLACE_EXTRAS = 4096
EXPIRES = 8
UNDECODABLE = "undecodable"  # why a job is broken
RUN_AT_MODES = ("never", "always", "later", "earlier")

_NAMED = re.compile(rb"payload \d+;")


class Moment(NamedTuple):
    """The time of a step: true time (ms since 1970, as if the clock never jumped), and the server's clock."""

    true_ms: float
    wall_us: int
    jumps: int  # number of server clock changes so far

    @property
    def wall(self) -> int:
        return self.wall_us // 1000


class When(NamedTuple):
    """A run time: by the queue's clock (0 is now), and for a delay its true end."""

    at: float = 0
    truly: float = 0
    jumps: int = 0
    late: float = 0  # ms that the clock of run times was late then; possible after the server's clock was set back


NOW = When()


class Hold(NamedTuple):
    """Until when a holder is safe: by the queue's clock, and in true time."""

    ends: float
    surely: float
    jumps: int


@dataclass(slots=True)
class Asked:
    """The arguments of an enqueue."""

    data: bytes
    when: When = NOW
    priority: int = 5
    limits: tuple[int, int, int, int] = PLAIN_LIMITS
    updates: int = 1 + 2 + 8 + 16 + 32 + 64 + 128 + 256 + REPLACE_EXTRAS
    expires: float | None = None  # None if it is not given or not computed yet, 0 if it is removed
    lasts: float = 0

    def has(self, flag: int) -> bool:
        return bool(self.updates & flag)

    @property
    def mode(self) -> str:
        return RUN_AT_MODES[self.updates >> 1 & 3]


@dataclass(slots=True)
class Job:
    """A waiting, running or dead job."""

    id: str
    data: bytes
    priority: int
    limits: tuple[int, int, int, int]
    when: When = NOW
    order: int = 0
    failures: int = 0
    stalls: int = 0
    snoozes: int = 0
    marks: int = 0
    fence: int = 0
    holder: str = ""
    cancelled: bool = False
    reason: str = ""  # why it is dead
    expires: float = 0
    lasts: float = 0


class Reading(NamedTuple):
    """The queue's clock and step number."""

    now: int
    frame: int
    due: int
    belief: int
    epoch: int
    step: int


@dataclass(slots=True)
class Done:
    """The last operation of a caller, and its answer."""

    number: int
    answer: Any
    step: int


@dataclass(slots=True)
class Answer:
    """The expected answer of a turn."""

    flags: str
    base: int
    leased: list[Job] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    swept: int = 0
    lost: bool = False


def name_of(payload: bytes) -> bytes:
    """The unique part of a payload; the layout may wrap it."""
    found = _NAMED.search(payload)
    return found[0] if found else b""


def new_job(id: str, asked: Asked) -> Job:
    marks = LIMITED if asked.has(LIMITS_GIVEN) else 0
    expires, lasts = asked.expires or 0, asked.lasts
    return Job(id, asked.data, asked.priority, asked.limits, asked.when, marks=marks, expires=expires, lasts=lasts)


def choose(old: When, new: When, mode: str) -> When:
    if mode == "always":
        return new
    if mode == "later":
        return max(old, new, key=lambda when: when.at)
    if mode == "earlier":
        return min(old, new, key=lambda when: when.at)
    return old
