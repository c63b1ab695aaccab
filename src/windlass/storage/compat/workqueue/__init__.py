"""Redis Work Queue: leases, five languages, one layout."""

from windlass.storage.compat.workqueue.layout import WorkQueueLayout

__all__ = ["WorkQueueLayout"]
