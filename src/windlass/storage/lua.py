"""Prepares a Lua script for the server: replaces the names of constants, and adds the functions of packed records."""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass.storage.formats import record_functions

_RECORD = re.compile(r"^ *-- record ([A-Z_]+)$", re.MULTILINE)
_TOKEN = re.compile(r"'(?:[^'\\\n]|\\.)*'|--[^\n]*|(?<![.\w])[A-Z][A-Z_]*(?!\w)")
_DEFINED = re.compile(r"^ *local ([A-Z_]+(?:, [A-Z_]+)*) =", re.MULTILINE)


def add_records(text: str) -> str:
    """Replace each line `-- record NAME` by the functions that pack and unpack that record."""
    return _RECORD.sub(lambda found: record_functions(found[1]), text)


def tokens_of(text: str) -> set[str]:
    """The names in capitals that a text uses, among other tokens."""
    return {found[0] for found in _TOKEN.finditer(text)}


def replace_names(values: Mapping[str, str], text: str, *, comments: bool = False) -> str:
    """Replace names in capitals by their values, outside strings and comments. Drops comments unless told."""

    def token(found: re.Match[str]) -> str:
        word = found[0]
        if word.startswith("--"):
            return word if comments else ""
        return values.get(word, word)

    return _TOKEN.sub(token, text)


def refuse_redefinition(name: str, text: str, values: Mapping[str, str]) -> None:
    """Raise if a script defines a constant that Python defines for it."""
    defined = {each for names in _DEFINED.findall(text) for each in names.split(", ")}
    if twice := defined & values.keys():
        raise ValueError(f"{name} defines {', '.join(sorted(twice))}, which storage/formats.py defines")
