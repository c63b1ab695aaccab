"""Must never be imported: an import leaves a trace. A job's name points here, and must not be followed."""

from __future__ import annotations

import os

if "WINDLASS_URL" in os.environ:  # not while pytest collects tests
    raise SystemExit("a name from a queue was imported")


def spring() -> None:
    """The function that a job names."""
