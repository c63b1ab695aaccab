"""Windlass's own layout: everything that any of the others can do, in one cluster slot a queue."""

from windlass.storage.native.layout import NativeLayout

__all__ = ["NativeLayout"]
