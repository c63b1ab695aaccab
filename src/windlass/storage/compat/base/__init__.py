"""What the layouts of other systems have in common: a ledger beside their keys, and the scripts that drive them."""

from windlass.storage.compat.base.layout import ForeignLayout

__all__ = ["ForeignLayout"]
