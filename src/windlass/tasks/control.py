"""`Retry`, `Snooze` and `Failure`: a task or handler raises or returns one to decide what happens to its job."""

from __future__ import annotations

from windlass.errors import InvalidTime
from windlass.values.durations import Duration, Moment, run_time


class Retry(Exception):
    """Raise or return this to retry the job: after its backoff, after `delay`, or at a time (`at`).

    It counts as a failure. `when` holds the time: `None` (backoff), ("at", ms since 1970) or ("in", ms from now).
    """

    def __init__(self, message: str = "", *, delay: Duration | None = None, at: Moment | None = None) -> None:
        self.message = str(message)
        self.when = None if delay is None and at is None else _when("Retry", delay, at)
        super().__init__(self.message)


class Snooze(Exception):
    """Raise or return this to put the job off: it runs again after `delay`, or at a time (`at`).

    It is not a failure. After `max_snoozes` of them (1,000), the next one fails the job for good.
    """

    def __init__(self, message: str = "", *, delay: Duration | None = None, at: Moment | None = None) -> None:
        if delay is None and at is None:
            raise InvalidTime('Snooze needs a time: Snooze(delay="5m"), or at=…')
        self.message = str(message)
        self.when = _when("Snooze", delay, at)
        super().__init__(self.message)


class Failure(Exception):
    """Raise or return this to fail the job for good, without a retry."""

    def __init__(self, message: str = "") -> None:
        self.message = str(message)
        super().__init__(self.message)


def _when(what: str, delay: Duration | None, at: Moment | None) -> tuple[str, int]:
    try:
        return run_time(at, delay) or ("in", 0)  # an explicit "at once" replaces the backoff
    except InvalidTime as error:
        raise InvalidTime(f"{what}: {error}".replace("run_at", "at")) from None
