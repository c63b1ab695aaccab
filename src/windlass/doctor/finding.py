"""`Finding`: the result of a check."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Level = Literal["ok", "note", "warning", "danger", "unseen"]

# Higher is worse. "unseen" (the user may not read a setting) is no worse than a note.
SEVERITY: dict[str, int] = {"ok": 0, "unseen": 1, "note": 1, "warning": 2, "danger": 3}


class Finding(Struct, frozen=True):
    """One result on one server: its level, what was found, and what to do about it."""

    check: str
    level: Level
    what: str
    remedy: str = ""
    server: str = ""


def ok(check: str, what: str) -> Finding:
    """No problem."""
    return Finding(check, "ok", what)


def note(check: str, what: str, remedy: str = "") -> Finding:
    """Worth knowing; no action needed."""
    return Finding(check, "note", what, remedy)


def warning(check: str, what: str, remedy: str) -> Finding:
    """Something should be done."""
    return Finding(check, "warning", what, remedy)


def danger(check: str, what: str, remedy: str) -> Finding:
    """Jobs may be lost, or cannot run."""
    return Finding(check, "danger", what, remedy)
