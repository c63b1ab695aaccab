"""The jobs of a chaos run, drawn by chance: one seed, one load, whoever asks for which part of it.

Most jobs are short and end well. Some come later, some again and again under one id, some are taken away before they
run; some fail once, some always; some kill the process that they run in; some hand others over.
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
"""One queue for each way to run a job: a queue is only asked for as many jobs as every kind on it has room for. And one
whose failures are told to a failure handler."""

SINGLETONS = 50  # ids that are enqueued again and again
ALWAYS = 99  # failures that no job is forgiven
CANCEL_AFTER = 2  # batches after which the jobs are taken away that were meant for it

_encode = msgspec.json.Encoder().encode

# What a job does, by the queue that it is on: how likely, and how often it does so before it ends well.
_DEEDS: dict[str, tuple[tuple[str, float, tuple[int, ...]], ...]] = {
    LOOP: (
        ("ok", 62, (0,)),
        ("wait", 25, (0,)),
        ("raise", 4, (1, 1, 1, 2, ALWAYS)),
        ("retry", 3, (1, 2)),
        ("fail", 1, (0,)),
        ("hand over", 3, (1, 2, 3)),
        ("progress", 2, (0,)),
        ("exit", 0.004, (1,)),
    ),
    THREAD: (
        ("ok", 60, (0,)),
        ("wait", 30, (0,)),
        ("raise", 4, (1, 1, 2, ALWAYS)),
        ("retry", 2, (1,)),
        ("fail", 1, (0,)),
        ("hand over", 1, (1, 2)),
        ("progress", 2, (0,)),
    ),
    PROCESS: (
        ("ok", 60, (0,)),
        ("wait", 20, (0,)),
        ("raise", 6, (1, 1, 2, ALWAYS)),
        ("retry", 2, (1,)),
        ("fail", 2, (0,)),
        ("hand over", 4, (1, 2)),
        ("progress", 2, (0,)),
        ("exit", 2, (1, 1, 2, ALWAYS)),
        ("segfault", 2, (1, 1, ALWAYS)),
    ),
    CAUGHT: (("ok", 60, (0,)), ("raise", 25, (1, 2, ALWAYS, ALWAYS)), ("fail", 15, (0,))),
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
    """It waits long enough to be taken away, and is."""

    def raw(self, **more: Any) -> RawJob:
        """As `enqueue_many` takes it."""
        return RawJob(self.data, id=self.id, **self.options, **more)


def payload(queue: str, do: str, times: int = 0, ms: int = 0, pad: str = "") -> bytes:
    """The call of the task of a queue (see app.py)."""
    return write_envelope(queue, _encode({"do": do, "times": times, "ms": ms, "pad": pad}))


class Load:
    """What one of several producers sends, batch by batch."""

    def __init__(self, seed: int, producer: int) -> None:
        self._seed = seed
        self._producer = producer

    def batch(self, number: int, size: int) -> list[Planned]:
        """The jobs of one batch. Asked for again, they are the same; ids differ between all batches and producers."""
        chance = random.Random(f"{self._seed} {self._producer} {number}")
        planned = [self._job(chance, f"{self._producer}-{number}-{place}") for place in range(size)]
        # An id stands for one job in a batch: of two of the same id the later one counts.
        return list({job.id: job for job in planned}.values())

    def _job(self, chance: random.Random, id: str) -> Planned:
        (queue,) = chance.choices(QUEUES, _SHARES)
        deeds = _DEEDS[queue]
        ((do, _, times),) = chance.choices(deeds, [weight for _, weight, _ in deeds])
        options = self._limits(chance, do)
        single = chance.random() < 0.04 and do in ("ok", "wait")
        # Every payload is another: of the jobs of one id it tells which of them ran.
        pad = f"{id} {'x' * chance.choice(_PADS)}"
        ms = chance.choice((1, 2, 5, 10, 20, 50)) if do in ("wait", "retry", "progress") else 0
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
        """Small ones, so that a run sees budgets used up; where they are plain, nothing is said."""
        if do in ("raise", "retry"):
            return {"max_failures": chance.choice((2, 3, 5)), "min_backoff": 0.02, "max_backoff": 0.3}
        if do in ("exit", "segfault"):
            return {"max_stalls": chance.choice((3, 4))}
        return {}


def to_cancel(batch: Sequence[Planned]) -> list[Planned]:
    """Those of a batch that are meant to be taken away."""
    return [job for job in batch if job.cancelled]
