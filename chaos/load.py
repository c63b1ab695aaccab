"""The jobs of a chaos run, generated from a seed: the same seed gives the same jobs to every process.

Most jobs are short and succeed. Some are delayed, some reuse one id, some are cancelled before they run; some fail
once, some always; some kill their process; some enqueue other jobs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from chaos.tap import SINGLETON
from windlass import RawJob
from windlass.tasks.envelope import write_envelope

LOOP, THREAD, PROCESS, CAUGHT = "loop", "thread", "process", "caught"
QUEUES = (LOOP, THREAD, PROCESS, CAUGHT)
"""One queue per executor, so that a queue is never asked for more jobs than its executor has slots; and one whose
failures go to a failure handler."""

SINGLETONS = 50  # ids that are enqueued repeatedly
ALL_FAILURES = 99  # failures; more than any retry budget
CANCEL_AFTER = 2  # batches between the enqueue of a job and its cancel

_encode = msgspec.json.Encoder().encode

# The actions on each queue: (name, probability, how often the job does it before it succeeds).
_ACTIONS: dict[str, tuple[tuple[str, float, tuple[int, ...]], ...]] = {
    LOOP: (
        ("ok", 62, (0,)),
        ("wait", 25, (0,)),
        ("raise", 4, (1, 1, 1, 2, ALL_FAILURES)),
        ("retry", 3, (1, 2)),
        ("snooze", 1, (1, 2)),
        ("fail", 1, (0,)),
        ("hand over", 3, (1, 2, 3)),
        ("progress", 2, (0,)),
        ("exit", 0.004, (1,)),
    ),
    THREAD: (
        ("ok", 60, (0,)),
        ("wait", 30, (0,)),
        ("raise", 4, (1, 1, 2, ALL_FAILURES)),
        ("retry", 2, (1,)),
        ("snooze", 1, (1,)),
        ("fail", 1, (0,)),
        ("hand over", 1, (1, 2)),
        ("progress", 2, (0,)),
    ),
    PROCESS: (
        ("ok", 60, (0,)),
        ("wait", 20, (0,)),
        ("raise", 6, (1, 1, 2, ALL_FAILURES)),
        ("retry", 2, (1,)),
        ("snooze", 1, (1,)),
        ("fail", 2, (0,)),
        ("hand over", 4, (1, 2)),
        ("progress", 2, (0,)),
        ("exit", 2, (1, 1, 2, ALL_FAILURES)),
        ("segfault", 2, (1, 1, ALL_FAILURES)),
    ),
    CAUGHT: (("ok", 60, (0,)), ("raise", 25, (1, 2, ALL_FAILURES, ALL_FAILURES)), ("fail", 15, (0,))),
}
_SHARES = (88.0, 7.0, 3.0, 2.0)
_PADS = (0, 0, 0, 10, 40, 100, 400)


class Planned(NamedTuple):
    """One job of the load."""

    queue: str
    id: str
    data: bytes
    options: dict[str, Any]
    cancelled: bool = False
    """The job waits long enough to be cancelled, and is cancelled."""

    def raw(self, **more: Any) -> RawJob:
        """The job in the form that `enqueue_many` takes."""
        return RawJob(self.data, id=self.id, **self.options, **more)


def payload(queue: str, do: str, times: int = 0, ms: int = 0, pad: str = "") -> bytes:
    """The payload that calls the task of this queue (see app.py)."""
    return write_envelope(queue, _encode({"do": do, "times": times, "ms": ms, "pad": pad}))


class Load:
    """The jobs of one producer, batch by batch."""

    def __init__(self, seed: int, producer: int) -> None:
        self._seed = seed
        self._producer = producer

    def batch(self, number: int, size: int) -> list[Planned]:
        """The jobs of one batch: the same on each call. Ids differ between all batches and producers."""
        chance = random.Random(f"{self._seed} {self._producer} {number}")
        planned = [self._job(chance, f"{self._producer}-{number}-{place}") for place in range(size)]
        # An id stands for one job in a batch: the later of two with the same id counts.
        return list({job.id: job for job in planned}.values())

    def _job(self, chance: random.Random, id: str) -> Planned:
        (queue,) = chance.choices(QUEUES, _SHARES)
        deeds = _ACTIONS[queue]
        ((do, _, times),) = chance.choices(deeds, [weight for _, weight, _ in deeds])
        options = self._limits(chance, do)
        single = chance.random() < 0.04 and do in ("ok", "wait")
        # Every payload is unique, so that it tells which of the jobs with one id ran.
        pad = f"{id} {'x' * chance.choice(_PADS)}"
        ms = chance.choice((1, 2, 5, 10, 20, 50)) if do in ("wait", "retry", "snooze", "progress") else 0
        data = payload(queue, do, chance.choice(times), ms, pad)
        if single:
            return Planned(queue, f"{SINGLETON}{queue}-{chance.randrange(SINGLETONS)}", data, options)
        if chance.random() < 0.15:
            options["priority"] = chance.randrange(10)
        if do == "ok" and chance.random() < 0.01:
            return Planned(queue, id, data, {**options, "delay": round(chance.uniform(3.0, 6.0), 3)}, cancelled=True)
        if chance.random() < 0.08:
            options["delay"] = round(chance.uniform(0.02, 3.0), 3)
        return Planned(queue, id, data, options)

    def _limits(self, chance: random.Random, do: str) -> dict[str, Any]:
        """Small retry limits, so that a run uses some up; default limits are left out."""
        if do in ("raise", "retry"):
            return {"max_failures": chance.choice((2, 3, 5)), "min_backoff": 0.02, "max_backoff": 0.3}
        if do in ("exit", "segfault"):
            return {"max_stalls": chance.choice((3, 4)), "min_backoff": 0.02, "max_backoff": 0.3}
        return {}


def to_cancel(batch: Sequence[Planned]) -> list[Planned]:
    """The jobs of a batch that are to be cancelled."""
    return [job for job in batch if job.cancelled]
