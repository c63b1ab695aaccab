"""How a job ended, concluded from what it left on the server, and from what its handle knows of it."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from windlass.values.job import Ending, JobRecord, Result, Sighting, State


class Mark(IntEnum):
    """What a job leaves that did not complete. The numbers are stored (see `ended` in storage/native/README.md)."""

    CANCELLED = 0
    EXPIRED = 1
    DIED = 2
    BROKE = 3
    BLOCKED_CANCELLED = 4  # the blocked job of this id was cancelled; the one that ran before it went on
    BLOCKED_EXPIRED = 5  # the same, but it expired
    GOES_ON = 6  # no end: the job that was blocked behind a dead one of this id runs; the dead record is not its own
    LOST = 7  # the server had lost its data


_ENDINGS_OF_BLOCKED = {Mark.BLOCKED_CANCELLED: Ending.CANCELLED, Mark.BLOCKED_EXPIRED: Ending.EXPIRED}
_ENDINGS = {
    Mark.CANCELLED: Ending.CANCELLED,
    Mark.EXPIRED: Ending.EXPIRED,
    Mark.DIED: Ending.DEAD,
    Mark.BROKE: Ending.BROKEN,
    Mark.LOST: Ending.UNKNOWN,
}


class Remains(Struct, frozen=True):
    """What is left of a job: its result or its mark, or for a failed one both.

    `on_queue`: a job with this id waits or runs. `has_record`: one is dead or broken.
    The rest is about the queue, and tells whether it may have forgotten how a job ended.
    """

    result: Result | None
    mark: Mark | None
    on_queue: bool
    has_record: bool
    epoch: int
    step: int
    purged_at_step: int  # 0: never
    data_losses: int

    def complete_since(self, sighting: Sighting) -> bool:
        """Whether every end since then has left its trace, except that of a completed job."""
        return (
            self.epoch == sighting.epoch
            and self.step >= sighting.step >= self.purged_at_step
            and self.data_losses == sighting.data_losses
        )


def newer_result(result: Result | None, mark: Mark | None) -> Result | None:
    """The result beside a mark, unless it is that of an earlier job with the same id.

    A completed job takes the mark away if its result is kept. A failed one leaves both.
    """
    is_failure = mark is Mark.DIED and result is not None and not result.succeeded
    return result if mark is None or is_failure else None


def own_record(
    record: JobRecord | None, remains: Remains, sighting: Sighting | None, *, was_blocked: bool
) -> JobRecord | None:
    """The dead or broken job with the id of a job, unless it is an earlier job.

    `sighting` is when the job's handle last knew it on the queue. `was_blocked`: it waited behind a job with the same
    id.
    """
    if was_blocked and remains.mark is Mark.GOES_ON:
        return None
    if record is None or record.died_at is None or sighting is None or sighting.wall is None:
        return record
    return record if record.died_at >= sighting.wall else None


def conclude(
    record: JobRecord | None, remains: Remains, sighting: Sighting | None, *, was_blocked: bool, marks_last: bool
) -> Ending:
    """How a job ended that is not on the queue any more. `record` is its own record, if it is dead or broken.

    `marks_last` says that a mark made since the sighting still stands.
    """
    result, mark = remains.result, remains.mark
    if result is not None and result.succeeded:
        return Ending.COMPLETED
    if record is not None:
        return Ending.BROKEN if record.state is State.BROKEN else Ending.DEAD
    if result is not None:
        return Ending.DEAD
    if mark in _ENDINGS_OF_BLOCKED:
        return _ENDINGS_OF_BLOCKED[mark] if was_blocked else Ending.UNKNOWN
    if mark in _ENDINGS:
        return _ENDINGS[mark]
    if sighting is None or not marks_last or remains.on_queue or not remains.complete_since(sighting):
        return Ending.UNKNOWN
    return Ending.COMPLETED
