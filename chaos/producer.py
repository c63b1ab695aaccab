"""A producer of a chaos run: sends its part of the load, batch by batch, at an even pace.

What is not answered is sent again under the same ids until it is: only then is a job one that must not be lost.
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

PAUSE = 0.2  # seconds before a batch is sent again


class Producer:
    """One producer. `stopped` ends it after the present batch."""

    def __init__(self, app: Windlass, load: Load, tally: Path | None = None) -> None:
        self._app = app
        self._load = load
        self._tally = None if tally is None else os.open(tally, os.O_WRONLY | os.O_CREAT, 0o600)
        self.stopped = False

    def run(self, jobs: int, size: int, rate: float) -> int:
        """Send so many jobs, so many in a second; how many were sent."""
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
        """For whoever looks on: how many have been answered."""
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
                    time.sleep(PAUSE)
                except OutcomeUnknown:
                    # What has come already stays as it is.
                    again = {"if_exists": "keep"}
                    time.sleep(PAUSE)

    def _take_away(self, jobs: Sequence[Planned]) -> None:
        for job in jobs:
            try:
                self._app.queue(job.queue).cancel(job.id)
            except (NotApplied, OutcomeUnknown):
                pass  # it runs, or it does not: nobody was told


def produce() -> int:
    """The process: the server's URL and the log's folder are in the environment."""
    parser = argparse.ArgumentParser(prog="python -m chaos.producer", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, required=True, help="which of the producers this is")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="jobs in a second")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--durability", help="what every enqueue asks for")
    parser.add_argument("--tally", type=Path, help="a file that says how many have been sent so far")
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
