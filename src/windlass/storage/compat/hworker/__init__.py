"""hworker: results, a monitor, and a place for what cannot be read."""

from windlass.storage.compat.hworker.layout import HworkerLayout

__all__ = ["HworkerLayout"]
