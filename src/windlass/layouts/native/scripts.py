"""The Lua scripts of the native layout, each with the prelude put in behind its first line."""

from __future__ import annotations

from importlib.resources import files

from windlass.layout import Script

_FOLDER = files("windlass.layouts.native") / "lua"
_PRELUDE = (_FOLDER / "prelude.lua").read_text("utf-8")


def _load(name: str) -> Script:
    shebang, _, body = (_FOLDER / f"{name}.lua").read_text("utf-8").partition("\n")
    return Script(f"native/{name}", f"{shebang}\n{_PRELUDE}\n{body}")


ENQUEUE = _load("enqueue")
TURN = _load("turn")
EXTEND = _load("extend")
BEAT = _load("beat")
PROGRESS = _load("progress")
CANCEL = _load("cancel")
PAUSE = _load("pause")
PURGE = _load("purge")
AUDIT = _load("audit")
GOODBYE = _load("goodbye")
COUNTS = _load("counts")
GET = _load("get")
PAGE = _load("page")

ALL = (ENQUEUE, TURN, EXTEND, BEAT, PROGRESS, CANCEL, PAUSE, PURGE, AUDIT, GOODBYE, COUNTS, GET, PAGE)
