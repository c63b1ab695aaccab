"""Windlass's own layout: it has every capability, and each queue uses one cluster slot."""

from windlass.storage.native.layout import NativeLayout

__all__ = ["NativeLayout"]
