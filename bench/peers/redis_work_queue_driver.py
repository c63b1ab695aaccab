"""redis-work-queue's published client in a loop of lease, job, complete."""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, unused-ignore"

from __future__ import annotations

import json
import threading
import time

from redis import Redis
from redis_work_queue import Item, KeyPrefix, WorkQueue

from bench.peers.driving import NAP, POOL_URL, Driver, Numbers, began, handled, main

queue = WorkQueue(KeyPrefix("bench"))


class WorkQueueDriver(Driver):
    """One thread where jobs take no time, else as many as jobs are to run at a time."""

    def __init__(self) -> None:
        self.db = Redis.from_url(POOL_URL)

    def blocking(self, numbers: Numbers) -> None:
        for n in numbers:
            queue.add_item(self.db, Item(json.dumps({"n": n})))

    def bulk(self, numbers: Numbers) -> None:
        for batch in numbers.batches():
            pipeline = self.db.pipeline()
            for n in batch:
                queue.add_item_to_pipeline(pipeline, Item(json.dumps({"n": n})))
            pipeline.execute()

    def work(self, concurrency: int) -> None:
        threads = 1 if self.task == "noop" else concurrency
        for _ in range(threads - 1):
            threading.Thread(target=self._work, daemon=True).start()
        self._work()

    def _work(self) -> None:
        naps = self.task == "nap"
        while True:
            item = queue.lease(self.db, 60, timeout=1)
            if item is None:
                continue
            number = json.loads(item.data())["n"]
            if naps:
                began()
                time.sleep(NAP)
            handled(number)
            queue.complete(self.db, item)


main(WorkQueueDriver())
