"""Random ids: letters and digits only, 16 characters, about 95 bits."""

from __future__ import annotations

import os
from base64 import b64encode

_BYTES, _CHARACTERS = 12, 16


def random_id() -> str:
    """A new id."""
    return random_ids(1)[0]


def random_ids(count: int) -> list[str]:
    """Many new ids, with one request for randomness."""
    # The two symbols of base64 become letters: ids stay whole on a double click and never begin with a hyphen.
    text = b64encode(os.urandom(_BYTES * count), altchars=b"Wi").decode()
    return [text[i : i + _CHARACTERS] for i in range(0, len(text), _CHARACTERS)]
