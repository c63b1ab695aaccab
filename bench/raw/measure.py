"""Measurement: interleaved rounds of Windlass and bare, and the median of the results."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.calm import BUSY, Calm, busy_seconds, wait_for_calm
from bench.raw.cases import CASES, Calls, Case, Rig, Side

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work. A sample ends after `seconds`, or when the case's jobs times `share` are done."""

    runs: int
    seconds: float
    share: float
    memory_jobs: int
    patience: float  # seconds after which noisy samples are not repeated

    @property
    def most_jobs(self) -> int:
        return max(self.memory_jobs, *(self.jobs(case) for case in CASES))

    def jobs(self, case: Case) -> int:
        return max(2 * case.batch, round(case.jobs * self.share) // case.batch * case.batch)


@dataclass(frozen=True, slots=True)
class Sample:
    """One side's result in one round."""

    jobs: int
    calls: int
    seconds: float
    client_cpu: float
    server_cpu: float
    commands: dict[str, tuple[int, int]]
    noisy: bool

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


@dataclass(slots=True)
class Pairs:
    """The rounds of one case on one server."""

    case: Case
    rig: Rig
    taken: list[tuple[Sample, Sample]] = field(default_factory=list)

    @property
    def quiet(self) -> list[tuple[Sample, Sample]]:
        return [pair for pair in self.taken if not any(sample.noisy for sample in pair)]

    def take(self, plan: Plan, calm: Calm) -> None:
        """One more round; who goes first changes, so that neither always finds the warmer machine."""
        sides = [self.case.ours, self.case.bare]
        if len(self.taken) % 2:
            sides.reverse()
        samples = [self._sample(side, plan, calm) for side in sides]
        if len(self.taken) % 2:
            samples.reverse()
        ours, bare = samples
        self.taken.append((ours, bare))

    def _sample(self, side: Side, plan: Plan, calm: Calm) -> Sample:
        case, rig = self.case, self.rig
        calls = Calls(plan.jobs(case), case.batch, plan.seconds)
        ours = side is case.ours
        rig.clear()
        if case.drains:
            (rig.fill_queue if ours else rig.fill_list)(calls.jobs)
        gc.collect()
        slow = wait_for_calm(calm, plan.seconds / 5)
        busy = busy_seconds()
        usage = rig.server.usage()
        cpu, began = time.process_time(), time.perf_counter()
        side(rig, calls)
        seconds, client_cpu = time.perf_counter() - began, time.process_time() - cpu
        used = rig.server.usage().since(usage)
        left = calls.jobs - calls.done if case.drains else calls.done
        if rig.queued() != left:
            raise AssertionError(f"{case.title}: {rig.queued():,} jobs are left and {left:,} should be")
        return Sample(
            jobs=calls.done,
            calls=calls.done // case.batch * (case.calls_per_batch if ours else 1),
            seconds=seconds,
            client_cpu=client_cpu,
            server_cpu=used.cpu,
            commands=used.commands,
            noisy=slow or _others_were_busy(busy, client_cpu + used.cpu, seconds),
        )


def _others_were_busy(before: float | None, own: float, seconds: float) -> bool:
    now = busy_seconds()
    if before is None or now is None or seconds < 0.1:  # the system counts in steps of 10 ms
        return False
    return now - before - own > BUSY * seconds * (os.cpu_count() or 1)


def measure(rigs: dict[str, Rig], plan: Plan, calm: Calm, say: Say) -> dict[str, Any]:
    """All figures, by server and case. Beside its own bare, each of ours is set against the first server's."""
    began = time.monotonic()
    for rig in rigs.values():
        _warm_up(rig)
    gc.freeze()  # what is loaded by now stays: collecting before each sample need not look at it
    pairs = {name: {case.key: Pairs(case, rig) for case in CASES} for name, rig in rigs.items()}
    every = [pairs[name][case.key] for case in CASES for name in rigs]
    for number in range(1, plan.runs + 1):
        for each in every:
            say(f"round {number} of {plan.runs}: {each.case.title}{', fsync' if each.rig.server.fsync else ''}")
            each.take(plan, calm)
    for _ in range(plan.runs):
        for each in every:
            if len(each.quiet) < plan.runs and time.monotonic() - began < plan.patience:
                say(f"once more, the machine was busy: {each.case.title}")
                each.take(plan, calm)
    first = pairs[next(iter(pairs))]
    return {
        name: {key: _figures(each, plan) | {"of_first": _against(each, first[key])} for key, each in of_case.items()}
        for name, of_case in pairs.items()
    }


def _against(pairs: Pairs, others: Pairs) -> float:
    """Our rate over our rate on another server: the middle of the rounds, in which both were taken side by side."""
    rounds = zip(pairs.taken, others.taken, strict=False)
    return median(ours.rate / theirs.rate for (ours, _), (theirs, _) in rounds)


def measure_memory(rig: Rig, jobs: int) -> dict[str, float]:
    """Bytes of server memory for one queued job, and for one element of a bare list."""
    taken = {}
    for name, fill in (("bytes_per_job", rig.fill_queue), ("bare_bytes_per_job", rig.fill_list)):
        fill(1000)  # the buffers of the connections grow now, not in between
        rig.clear()
        before = rig.server.memory()
        fill(jobs)
        taken[name] = (rig.server.memory() - before) / jobs
    rig.clear()
    return {"jobs": jobs, **taken}


def _warm_up(rig: Rig) -> None:
    for case in CASES:
        for side in (case.ours, case.bare):
            rig.clear()
            rig.fill_queue(2 * case.batch)
            rig.fill_list(2 * case.batch)
            side(rig, Calls(2 * case.batch, case.batch, 10))


def _figures(pairs: Pairs, plan: Plan) -> dict[str, Any]:
    quiet = pairs.quiet
    enough = len(quiet) >= min(3, plan.runs)
    chosen = quiet if enough else pairs.taken
    return {
        "title": pairs.case.title,
        "batch": pairs.case.batch,
        "rounds": len(chosen),
        "noisy_rounds": len(pairs.taken) - len(quiet),
        "is_quiet": enough,
        "ratio": median(ours.rate / bare.rate for ours, bare in chosen),
        "ours": _side(ours for ours, _ in chosen),
        "bare": _side(bare for _, bare in chosen),
    }


def _side(samples: Iterable[Sample]) -> dict[str, Any]:
    given = list(samples)
    last = given[-1]
    client = median(1e6 * sample.client_cpu / sample.jobs for sample in given)
    server = median(1e6 * sample.server_cpu / sample.jobs for sample in given)
    return {
        "jobs": sum(sample.jobs for sample in given),
        "jobs_per_second": median(sample.rate for sample in given),
        "client_cpu_us_per_job": client,
        "server_cpu_us_per_job": server,
        "client_share_of_cpu": client / (client + server),
        "commands_per_call": median(sum(n for n, _ in s.commands.values()) / s.calls for s in given),
        "commands": {
            name: {"per_call": calls / last.calls, "us_per_job": microseconds / last.jobs}
            for name, (calls, microseconds) in sorted(last.commands.items())
        },
    }
