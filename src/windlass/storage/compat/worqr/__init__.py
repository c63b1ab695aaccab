"""Worqr: peer-to-peer, atomic, without envelopes."""

from windlass.storage.compat.worqr.layout import WorqrLayout

__all__ = ["WorqrLayout"]
