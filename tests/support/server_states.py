"""Support for tests of servers in unusual states: a queue on any URL, sync or async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.support.faces import FACES, Face
from windlass import Queue, Windlass

BOTH_FACES = pytest.mark.parametrize("face", FACES, ids=["blocking", "awaitable"])
PASSWORD = "hunter2-7f3a"


@contextmanager
def queue_on(url: str, face: type[Face] = FACES[0], name: str = "states", **options: Any) -> Iterator[Queue]:
    """A queue of a new app, through one of its two faces."""
    with Windlass(url, **{"retry_for": 5, **options}) as app:
        shown = face(app.queue(name))
        try:
            yield cast(Queue, shown)
        finally:
            shown.close()
