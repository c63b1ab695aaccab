"""A peer with Windlass."""

from __future__ import annotations

import sys
import time

from tests.compat.workqueue.peers.journal import CLEAN_EVERY, LEASE_SECONDS, Journal, Stop, data_of
from windlass import RawJob, Windlass


def main(role: str, url: str, prefix: str, journal_path: str, count: str = "0") -> None:
    stop, journal = Stop(), Journal(journal_path)
    with Windlass(url) as app:
        queue = app.queue(prefix, layout="workqueue")
        queue.counts()
        journal.write("r", "")
        if role == "add":
            ids = [f"windlass-{n}" for n in range(int(count))]
            for start in range(0, len(ids), 20):
                for receipt in queue.enqueue_many(RawJob(data_of(id), id=id) for id in ids[start : start + 20]):
                    journal.write("a", receipt.id)
        while role == "clean" and not stop.said:
            queue.clean()
            journal.write("c", "")
            time.sleep(CLEAN_EVERY)
        while role == "work" and not stop.said:
            lease = queue.lease(LEASE_SECONDS, wait=1)
            if lease is None:
                continue
            if lease.data != data_of(lease.id):
                journal.write("!", lease.id)
            journal.write("+" if queue.complete(lease) else "-", lease.id)


if __name__ == "__main__":
    main(*sys.argv[1:])
