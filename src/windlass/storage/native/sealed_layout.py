"""The native layout with seals. This file seals every payload on its way to the server and opens it on the way back.

A payload is sealed for its place: a job for its queue and id, a handed-over job for its own queue and id, a result
for its job, a schedule's record for its name. A lease whose payload does not open is not among the leases: it is
`undecodable`, with the reason, and will be settled as broken, or parked if another worker may have the key. A record
whose payload does not open has no data, and its message says why.

Nothing else needs a seal: retries, releases, dead records and revivals keep id and payload together inside the server,
and a job in the outbox is already sealed for its target queue. Without keys nothing is sealed, but a sealed payload is
refused: sealed bytes must not be used as data.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from msgspec import structs

from windlass.errors import Undecodable, UnsupportedByLayout
from windlass.storage.native import NativeLayout
from windlass.storage.native.records import failure_data_at
from windlass.storage.native.sealing import SEALED, UNSEALED, NoSuchKey, Purpose, Seal, purpose_of
from windlass.storage.port import NO_LEASES, Argument, Call, Enqueued, LeaseRequest, ScheduleBook, Turn
from windlass.values.ending import Remains
from windlass.values.job import Change, JobRecord, Lease, NewJob, Page, State
from windlass.values.outcome import Broken, Completed, HandOver, Outcome, UnknownTask
from windlass.values.schedule import Fired, StoredSchedule, StoredSchedules
from windlass.values.validation import MAX_BROKEN, MAX_DEAD, shortened


class SealedLayout(NativeLayout):
    """One queue in Windlass's own layout, with sealed payloads if the app has keys."""

    def __init__(
        self,
        queue: str,
        *,
        max_dead: int = MAX_DEAD,
        max_broken: int = MAX_BROKEN,
        namespace: str = "",
        seal: Seal = UNSEALED,
    ) -> None:
        super().__init__(queue, max_dead=max_dead, max_broken=max_broken, namespace=namespace)
        self._seal = seal
        assert self.schedules is not None
        self.schedules = SealedSchedules(self.schedules, queue, seal)

    # -- sealing -----------------------------------------------------------------------------------

    def enqueue(self, jobs: Sequence[NewJob]) -> Call[Enqueued]:
        if self._seal.changes(*[job.data for job in jobs]):
            jobs = [self._close_job(self.queue, job) for job in jobs]
        return super().enqueue(jobs)

    def push(self, job: NewJob) -> list[tuple[Argument, ...]]:
        if self._seal.is_on:
            raise UnsupportedByLayout(
                f"enqueue_in: queue {self.queue!r} signs or encrypts its jobs, and a job in a pipeline has no id yet "
                "to be sealed for. Use enqueue"
            )
        return super().push(job)

    def _close_job(self, queue: str, job: NewJob) -> NewJob:
        if not self._seal.changes(job.data):
            return job
        return structs.replace(job, data=self._seal.close(Purpose.JOB, queue, job.id, job.data))

    def _close_outcome(self, outcome: Outcome) -> Outcome:
        """Seal the result and the hand-overs of a completed job."""
        if not isinstance(outcome, Completed) or not (outcome.result or outcome.hand_overs):
            return outcome
        kept = outcome.result
        if kept is not None:
            kept = structs.replace(kept, data=self._seal.close(Purpose.RESULT, self.queue, outcome.lease.id, kept.data))
        hand_overs = tuple(HandOver(each.queue, self._close_job(each.queue, each.job)) for each in outcome.hand_overs)
        return structs.replace(outcome, result=kept, hand_overs=hand_overs)

    # -- sealing and opening -------------------------------------------------------------------------

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        call = super().turn([self._close_outcome(outcome) for outcome in outcomes], request)
        return structs.replace(call, read=lambda reply: self._open_turn(call.read(reply))) if request.want else call

    # -- opening -------------------------------------------------------------------------------------

    def _open_turn(self, turn: Turn) -> Turn:
        if not (self._seal.is_on or any(lease.marks or lease.data.startswith(SEALED) for lease in turn.leases)):
            return turn
        leases: list[Lease] = []
        undecodable: list[Broken | UnknownTask] = list(turn.undecodable)
        for lease in turn.leases:
            try:
                data = self._open(lease.id, lease.data, caught=lease.is_failure_job)
            except NoSuchKey as error:  # parked like a job with an unknown task: another worker may have the key
                undecodable.append(UnknownTask(structs.replace(lease, data=b""), f"({shortened(error.reason)})"))
            except Undecodable as error:
                bare = structs.replace(lease, data=b"")
                undecodable.append(Broken(bare, shortened(error.reason), error.worker_specific))
            else:
                leases.append(lease if data is lease.data else structs.replace(lease, data=data))
        return structs.replace(turn, leases=tuple(leases), undecodable=tuple(undecodable))

    def _open(self, id: str, data: bytes, *, caught: bool) -> bytes:
        """Open the data of a job. A failure job's data is a record of the server; its last part is sealed for the id of
        the job that failed.
        """
        if not caught:
            return self._open_job(id, data)
        found = failure_data_at(data)
        if found is None:
            raise Undecodable("refused: it is a failure job without the record of a failed job")
        failed, at = found
        sealed = data[at:]
        opened = self._open_job(failed, sealed)
        return data if opened is sealed else data[:at] + opened

    def _open_job(self, id: str, data: bytes) -> bytes:
        if purpose_of(data) is Purpose.TICK:
            return self._seal.open(Purpose.TICK, self.queue, schedule_of_job(id), data)
        return self._seal.open(Purpose.JOB, self.queue, id, data)

    def get(self, id: str) -> Call[JobRecord | None]:
        call = super().get(id)

        def read(reply: object) -> JobRecord | None:
            record = call.read(reply)
            return None if record is None else self._open_record(record)

        return structs.replace(call, read=read)

    def page(self, state: State, cursor: str | None, limit: int, tag: str | None = None) -> Call[Page]:
        """Open the jobs of a page. `held` returns such a page, too."""
        call = super().page(state, cursor, limit, tag)

        def read(reply: object) -> Page:
            page = call.read(reply)
            return Page(tuple(map(self._open_record, page.jobs)), page.cursor)

        return structs.replace(call, read=read)

    def _open_record(self, record: JobRecord) -> JobRecord:
        if not record.data:  # damaged, or empty
            return record
        failed = record.failed
        try:
            data = self._open(record.id, record.data, caught=failed is not None)
            if failed is not None:
                failed = structs.replace(failed, data=self._open_job(failed.id, failed.data))
        except Undecodable as error:
            told = record.message if record.state is State.BROKEN and record.message else error.reason
            failed = None if failed is None else structs.replace(failed, data=b"")
            return structs.replace(record, data=b"", message=told, failed=failed)
        if data is record.data:
            return record
        return structs.replace(record, data=data, failed=failed)

    def remains(self, id: str) -> Call[Remains]:
        """Open a return value. The message of a failed job is not sealed."""
        call = super().remains(id)

        def read(reply: object) -> Remains:
            remains = call.read(reply)
            result = remains.result
            if result is None or not result.succeeded:
                return remains
            try:
                data = self._seal.open(Purpose.RESULT, self.queue, id, result.data)
            except Undecodable as error:
                raise Undecodable(f"the result of job {id!r} of queue {self.queue!r}: {error.reason}") from None
            return structs.replace(remains, result=structs.replace(result, data=data))

        return structs.replace(call, read=read)


