"""The layout of Redis Work Queue (PyPI `redis-work-queue`, npm `@mevitae/redis-work-queue`): a queue is a key prefix.

| key | type | holds |
|---|---|---|
| `<prefix>:queue` | list | waiting ids; pushed left, leased from the right |
| `<prefix>:processing` | list | ids that are leased, or were abandoned |
| `<prefix>:item:<id>` | string | the data; an item exists as long as this key does |
| `<prefix>:lease:<id>` | string, expires | the session that has the lease, 32 hex digits: the document's key |
| `<prefix>:leased_by_session:<id>` | string, expires | the same: the key of the packages 0.1.x |
| `<prefix>:cleaning` | list | ids that a cleaner of the packages 0.1.x is handling; Windlass only repairs it |

The published packages (0.1.x) differ from the document, and from the later sources, in two things: the name of the
lease key, and the test whether an item can be completed: its entry in `processing` instead of its data. Neither kind of
peer reads the other's lease. To work beside both, Windlass writes its leases to both keys and respects either key. It
settles an item only while neither key belongs to another session, the data exists and the id is in `processing`.

Decisions where the document is open:

* An enqueue with an existing id changes nothing, and the receipt says so (`kept`).
* A job that is added in a pipeline (`enqueue_in`) is written without a look, as by `add_unique_item`: an existing id is
  then twice in the queue, with the new data.
* A lost lease settles nothing: `complete` is true once per item, for the session that still has the lease.
* An abandoned item returns to the back (the document: "to the end of the main queue"); an item that its own worker
  releases returns to the front.
* The published clients move an item to `processing` and set its lease a moment later. So the sweep of a turn takes an
  item back only after it had no lease for a second; `clean()` does at once.
* An id in the queue with a lease was added twice, or a cleaner took it back too early. It is not leased again but moved
  to `processing`, where its worker can complete it; it comes back when that lease ends. A purge of waiting jobs
  does the same, because data and lease belong to that worker.
* A cleaner of the packages that dies leaves ids in `cleaning`. The sweep takes back ids that are nowhere else, and
  removes finished ones, which the next such cleaner would put into the queue again.
* An expired lease of Windlass becomes valid again if other programs took the item back, leased and abandoned it, and no
  Windlass program saw that: `complete` is then true for Windlass, and still only once.
* There is no place for failed items: `fail` completes the item, as the document advises, and the worker logs the error.
"""

from __future__ import annotations

from windlass.storage.compat.base import ForeignLayout
from windlass.storage.port import Argument
from windlass.values.job import NewJob


class WorkQueueLayout(ForeignLayout):
    """One queue of Redis Work Queue."""

    name = "workqueue"
    audit_parts: tuple[str, ...] = ("items", "queue", "processing", "runs", "held")

    def push(self, job: NewJob) -> list[tuple[Argument, ...]]:
        # The data first: a peer that finds the id must find the item.
        return [("SET", f"{self.queue}:item:{job.id}", job.data), ("LPUSH", self.waits_at(), job.id)]

    def waits_at(self) -> str:
        return f"{self.queue}:queue"

    def own_keys(self) -> tuple[str, ...]:
        return (self.waits_at(), f"{self.queue}:processing", f"{self.queue}:cleaning")
