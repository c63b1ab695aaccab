"""Redis Work Queue: leases, five languages, one layout."""

from windlass.layouts.workqueue.layout import WorkQueueLayout

__all__ = ["WorkQueueLayout"]
