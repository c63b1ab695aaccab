"""Huey on Redis with a blocking pop, results off."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import time

from huey import RedisHuey

from bench.peers.driving import NAP, POOL_URL, Driver, Numbers, began, handled, main

huey = RedisHuey("bench", url=POOL_URL, results=False)


@huey.task()
def noop(n: int) -> None:
    handled(n)


@huey.task()
def nap(n: int) -> None:
    began()
    time.sleep(NAP)
    handled(n)


TASKS = {"noop": noop, "nap": nap}


class HueyDriver(Driver):
    """Threads: two for jobs that only compute, else as many as jobs are to run at a time."""

    def blocking(self, numbers: Numbers) -> None:
        task = TASKS[self.task]
        for n in numbers:
            task(n)

    def work(self, concurrency: int) -> None:
        huey.create_consumer(workers=2 if self.task == "noop" else concurrency, periodic=False).run()


main(HueyDriver())
