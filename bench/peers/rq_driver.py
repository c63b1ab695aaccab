"""RQ with its SimpleWorker, which does not fork for each job, results off."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import time

from redis import Redis
from rq import Queue, SimpleWorker

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main

connection = Redis.from_url(URL)
queue = Queue("bench", connection=connection)


def noop(n: int) -> None:
    handled(n)


def nap(n: int) -> None:
    began()
    time.sleep(NAP)
    handled(n)


class RqDriver(Driver):
    """One job at a time: more need more processes."""

    @property
    def function(self) -> str:
        return f"bench.peers.rq_driver.{self.task}"

    def blocking(self, numbers: Numbers) -> None:
        for n in numbers:
            queue.enqueue(self.function, n, result_ttl=0)

    def bulk(self, numbers: Numbers) -> None:
        for batch in numbers.batches():
            queue.enqueue_many([Queue.prepare_data(self.function, (n,), result_ttl=0) for n in batch])

    def work(self, concurrency: int) -> None:
        SimpleWorker([queue], connection=connection).work(logging_level="ERROR")


if __name__ == "__main__":
    main(RqDriver())
