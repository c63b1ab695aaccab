"""Queasy: scheduled, retried, singleton jobs."""

from windlass.storage.compat.queasy.layout import QueasyLayout

__all__ = ["QueasyLayout"]
