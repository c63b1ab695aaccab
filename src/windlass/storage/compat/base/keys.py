"""The keys of the ledger that Windlass keeps beside those of another system: the only place where they are spelled."""

from __future__ import annotations

PREFIX = "windlass"


def ledger_keys(layout: str, queue: str) -> tuple[str, str, str]:
    """State, runs and holders. The braces put them into the slot of a queue that is named in braces itself."""
    state, runs, holders = (ledger_key(layout, queue, name) for name in ("state", "runs", "holders"))
    return state, runs, holders


def ledger_key(layout: str, queue: str, name: str) -> str:
    """One key of ours beside those of a queue."""
    return f"{PREFIX}:{{{queue}}}:{layout}:{name}"


def wake_channel(layout: str, queue: str) -> str:
    """Where Windlass programs tell each other that a queue has work; peers of another make do not speak here."""
    return f"{PREFIX}:wake:{{{queue}}}:{layout}"


def cancel_channel(holder: str) -> str:
    """Where a holder hears of its running jobs that were cancelled."""
    return f"{PREFIX}:cancel:{holder}"
