"""A producer of a chaos run: sends its part of the load, batch by batch, at an even rate.

It resends an unanswered batch under the same ids until it is answered. Only answered jobs must never be lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from chaos import tap
from chaos.load import CANCEL_AFTER, Load, Planned, to_cancel
from windlass import Windlass
from windlass.errors import NotApplied, OutcomeUnknown

RESEND_AFTER_S = 0.2  # seconds before a batch is resent


class Producer:
    """One producer. Setting `stopped` ends it after the current batch."""

    def __init__(self, app: Windlass, load: Load, tally: Path | None = None) -> None:
        self._app = app
        self._load = load
        self._tally = None if tally is None else os.open(tally, os.O_WRONLY | os.O_CREAT, 0o600)
        self.stopped = False

    def run(self, jobs: int, size: int, rate: float) -> int:
        """Send `jobs` jobs at `rate` per second; returns how many were sent."""
        began = time.monotonic()
        sent = number = 0
        waiting: deque[Sequence[Planned]] = deque()
        while sent < jobs and not self.stopped:
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            batch = self._load.batch(number, min(size, jobs - sent))
            self._send(batch)
            sent += min(size, jobs - sent)
            number += 1
            self._count(sent)
            waiting.append(to_cancel(batch))
            if len(waiting) > CANCEL_AFTER:
                self._take_away(waiting.popleft())
        return sent

    def _count(self, sent: int) -> None:
        """Publish how many jobs have been answered, for the driver."""
        if self._tally is not None:
            os.pwrite(self._tally, b"%12d" % sent, 0)

    def _send(self, batch: Sequence[Planned]) -> None:
        for queue in dict.fromkeys(job.queue for job in batch):
            target = self._app.queue(queue)
            jobs = [job for job in batch if job.queue == queue]
            again: dict[str, str] = {}
            while not self.stopped:
                try:
                    target.enqueue_many(job.raw(**again) for job in jobs)
                    break
                except NotApplied:
                    time.sleep(RESEND_AFTER_S)
                except OutcomeUnknown:
                    # Jobs that already arrived stay unchanged.
                    again = {"if_exists": "keep"}
                    time.sleep(RESEND_AFTER_S)

    def _take_away(self, jobs: Sequence[Planned]) -> None:
        for job in jobs:
            try:
                self._app.queue(job.queue).cancel(job.id)
            except (NotApplied, OutcomeUnknown):
                pass  # the cancel is in doubt: the job may run or not


def produce() -> int:
    """The process. The environment holds the server's URL and the log folder."""
    parser = argparse.ArgumentParser(prog="python -m chaos.producer", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, required=True, help="number of this producer")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="jobs per second")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--durability", help="durability of every enqueue")
    parser.add_argument("--tally", type=Path, help="file to write the number of sent jobs to")
    chosen = parser.parse_args()
    tap.install("producer")
    with Windlass(durability=chosen.durability) as app:
        producer = Producer(app, Load(chosen.seed, chosen.number), chosen.tally)

        def stop(number: int, frame: object) -> None:
            producer.stopped = True

        signal.signal(signal.SIGTERM, stop)
        sent = producer.run(chosen.jobs, chosen.batch, chosen.rate)
    print(f"producer {chosen.number} (process {os.getpid()}) has sent {sent} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(produce())
