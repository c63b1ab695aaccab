"""Processor Job Queue: a service that dispatches jobs to idle workers by messages, and its keys."""

from windlass.storage.compat.processor.layout import LOST_AFTER_S, TICK_S, Dispatched, Listing, ProcessorLayout

__all__ = ["LOST_AFTER_S", "TICK_S", "Dispatched", "Listing", "ProcessorLayout"]
