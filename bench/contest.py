"""The rounds: in each, every contestant runs each workload in turn; the first one rotates from round to round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.calm import BUSY, Calm, busy_seconds, wait_for_calm
from bench.drive import Broken
from bench.workloads import Contestant, Figures, Workload

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sample:
    """One contestant's result in one round of one workload."""

    figures: Figures
    noisy: bool


@dataclass(slots=True)
class Entry:
    """A contestant in a workload, with all its samples, or the reason why there are none."""

    workload: Workload
    who: Contestant
    samples: list[Sample] = field(default_factory=list)
    failed: str = ""

    @property
    def quiet(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.noisy]

    def take(self, calm: Calm) -> None:
        """Take one more sample. A contestant that fails once is not run again."""
        slow = wait_for_calm(calm, 0.1)
        busy, began, used = busy_seconds(), time.monotonic(), self._own_cpu()
        try:
            figures = self.workload.measure(self.who)
        except Broken as error:
            self.failed = str(error)
            return
        finally:
            self.who.clear()
        own = self._own_cpu() - used
        self.samples.append(Sample(figures, slow or _others_were_busy(busy, own, time.monotonic() - began)))

    def _own_cpu(self) -> float:
        servers = sum(server.usage().cpu for server in {self.who.server, self.who.durable})
        return servers + sum(self.who.spent) + time.process_time()

    def figures(self, runs: int) -> dict[str, dict[str, Any]]:
        """The median of each number: of the quiet samples if there are enough, otherwise of all."""
        enough = len(self.quiet) >= min(3, runs)
        chosen = self.quiet if enough else self.samples
        found: dict[str, dict[str, Any]] = {}
        for key in chosen[0].figures if chosen else ():
            numbers = chosen[0].figures[key]
            found[key] = {name: median(sample.figures[key][name] for sample in chosen) for name in numbers}
            found[key] |= {"rounds": len(chosen), "is_quiet": enough}
        return found


def _others_were_busy(before: float | None, own: float, seconds: float) -> bool:
    now = busy_seconds()
    if before is None or now is None:
        return False
    return now - before - own > BUSY * seconds * (os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """`patience`: seconds after which noisy samples are not repeated. `most`: seconds after which no sample starts."""

    runs: int
    patience: float
    most: float


def hold(entries: list[Entry], plan: Plan, calm: Calm, say: Say) -> None:
    """Run all rounds, and repeat noisy samples while time allows."""
    began = time.monotonic()
    workloads = list(dict.fromkeys(entry.workload.name for entry in entries))
    for number in range(plan.runs):
        for name in workloads:
            of_it = [entry for entry in entries if entry.workload.name == name]
            first = number * max(1, len(of_it) // plan.runs) % len(of_it)
            for entry in of_it[first:] + of_it[:first]:
                if not entry.failed and time.monotonic() - began < plan.most:
                    say(f"round {number + 1} of {plan.runs}, {name}: {entry.who.peer.title}")
                    entry.take(calm)
    for _ in range(plan.runs):
        for entry in entries:
            if not entry.failed and len(entry.quiet) < plan.runs and time.monotonic() - began < plan.patience:
                say(f"once more, the machine was busy, {entry.workload.name}: {entry.who.peer.title}")
                entry.take(calm)
    for entry in entries:
        if not entry.samples and not entry.failed:
            entry.failed = "no time was left"
