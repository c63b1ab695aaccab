"""Parsing of packed requests: commands, and the scripts that they call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hiredis import Reader

from windlass.storage.port import Script

_QUEUE_IN_KEY = slice(len("windlass:{"), None)


@dataclass(frozen=True, slots=True)
class ScriptCall:
    """One EVALSHA: the script by its short name, the queue, and its arguments."""

    script: str
    queue: str
    args: list[bytes]


def unpack(packed: bytes) -> list[list[bytes]]:
    """The commands of a request. Requests have the format of an answer, so the reply parser reads them."""
    reader = Reader()
    reader.feed(packed)
    commands: list[list[bytes]] = []
    while (command := reader.gets()) is not False:
        commands.append(command)
    return commands


def script_call(command: list[bytes], names: dict[bytes, str]) -> ScriptCall | None:
    """The script call, named by its sha; None for any other command."""
    if command[0] != b"EVALSHA":
        return None
    keys = int(command[2])
    queue = command[3].decode()[_QUEUE_IN_KEY].partition("}")[0]
    return ScriptCall(names[command[1]], queue, command[3 + keys :])


def names_of(scripts: Iterable[Script]) -> dict[bytes, str]:
    """Map shas to the short names of scripts."""
    return {script.sha.encode(): script.name.rpartition("/")[2] for script in scripts}
