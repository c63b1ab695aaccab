"""The Lua scripts of the native layout. A script says in its second line which shared parts it uses; they are put in
behind its first line, so each script is one constant text with one hash, and no longer than it must be. What only some
of its calls need is put in where a line says `uses here`, inside the branch that needs it.

The server makes every function of a script anew at each call that comes by it. So functions are kept out of the way of
the calls that do without them, and names in capitals are put in as what they stand for, keys and constants alike: to
find the variables that functions share with each other took longer than all the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from windlass.storage.native.keys import NAMES
from windlass.storage.port import Script

_FOLDER = files("windlass.storage.native") / "lua"
_ALWAYS = ("keys", "clock")
_IN_ORDER = (
    *_ALWAYS, "operations", "meta", "leases", "changes", "watching", "wake", "waiting", "arrivals", "endings", "drift",
    "rows", "schedules",
)  # fmt: skip


def _load(name: str) -> Script:
    shebang, _, body = (_FOLDER / f"{name}.lua").read_text("utf-8").partition("\n")
    uses = re.match(r"-- uses (.*)\n", body)
    head = _shared(_ALWAYS) + _shared(uses[1].split() if uses else ())
    body = re.sub(r"^ *-- uses here (.*)$", lambda here: _shared(here[1].split()), body, flags=re.MULTILINE)
    text, keys = _put_in(head + body)
    return Script(f"native/{name}", f"{shebang}\n{text}", keys)


def _shared(parts: Sequence[str]) -> str:
    """The texts of shared parts, each behind those that it needs."""
    ordered = sorted(parts, key=_IN_ORDER.index)
    return "".join((_FOLDER / "shared" / f"{part}.lua").read_text("utf-8") + "\n" for part in ordered)


_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:'[^'\n]*'|[\d^*+. ,])+?) *(?:--.*)?$\n", re.MULTILINE)
_TOKEN = re.compile(r"'(?:[^'\\\n]|\\.)*'|--[^\n]*|(?<![.\w])[A-Z][A-Z_]*(?!\w)")


def _put_in(text: str) -> tuple[str, tuple[str, ...]]:
    """The text with what its constants and the names of its keys stand for, without comments; and those keys.

    Each key that a call names costs the server about a microsecond, so there are no others.
    """
    tokens = {found[0] for found in _TOKEN.finditer(text)}
    keys = tuple(name for name in NAMES if name.upper() in tokens)
    values = {name.upper(): f"KEYS[{number}]" for number, name in enumerate(keys, 1)}
    values["KEYS_OF_QUEUE"] = str(len(keys))
    for names, given in _CONSTANTS.findall(text):
        values.update(zip(names.split(", "), given.split(", "), strict=True))

    def token(found: re.Match[str]) -> str:
        return "" if found[0].startswith("--") else values.get(found[0], found[0])

    return _TOKEN.sub(token, _CONSTANTS.sub("", text)), keys


def _load_alone(name: str) -> Script:
    """A script that has no use for the shared parts."""
    return Script(f"native/{name}", (_FOLDER / f"{name}.lua").read_text("utf-8"))


ENQUEUE = _load("enqueue")
TURN = _load("turn")
EXTEND = _load("extend")
BEAT = _load("beat")
PROGRESS = _load("progress")
CANCEL = _load("cancel")
PAUSE = _load("pause")
PURGE = _load("purge")
AUDIT = _load("audit")
INSPECT = _load("inspect")  # seldom used, and so not among those that every connection has loaded
GOODBYE = _load("goodbye")
COUNTS = _load("counts")
GET = _load("get")
PAGE = _load("page")
UNPARK = _load("unpark")
REVIVE = _load("revive")
WATCH = _load("watch")
OUTBOX = _load("outbox")
FORWARD = _load("forward")
RESULT = _load("result")
SCHEDULE = _load("schedule")
TICK = _load("tick")
SCHEDULES = _load("schedules")

PROBE = _load_alone("probe")

ALL = (
    ENQUEUE, TURN, EXTEND, BEAT, PROGRESS, CANCEL, PAUSE, PURGE, AUDIT, GOODBYE, COUNTS, GET, PAGE,
    UNPARK, REVIVE, WATCH, OUTBOX, FORWARD, RESULT, SCHEDULE, TICK, SCHEDULES, PROBE,
)  # fmt: skip

PRESENCE_BEAT = _load_alone("presence_beat")
PRESENCE_LIST = _load_alone("presence_list")

PRESENCE = (PRESENCE_BEAT, PRESENCE_LIST)

RIGHTS = _load_alone("rights")  # loaded by who asks it
