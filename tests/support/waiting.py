"""Polling for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 60.0  # of one wait. Only a test that fails waits so long, so it says nothing of how fast a machine is
FOREVER_S = 3600.0  # longer than a test may last: what would end only then never ends


def wait_until(
    check: Callable[[], T | None],
    what: str,
    *,
    timeout: float = LIMIT_S,
    interval: float = 0.01,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """Poll `check` until it returns a true value, and return that; TimeoutError names `what`.

    Errors in `ignoring` count as not yet true.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = check()
        except ignoring:
            found = None
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(interval)
