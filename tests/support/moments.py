"""Moments that a test expects, however slow the machine is."""

from __future__ import annotations

import time
from typing import Any

import pytest

DOUBT_S = 4.0  # how far a queue's clock may be from ours, for a jump of the clock that a test made


def since(began: float, seconds: float, doubt: float = DOUBT_S) -> Any:
    """A moment `seconds` after one that lay between `began` and now."""
    now = time.time()
    return pytest.approx((began + now) / 2 + seconds, abs=(now - began) / 2 + doubt)
