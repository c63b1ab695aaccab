"""The layout of Redis Work Queue (PyPI `redis-work-queue`, npm `@mevitae/redis-work-queue`): a queue is a key prefix.

| key | type | holds |
|---|---|---|
| `<prefix>:queue` | list | ids that wait; pushed left, leased from the right |
| `<prefix>:processing` | list | ids that are worked on, or were abandoned |
| `<prefix>:item:<id>` | string | the data, as given; an item is there as long as this key is |
| `<prefix>:lease:<id>` | string, expires | the session that works on it, 32 hex digits: the document's key |
| `<prefix>:leased_by_session:<id>` | string, expires | the same: the key of the packages 0.1.x |
| `<prefix>:cleaning` | list | ids in the hands of a cleaner of the packages 0.1.x; we only mend it |

The packages that can be installed (0.1.x) differ from the document, and from the later sources, in two things: the
name of the lease key, and what decides who completed an item: that it was still in `processing`, instead of its data.
Neither sort of peer looks at the other's lease. So that both can work beside us, a lease of ours is in both keys,
either key counts as a lease, and an item is ours to settle only while neither key is another's, its data is there and
it is in `processing`.

Decided where the document leaves it open:

* An id that is there already is kept as it is, and the receipt says so (`kept`).
* A lease that was lost settles nothing: `complete` is true once for an item, for who still holds it.
* An abandoned item returns to the back (the document: "to the end of the main queue"); one that is given back by its
  own worker returns to the front.
* The published clients move an item to `processing` and set its lease a moment later. The sweep of a turn therefore
  takes an item without a lease back only when it finds it so for a second; `clean()` does at once.
* An id in the queue that has a lease was added twice, or a cleaner took it back too early. It is not leased again but
  put to `processing`, where who works on it can complete it, and from where it comes back when that lease ends.
  A purge of what waits does the same: its data and its lease belong to who works on it.
* A cleaner of the packages that dies leaves ids in `cleaning`. The sweep takes back what is nowhere else, and takes
  away what is done, which the next such cleaner would put on the queue again.
* A lease of ours that ran out unnoticed is good again when the item was meanwhile taken back, leased and given up by
  others, and no Windlass program saw anything of it: `complete` is then true for us, and still only once.
* There is no place for what failed: `fail` completes the item, as the document advises, and the worker logs why.
"""

from __future__ import annotations

from windlass.storage.compat.base import ForeignLayout


class WorkQueueLayout(ForeignLayout):
    """One queue of Redis Work Queue."""

    name = "workqueue"
    audit_parts: tuple[str, ...] = ("items", "queue", "processing", "runs", "held")

    def waits_at(self) -> str:
        return f"{self.queue}:queue"

    def own_keys(self) -> tuple[str, ...]:
        return (f"{self.queue}:queue", f"{self.queue}:processing", f"{self.queue}:cleaning")
