"""Marks: how jobs ended that did not complete. They end by themselves after a day, as kept results do."""

from __future__ import annotations

import re
from typing import Any

from windlass.storage.formats import MARK_TTL_MS

_ENDS_BY_ITSELF = re.compile(rb"windlass[^:{}]*:\{[^{}]+\}:(?:result:|ended$)")


def is_mark(client: Any, key: bytes) -> bool:
    """Whether a key holds a result or marks, and ends in time."""
    return _ENDS_BY_ITSELF.match(key) is not None and 0 < client.pttl(key) <= MARK_TTL_MS
