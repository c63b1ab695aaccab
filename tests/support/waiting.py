"""Waiting for what nobody announces: a condition is asked for until it holds."""

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
    """Polls `check` until it gives something true and returns that; TimeoutError names `what`.

    An error among `ignoring` counts as not yet.
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
