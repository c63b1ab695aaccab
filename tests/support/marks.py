"""Marks: how jobs ended that neither completed nor left anything else. They end by themselves after a day."""

from __future__ import annotations

import re
from typing import Any

from windlass.storage.formats import MARK_TTL_MS

_RESULT = re.compile(rb"windlass:\{[^{}]+\}:result:")


def is_mark(client: Any, key: bytes) -> bool:
    """Whether a key is a result or a mark that ends in time."""
    return _RESULT.match(key) is not None and 0 < client.pttl(key) <= MARK_TTL_MS
