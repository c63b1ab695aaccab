"""A run at one moment, as plain values for whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.job import Counts


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling: when, about what, and what happened."""

    at: float
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker as it is seen from outside."""

    name: str
    pid: int | None
    state: str
    """starting, working, idle, killed, or fallen: ended by a fault of its own."""
    holding: int
    completed: int
    rescued: int
    """Of those, jobs that the killed worker had held."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The whole run at one moment."""

    at: float
    server: str
    jobs: int
    batch: int
    """The most jobs that a worker leases at once."""
    counts: Counts
    completed: int
    pace: float
    """Jobs completed per second, of late."""
    workers: tuple[WorkerView, ...]
    priorities: tuple[tuple[str, int, int], ...]
    """Name, jobs completed, jobs in all."""
    events: tuple[Event, ...]
    """What happened since the frame before."""
