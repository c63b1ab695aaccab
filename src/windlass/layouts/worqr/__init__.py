"""Worqr: peer-to-peer, atomic, without envelopes."""

from windlass.layouts.worqr.layout import WorqrLayout

__all__ = ["WorqrLayout"]
