"""The common part of the layouts of other systems: a ledger beside their keys, and the scripts that use both."""

from windlass.storage.compat.base.layout import ForeignLayout

__all__ = ["ForeignLayout"]
