"""Nobody imports this: whoever does leaves a trace. A job's name leads here, and must not be followed."""

from __future__ import annotations

import os

if "WINDLASS_URL" in os.environ:  # not for those who only collect tests
    raise SystemExit("a name from a queue was imported")


def spring() -> None:
    """What a job asks for."""
