"""The jobs of a run: how urgent each is, how long its work takes, and how far ahead it is scheduled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from windlass.queue import RawJob

PRIORITIES = {1: "urgent", 5: "normal", 9: "whenever"}


@dataclass(frozen=True, slots=True)
class Chore:
    """One job to come: its priority, milliseconds of work, and seconds until it may run."""

    priority: int
    work: float
    delay: float

    def as_job(self) -> RawJob:
        """The job to enqueue; the worker reads from it how long to work."""
        data = json.dumps({"work_ms": self.work}).encode()
        return RawJob(data, priority=self.priority, delay=self.delay)


def work_of(data: bytes) -> float:
    """The seconds of work that a job asks for."""
    return float(json.loads(data)["work_ms"]) / 1000


def plan(jobs: int, seed: int) -> list[Chore]:
    """So many chores: mostly short ones, a few long ones, one in seven scheduled. The same for the same seed."""
    random = Random(seed)
    return [
        Chore(
            priority=random.choices([1, 5, 9], [2, 5, 3])[0],
            work=round(random.uniform(*random.choices([(1, 3), (4, 8), (15, 25)], [80, 18, 2])[0]), 1),
            delay=round(random.uniform(1, 4), 2) if random.random() < 1 / 7 else 0,
        )
        for _ in range(jobs)
    ]
