"""What a check says: a plain value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Level = Literal["ok", "note", "warning", "danger", "unseen"]

# The worse, the higher. What could not be seen is no worse than a note: it says how to see it.
GRAVITY: dict[str, int] = {"ok": 0, "unseen": 1, "note": 1, "warning": 2, "danger": 3}


class Finding(Struct, frozen=True):
    """One thing that was looked at, on one server: how it is, and what to do about it."""

    check: str
    level: Level
    what: str
    remedy: str = ""
    server: str = ""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, "ok", what)


def note(check: str, what: str, remedy: str = "") -> Finding:
    """Worth knowing; nobody has to do anything."""
    return Finding(check, "note", what, remedy)


def warning(check: str, what: str, remedy: str) -> Finding:
    """Something should be done."""
    return Finding(check, "warning", what, remedy)


def danger(check: str, what: str, remedy: str) -> Finding:
    """Jobs may be lost, or cannot be worked on."""
    return Finding(check, "danger", what, remedy)