def schedule_of_job(id: str) -> str:
    """The name of the schedule that made a job with this id. Names of schedules contain no @."""
    return id.partition("@")[0]


# A sealed record keeps its beginning in the clear, where the scripts see whether the schedule is declared in code.
_SEALED_RECORD = re.compile(rb'(\{"version":\d+,"declared":(?:true|false),)"sealed":"([A-Za-z0-9+/=]+)"\}')
_BODY = b'"data":'


class SealedSchedules:
    """The stored schedules of a queue, with sealed records if the app has keys."""

    def __init__(self, book: ScheduleBook, queue: str, seal: Seal) -> None:
        self._book = book
        self._queue = queue
        self._seal = seal

    # -- sealing -----------------------------------------------------------------------------------

    def put(
        self, name: str, present: bytes | None, record: bytes, next_tick: int | None, *, keep_tick: bool
    ) -> Call[bool]:
        closed = self._close(name, record) if self._seal.is_on else record
        return self._book.put(name, present, closed, next_tick, keep_tick=keep_tick)

    def fire(
        self,
        row: StoredSchedule,
        now: int,
        next_tick: int,
        jobs: Sequence[tuple[str, Change]],
        data: bytes,
        *,
        last_tick: int | None,
        missed: int,
        dropped: int,
    ) -> Call[Fired]:
        closed = self._seal.close(Purpose.TICK, self._queue, row.name, data)
        return self._book.fire(row, now, next_tick, jobs, closed, last_tick=last_tick, missed=missed, dropped=dropped)

    def delete(self, name: str) -> Call[bool]:
        return self._book.delete(name)

    def _close(self, name: str, record: bytes) -> bytes:
        begins = record[: record.index(_BODY)]
        closed = self._seal.close(Purpose.SCHEDULE, self._queue, name, record)
        return begins + b'"sealed":"' + base64.b64encode(closed) + b'"}'

    # -- opening -------------------------------------------------------------------------------------

    def named(self, names: Sequence[str]) -> Call[StoredSchedules]:
        return self._opening(self._book.named(names))

    def page(self, cursor: str | None) -> Call[StoredSchedules]:
        return self._opening(self._book.page(cursor))

    def due(self, declared: Sequence[str], cursor: str | None) -> Call[StoredSchedules]:
        return self._opening(self._book.due(declared, cursor))

    def _opening(self, call: Call[StoredSchedules]) -> Call[StoredSchedules]:
        def read(reply: object) -> StoredSchedules:
            found = call.read(reply)
            return structs.replace(found, rows=tuple(map(self._open, found.rows)))

        return structs.replace(call, read=read)

    def _open(self, row: StoredSchedule) -> StoredSchedule:
        found = _SEALED_RECORD.fullmatch(row.record)
        if found is None and not self._seal.is_on:
            return row
        try:
            begins, sealed = (found[1], _decode(found[2])) if found else (b"", b"")
            record = self._seal.open(Purpose.SCHEDULE, self._queue, row.name, sealed)
            stale = not self._seal.is_current(sealed)
            if not record.startswith(begins):
                raise Undecodable("refused: its beginning was altered")
        except Undecodable as error:
            return structs.replace(row, record=b"", sealed=row.record, refused=error.reason)
        return structs.replace(row, record=record, sealed=row.record, stale=stale)


def _decode(text: bytes) -> bytes:
    """Decode a sealed record. Accepts only the canonical base64 of the bytes, so that a record has one form."""
    try:
        sealed = base64.b64decode(text)
    except ValueError:
        sealed = b""
    if base64.b64encode(sealed) != text:
        raise Undecodable("refused: its seal was altered")
    return sealed
