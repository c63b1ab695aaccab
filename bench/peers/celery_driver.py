"""Celery on Redis, results off, without gossip, mingle and heartbeat."""
# mypy: disable-error-code="import-not-found, untyped-decorator, unused-ignore"

from __future__ import annotations

import os
import time

from celery import Celery

from bench.peers.driving import NAP, URL, Driver, Numbers, began, handled, main

app = Celery("bench", broker=URL)
app.conf.task_ignore_result = True
app.conf.worker_prefetch_multiplier = 4
app.conf.broker_connection_retry_on_startup = True


@app.task(name="noop")
def noop(n: int) -> None:
    handled(n)


@app.task(name="nap")
def nap(n: int) -> None:
    began()
    time.sleep(NAP)
    handled(n)


class CeleryDriver(Driver):
    """Its fastest pool for each: solo where jobs take no time, else threads."""

    def blocking(self, numbers: Numbers) -> None:
        task = app.tasks[self.task]
        for n in numbers:
            task.delay(n)

    def work(self, concurrency: int) -> None:
        pool = os.environ.get("BENCH_POOL") or ("solo" if self.task == "noop" else "threads")
        if pool == "solo":
            app.conf.worker_prefetch_multiplier = 400
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]
        app.worker_main(["worker", f"--pool={pool}", f"--concurrency={concurrency}", *quiet])


main(CeleryDriver())
