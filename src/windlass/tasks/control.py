"""What a handler may say of its own job: try again, or give up. Raise a verdict or return it, both mean the same."""

from __future__ import annotations

from windlass.errors import InvalidTime
from windlass.values.durations import Duration, Moment, run_time


class Retry(Exception):
    """This attempt failed: try again after the job's backoff, after a `delay`, or at a moment (`at`).

    `when` is `None` (by the backoff), ("at", ms since 1970) or ("in", ms from now).
    """

    def __init__(self, message: str = "", *, delay: Duration | None = None, at: Moment | None = None) -> None:
        self.message = str(message)
        self.when = _when(delay, at)
        super().__init__(self.message)


class Failure(Exception):
    """The job failed for good: it is not tried again."""

    def __init__(self, message: str = "") -> None:
        self.message = str(message)
        super().__init__(self.message)


def _when(delay: Duration | None, at: Moment | None) -> tuple[str, int] | None:
    if delay is None and at is None:
        return None
    try:
        return run_time(at, delay) or ("in", 0)  # an explicit "at once" is not "by the backoff"
    except InvalidTime as error:
        raise InvalidTime(f"Retry: {error}".replace("run_at", "at")) from None
