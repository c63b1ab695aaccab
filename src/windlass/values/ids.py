"""Random ids: letters and digits only, 16 characters, about 95 bits."""

from __future__ import annotations

from base64 import b64encode
from os import getpid, register_at_fork, urandom

_BYTES, _CHARACTERS = 12, 16
_AHEAD = 64
_spare: list[str] = []  # ids that were made ahead
_maker = 0  # the process that made them
register_at_fork(after_in_child=_spare.clear)  # a child in a namespace of its own may have its parent's number


def random_id() -> str:
    """A new id. They are made some at a time; what a forked child finds made is its parent's, and not used."""
    global _maker
    if _maker != getpid():
        _spare.clear()
        _maker = getpid()
    try:
        return _spare.pop()
    except IndexError:
        id, *spare = random_ids(_AHEAD)
        _spare.extend(spare)
        return id


def random_ids(count: int) -> list[str]:
    """Many new ids, with one request for randomness."""
    # The two symbols of base64 become letters: ids stay whole on a double click and never begin with a hyphen.
    text = b64encode(urandom(_BYTES * count), altchars=b"Wi").decode()
    return [text[i : i + _CHARACTERS] for i in range(0, len(text), _CHARACTERS)]
