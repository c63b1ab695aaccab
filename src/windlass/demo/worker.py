"""One worker process of the demo: `python -m windlass.demo.worker QUEUE NAME LEDGER BATCH LEASE_SECONDS`.

It finds the server in WINDLASS_URL and works until its input is closed, be it because it is told to end or
because the process that started it is gone.
"""

from __future__ import annotations

import select
import sys
import time
from pathlib import Path

from windlass.app import Windlass
from windlass.demo.ledger import Deed, Ledger
from windlass.demo.plan import work_of
from windlass.job import Lease
from windlass.queue import Queue

SETTLE = 12  # jobs told to the server in one call: a call is an fsync
IDLE = 0.25  # seconds to wait for jobs before looking whether to end


class Worker:
    """A holder with a name: all it holds is safe as long as it leases or beats often enough."""

    def __init__(self, queue: Queue, name: str, ledger: Ledger, batch: int, lease_seconds: float) -> None:
        self._queue = queue
        self._name = name
        self._ledger = ledger
        self._batch = batch
        self._lease_seconds = lease_seconds
        self._last_sign = 0.0

    def work(self) -> None:
        """Lease, run and settle until told to end."""
        while not _told_to_end():
            asked = time.monotonic()
            leases = self._queue.lease_many(self._batch, self._lease_seconds, IDLE, holder=self._name)
            if leases:
                self._last_sign = asked
                self._ledger.note(Deed.LEASED, leases)
                self._run(leases)

    def _run(self, leases: list[Lease]) -> None:
        done: list[Lease] = []
        for at, lease in enumerate(leases):
            if not self._still_alive() or _told_to_end():
                self._give_up(leases[at:])
                break
            time.sleep(work_of(lease.data))
            self._ledger.note(Deed.RAN, [lease])
            done.append(lease)
            if len(done) == SETTLE:
                self._settle(done)
                done = []
        self._settle(done)

    def _still_alive(self) -> bool:
        """Give a sign of life when it is time to; false if it came too late and all leases are lost."""
        now = time.monotonic()
        if now - self._last_sign < self._lease_seconds / 4:
            return True
        self._last_sign = now
        return self._queue.beat(self._name, self._lease_seconds)

    def _settle(self, done: list[Lease]) -> None:
        if not done:
            return
        self._ledger.note(Deed.SETTLING, done)
        verdicts = list(zip(done, self._queue.complete_many(done), strict=True))
        self._ledger.note(Deed.COMPLETED, [lease for lease, ours in verdicts if ours])
        self._ledger.note(Deed.REFUSED, [lease for lease, ours in verdicts if not ours])

    def _give_up(self, leases: list[Lease]) -> None:
        self._ledger.note(Deed.DROPPED, leases)
        for lease in leases:
            self._queue.release(lease)


def _told_to_end() -> bool:
    return bool(select.select([0], [], [], 0)[0])


def main(queue: str, name: str, ledger: str, batch: str, lease_seconds: str) -> None:
    """Be a worker until told to end."""
    with Windlass() as app:
        Worker(app.queue(queue), name, Ledger(Path(ledger)), int(batch), float(lease_seconds)).work()


if __name__ == "__main__":
    main(*sys.argv[1:])
