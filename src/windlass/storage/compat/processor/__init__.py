"""Processor Job Queue: a service that dispatches jobs to idle workers by messages, and its keys."""

from windlass.storage.compat.processor.layout import (
    ANY_QUEUE,
    LOST_AFTER_S,
    TICK_S,
    Dispatched,
    Listing,
    ProcessorLayout,
    unfinished_queue,
)

__all__ = ["ANY_QUEUE", "LOST_AFTER_S", "TICK_S", "Dispatched", "Listing", "ProcessorLayout", "unfinished_queue"]
