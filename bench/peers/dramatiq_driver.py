"""Dramatiq on its Redis broker, with all its default middleware."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.driving import NAP, POOL_URL, Driver, Numbers, began, handled, main

broker = RedisBroker(url=POOL_URL)
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(n: int) -> None:
    handled(n)


@dramatiq.actor
def nap(n: int) -> None:
    began()
    time.sleep(NAP)
    handled(n)


class DramatiqDriver(Driver):
    """Threads: 8, which is its default, or as many as jobs are to run at a time."""

    def blocking(self, numbers: Numbers) -> None:
        actor = broker.get_actor(self.task)
        for n in numbers:
            actor.send(n)

    def work(self, concurrency: int) -> None:
        dramatiq.Worker(broker, worker_threads=8 if self.task == "noop" else concurrency).start()
        threading.Event().wait()


main(DramatiqDriver())
