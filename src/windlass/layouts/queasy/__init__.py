"""Queasy: scheduled, retried, singleton jobs."""

from windlass.layouts.queasy.layout import QueasyLayout

__all__ = ["QueasyLayout"]
