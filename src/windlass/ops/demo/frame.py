"""A run at one moment, as plain values for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

WATCHERS = ("supervisor", "forkserver")  # processes that run no job
PLACES = (*WATCHERS, "runner", "child 1", "child 2")


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: when, about what, and what happened."""

    at: float
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process of the worker as it is seen from outside."""

    role: str
    pid: int | None
    state: str
    """starting, working, idle, watching (it runs no jobs), ended, or killed."""
    running: int
    done: int
    """Attempts that were brought to an end in this place, by it or by those before it."""
    killed: int
    """How often the process in this place was killed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The whole run at one moment."""

    at: float
    server: str
    steps: int
    """Jobs that all orders together need."""
    done: int
    ready: int
    scheduled: int
    leased: int
    dead: int
    pace: float
    """Jobs done per second, of late."""
    processes: tuple[ProcessView, ...]
    parts: tuple[tuple[str, int, int], ...]
    """Name, how many are done, how many in all."""
    events: tuple[Event, ...]
    """What happened since the frame before."""
