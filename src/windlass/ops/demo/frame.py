"""The state of a run at one moment, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

WATCHERS = ("supervisor", "forkserver")  # processes that run no job
PLACES = (*WATCHERS, "runner", "child 1", "child 2")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run: its time, its topic, and what happened."""

    at: float
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process of the worker, seen from outside."""

    role: str
    pid: int | None
    state: str
    """starting, working, idle, watching (it runs no jobs), ended, or killed."""
    running: int
    done: int
    """Attempts that ended in this role, in this process or an earlier one."""
    killed: int
    """How often a process in this role was killed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The whole run at one moment."""

    at: float
    server: str
    steps: int
    """The number of jobs that all orders need."""
    done: int
    ready: int
    scheduled: int
    running: int
    dead: int
    pace: float
    """Jobs done in the last second."""
    processes: tuple[ProcessView, ...]
    parts: tuple[tuple[str, int, int], ...]
    """Name, number done, total number."""
    events: tuple[Event, ...]
    """The events since the last frame."""
