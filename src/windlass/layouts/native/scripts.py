"""The Lua scripts of the native layout. A script says in its second line which shared parts it uses; they are put in
behind its first line, so each script is one constant text with one hash, and no longer than it must be.
"""

from __future__ import annotations

import re
from importlib.resources import files

from windlass.layout import Script

_FOLDER = files("windlass.layouts.native") / "lua"
_ALWAYS = ("keys", "clock")
_IN_ORDER = (
    "operations", "meta", "leases", "changes", "watching", "wake", "waiting", "arrivals", "endings", "drift", "rows",
    "schedules",
)  # fmt: skip


def _load(name: str) -> Script:
    shebang, _, body = (_FOLDER / f"{name}.lua").read_text("utf-8").partition("\n")
    uses = re.match(r"-- uses (.*)\n", body)
    wanted = set(uses[1].split() if uses else ())
    assert wanted <= set(_IN_ORDER), f"{name}.lua uses an unknown part"
    parts = [*_ALWAYS, *(part for part in _IN_ORDER if part in wanted)]
    shared = [(_FOLDER / "shared" / f"{part}.lua").read_text("utf-8") for part in parts]
    return Script(f"native/{name}", "\n".join([shebang, *shared, body]))


def _load_alone(name: str) -> Script:
    """A script that is about no queue, and so has no use for the shared parts."""
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

ALL = (
    ENQUEUE, TURN, EXTEND, BEAT, PROGRESS, CANCEL, PAUSE, PURGE, AUDIT, GOODBYE, COUNTS, GET, PAGE,
    UNPARK, REVIVE, WATCH, OUTBOX, FORWARD, RESULT, SCHEDULE, TICK, SCHEDULES,
)  # fmt: skip

FLEET_BEAT = _load_alone("fleet_beat")
FLEET_LIST = _load_alone("fleet_list")

FLEET = (FLEET_BEAT, FLEET_LIST)

RIGHTS = _load_alone("rights")  # loaded by who asks it
