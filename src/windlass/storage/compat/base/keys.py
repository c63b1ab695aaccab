"""The keys of the ledger that Windlass keeps beside those of another system: the only place that spells them."""

from __future__ import annotations

PREFIX = "windlass"


def ledger_keys(layout: str, queue: str) -> tuple[str, str, str]:
    """State, runs and holders. The braces put them into the slot of a queue whose keys have its name in braces, too."""
    state, runs, holders = (ledger_key(layout, queue, name) for name in ("state", "runs", "holders"))
    return state, runs, holders


def ledger_key(layout: str, queue: str, name: str) -> str:
    """One key of the ledger of a queue."""
    return f"{PREFIX}:{{{queue}}}:{layout}:{name}"


def wake_channel(layout: str, queue: str) -> str:
    """The channel on which Windlass programs announce work to each other; other systems do not use it."""
    return f"{PREFIX}:wake:{{{queue}}}:{layout}"


def cancel_channel(holder: str) -> str:
    """The channel with the cancelled running jobs of a holder."""
    return f"{PREFIX}:cancel:{holder}"
