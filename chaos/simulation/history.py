"""The history of a run: lines of text in order, and one digest of all."""

from __future__ import annotations

from hashlib import sha256


class History:
    """The events of one run. Equal seeds give equal lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, now_ns: int, who: str, what: str) -> None:
        """Add one event: its actor and its text, at this virtual time."""
        self.lines.append(f"{now_ns / 1e9:.6f} {who}: {what}")

    @property
    def digest(self) -> str:
        """A digest of all events."""
        return sha256("\n".join(self.lines).encode()).hexdigest()[:16]

    def about(self, jobs: tuple[str, ...], most: int = 40) -> list[str]:
        """The last events; only those of these jobs, if any are named."""
        wanted = [line for line in self.lines if any(job in line for job in jobs)] if jobs else self.lines
        return wanted[-most:]
