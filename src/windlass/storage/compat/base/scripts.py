"""The Lua scripts of a foreign layout: the ledger, then the layout's own part, then one of the verbs.

The verbs `audit` and `inspect` also have the problems.lua of the ledger and of the layout, which compare the keys. The
names of the constants of storage/formats.py are replaced by their values.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from windlass.storage.formats import SHARED_CONSTANTS
from windlass.storage.lua import add_records, refuse_redefinition, replace_names
from windlass.storage.port import Script

_FOLDER = files("windlass.storage.compat.base") / "lua"
_AUDITS = ("audit", "inspect")


@cache
def script(layout: str, verb: str) -> Script:
    """The script for a verb of a layout, either its own or the common one: a constant text with one hash."""
    folder = files(f"windlass.storage.compat.{layout}")
    source = folder / f"{verb}.lua"
    shebang, _, body = (source if source.is_file() else _FOLDER / f"{verb}.lua").read_text("utf-8").partition("\n")
    ledger = (_FOLDER / "ledger.lua").read_text("utf-8")
    own = (folder / f"{layout}.lua").read_text("utf-8")
    parts = [place / "problems.lua" for place in (_FOLDER, folder)] if verb in _AUDITS else []
    problems = [part.read_text("utf-8") for part in parts if part.is_file()]
    text = "\n".join([ledger, own, *problems, body])
    refuse_redefinition(layout, text, SHARED_CONSTANTS)
    return Script(f"{layout}/{verb}", f"{shebang}\n{replace_names(SHARED_CONSTANTS, add_records(text), comments=True)}")
