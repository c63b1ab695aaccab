"""The layout of Redis Work Queue (PyPI `redis-work-queue`, npm `@mevitae/redis-work-queue`): a queue is a key prefix.

| key | type | holds |
|---|---|---|
| `<prefix>:queue` | list | ids that wait; pushed left, leased from the right |
| `<prefix>:processing` | list | ids that are worked on, or were abandoned |
| `<prefix>:item:<id>` | string | the data, as given; an item is there as long as this key is |
| `<prefix>:lease:<id>` | string, expires | the session that works on it: 32 hex digits |

Decided where the document leaves it open:

* An id that is there already is kept as it is, and the receipt says so (`kept`).
* A lease that was lost settles nothing: `complete` is true once for an item, for who still holds it.
* An abandoned item returns to the back (the document: "to the end of the main queue"); one that is given back by its
  own worker returns to the front.
* The published clients move an item to `processing` and set its lease a moment later. The sweep of a turn therefore
  takes an item without a lease back only when it finds it so a second time; `clean()` does at once.
* There is no place for what failed: `fail` completes the item, as the document advises, and the worker logs why.
"""

from __future__ import annotations

from windlass.layouts.foreign import ForeignLayout


class WorkQueueLayout(ForeignLayout):
    """One queue of Redis Work Queue."""

    name = "workqueue"
    audit_parts: tuple[str, ...] = ("items",)

    def own_keys(self) -> tuple[str, ...]:
        return (f"{self.queue}:queue", f"{self.queue}:processing")
