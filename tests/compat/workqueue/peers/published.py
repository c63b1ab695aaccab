"""A peer with the published Python client."""

from __future__ import annotations

import sys
import time

import redis
from redis_work_queue import Item, KeyPrefix, WorkQueue  # type: ignore[import-untyped]

from tests.compat.workqueue.peers.journal import CLEAN_EVERY, LEASE_SECONDS, Journal, Stop, data_of


def main(role: str, url: str, prefix: str, journal_path: str, count: str = "0") -> None:
    stop, journal = Stop(), Journal(journal_path)
    db, queue = redis.Redis.from_url(url), WorkQueue(KeyPrefix(prefix))
    db.ping()
    journal.write("r", "")
    if role == "add":
        for n in range(int(count)):
            id = f"published-{n}"
            queue.add_item(db, Item(data_of(id), id=id))
            journal.write("a", id)
    while role == "clean" and not stop.said:
        queue.light_clean(db)
        journal.write("c", "")
        time.sleep(CLEAN_EVERY)
    while role == "work" and not stop.said:
        item = queue.lease(db, LEASE_SECONDS, timeout=1)
        if item is None:
            continue
        if not item.data():  # no item, says the document; this client gives it out
            queue.complete(db, item)
            journal.write("0", item.id())
            continue
        if item.data() != data_of(item.id()):
            journal.write("!", item.id())
        journal.write("+" if queue.complete(db, item) else "-", item.id())


if __name__ == "__main__":
    main(*sys.argv[1:])
