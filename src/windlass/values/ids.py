"""Random ids: letters and digits only, 16 characters, about 95 bits."""

from __future__ import annotations

from base64 import b64encode
from os import getpid, register_at_fork, urandom

_ID_BYTES, _ID_CHARACTERS = 12, 16
_POOL_SIZE = 64  # ids made at once: one system call for all
_pool: list[str] = []
_pool_pid = 0  # the process that filled the pool
register_at_fork(after_in_child=_pool.clear)  # in a pid namespace, a child may have its parent's pid


def random_id() -> str:
    """Return a new id from a pool. A forked child drops its parent's pool, so that no id comes twice."""
    global _pool_pid
    if _pool_pid != getpid():
        _pool.clear()
        _pool_pid = getpid()
    try:
        return _pool.pop()
    except IndexError:
        id, *others = random_ids(_POOL_SIZE)
        _pool.extend(others)
        return id


def random_ids(count: int) -> list[str]:
    """Return many new ids, with one system call."""
    # Letters replace the two symbols of base64: a double click selects the whole id, and none begins with a hyphen.
    text = b64encode(urandom(_ID_BYTES * count), altchars=b"Wi").decode()
    return [text[i : i + _ID_CHARACTERS] for i in range(0, len(text), _ID_CHARACTERS)]
