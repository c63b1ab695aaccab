"""Polling for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    check: Callable[[], T | None],
    what: str,
    *,
    timeout: float = 15.0,
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
