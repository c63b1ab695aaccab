"""Queue names as people type them: patterns such as `mail-*`, and names that are wrong by a letter."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

_SIGNS = frozenset("*?[")  # no queue name contains one of them


def is_pattern(name: str) -> bool:
    """Whether a name stands for several queues."""
    return not _SIGNS.isdisjoint(name)


def matching(pattern: str, known: Iterable[str]) -> list[str]:
    """The names that a pattern stands for, sorted. A plain name stands for itself, known or not."""
    return sorted(each for each in known if fnmatchcase(each, pattern)) if is_pattern(pattern) else [pattern]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names that are nearest to a wrong one, or nothing."""
    near = get_close_matches(name, sorted(known), n=3)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
