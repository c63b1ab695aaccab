"""hworker: results, a monitor, and a place for what cannot be read."""

from windlass.layouts.hworker.layout import HworkerLayout

__all__ = ["HworkerLayout"]
