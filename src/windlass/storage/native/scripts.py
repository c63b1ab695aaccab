"""The Lua scripts of the native layout, each assembled into one constant text with one hash.

The second line of a script names the shared parts that it uses (`-- uses …`); they are inserted after its first line.
A line `-- uses here …` inserts parts inside a branch that only some calls take.

The server creates every function of a script again at each call that reaches it, so the functions that few calls need
are inside such branches. Names in capitals are replaced by their values: keys, the constants of storage/formats.py, and
constants that the script itself defines. Variable lookups are slow, so constants are inserted as
literals.
A line `-- record META` becomes the functions that pack and unpack that record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

from windlass.storage.formats import CONSTANTS
from windlass.storage.lua import add_records, refuse_redefinition, replace_names, tokens_of
from windlass.storage.native.keys import CHANNELS, NAMES, channel_in_lua
from windlass.storage.port import Script

_FOLDER = files("windlass.storage.native") / "lua"
_ALWAYS = ("keys", "clock")
_IN_ORDER = (
    *_ALWAYS, "operations", "meta", "dead_record", "leases", "changes", "publish_events", "marks", "wake", "place_job",
    "parked", "enqueue_one", "take_in", "finish_job", "problems", "job_rows", "schedules",
)  # fmt: skip


def _load(name: str) -> Script:
    shebang, _, body = (_FOLDER / f"{name}.lua").read_text("utf-8").partition("\n")
    uses = re.match(r"-- uses (.*)\n", body)
    head = _shared(_ALWAYS) + _shared(uses[1].split() if uses else ())
    body = re.sub(r"^ *-- uses here (.*)$", lambda here: _shared(here[1].split()), body, flags=re.MULTILINE)
    text, keys = _substitute(name, head + body)
    return Script(f"native/{name}", f"{shebang}\n{text}", keys)


def _shared(parts: Sequence[str]) -> str:
    """The texts of shared parts, each after the parts that it needs."""
    ordered = sorted(parts, key=_IN_ORDER.index)
    return "".join((_FOLDER / "shared" / f"{part}.lua").read_text("utf-8") + "\n" for part in ordered)


_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ((?:'[^'\n]*'|[\d^*+. ,])+?) *(?:--.*)?$\n", re.MULTILINE)
_SHARED = {**CONSTANTS, **{name: channel_in_lua(kind) for name, kind in CHANNELS.items()}}


def _substitute(name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """Replace constants and key names by their values and drop comments. Returns the text and the names of its keys.

    A script gets only the keys that it names, because each key of a call costs the server about a microsecond.
    """
    refuse_redefinition(name, text, _SHARED)
    text = add_records(text)
    tokens = tokens_of(text)
    keys = tuple(name for name in NAMES if name.upper() in tokens)
    values = _SHARED | {name.upper(): f"KEYS[{number}]" for number, name in enumerate(keys, 1)}
    values["KEYS_OF_QUEUE"] = str(len(keys))
    for names, given in _CONSTANTS.findall(text):
        values.update(zip(names.split(", "), given.split(", "), strict=True))
    return replace_names(values, _CONSTANTS.sub("", text)), keys


def _load_alone(name: str) -> Script:
    """Load a script that uses no shared parts and names its own keys."""
    text = (_FOLDER / f"{name}.lua").read_text("utf-8")
    refuse_redefinition(name, text, _SHARED)
    return Script(f"native/{name}", replace_names(_SHARED, text, comments=True))


ENQUEUE = _load("enqueue")
TURN = _load("turn")
EXTEND = _load("extend")
BEAT = _load("beat")
PROGRESS = _load("progress")
CANCEL = _load("cancel")
PAUSE = _load("pause")
PURGE = _load("purge")
AUDIT = _load("audit")
INSPECT = _load("inspect")  # rare, so not in ALL, which every connection loads
UNREGISTER = _load("unregister")
COUNTS = _load("counts")
GET = _load("get")
TAGS = _load("tags")  # rare, too
PAGE = _load("page")
UNPARK = _load("unpark")
REVIVE = _load("revive")
WATCH = _load("watch")
OUTBOX = _load("outbox")
FORWARD = _load("forward")
REMAINS = _load("remains")
SCHEDULE = _load("schedule")
TICK = _load("tick")
SCHEDULES = _load("schedules")

PROBE = _load_alone("probe")

ALL = (
    ENQUEUE, TURN, EXTEND, BEAT, PROGRESS, CANCEL, PAUSE, PURGE, AUDIT, UNREGISTER, COUNTS, GET, PAGE,
    UNPARK, REVIVE, WATCH, OUTBOX, FORWARD, REMAINS, SCHEDULE, TICK, SCHEDULES, PROBE,
)  # fmt: skip

PRESENCE_BEAT = _load_alone("presence_beat")
PRESENCE_LIST = _load_alone("presence_list")

PRESENCE = (PRESENCE_BEAT, PRESENCE_LIST)

RIGHTS = _load_alone("rights")  # rare, so its caller loads it
