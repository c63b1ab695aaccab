"""The layout of Processor Job Queue: a job is a hash whose key is just its uuid, and a queue is a suffix of its keys.

| key | type | holds |
|---|---|---|
| `<uuid>` | hash | a job: `json` (its payload, one JSON object), then `dispatched_at`, `started_at`, `worker_uuid`, \
`finished_at` (times as ISO 8601 in UTC); `priority` if it is not 5 |
| `jobs_queued:<queue>` | list | waiting uuids; pushed left, taken from the right |
| `jobs_queued_<0…9>:<queue>` | list | the same for the priorities other than 5 |
| `jobs_dispatched:<queue>` | sorted set | uuids dispatched to a worker that has not accepted them yet → when |
| `jobs_processing:<queue>` | sorted set | uuids that a worker has accepted → its last sign of life |
| `jobs_progress:<queue>` | sorted set | the same uuids → progress, 0 to 1 |
| `jobs_finished:<queue>` | sorted set | finished uuids → when |
| `workers_last_seen:<queue>` | sorted set | workers → last sign of life |
| `workers_idle:<queue>`, `workers_busy:<queue>` | set | workers |

Scores that are times are seconds since 1970. A worker or job without a sign of life for 9 s (three ticks) is lost.

Decisions where the document is open:

* A lease of a Windlass worker is dispatched and accepted in one step; the worker is the lease's holder. Such workers
  are never in `workers_idle`: they lease jobs by themselves and would not hear a service that dispatches to them.
* For a lease that is not 9 s long, an earlier or later sign of life is written, so that peers see the same end.
* Lost jobs return to the front, in their old order: jobs of lost workers, and jobs that were not accepted in time. A
  worker that reports idle has dropped its job, which returns after 9 s without a sign of life. A job that was retried,
  or that crashed its process, goes to the back.
* A dispatched job that is not accepted yet keeps its worker busy, even if it reports idle: the two messages may have
  crossed.
* The published service replaces `json` by the text of `job_accepted`. Windlass keeps the original, because the job may
  have to be dispatched again; only `job_finished` replaces it.
* A job that ended after it was dispatched is finished, even if a peer that heard late of its acceptance lists it as
  processing. It is not queued again.
* Finished jobs are kept for a day, in case peers read them: the last `max_dead` and up to a tenth more. With 0
  none are kept. A job that a peer adds again is not finished any more.
* There is no place for failed jobs: `fail` finishes the job, and the worker logs the error.
* A uuid may be any text that is not the name of another key. It is one job on the whole server: adding it again, to any
  queue, changes nothing until it is finished.
* Peers of another system do not know the lists of the other priorities. A job that they put back waits at priority 5.
* `uuid`, `queue_name` and `priority` are inserted into a payload that lacks them, and removed again for a lease.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from windlass.errors import InvalidId, InvalidOption, InvalidPayload
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.port import Argument, Call, Capability
from windlass.values.job import NewJob, Page, State
from windlass.values.validation import MAX_DEAD

TICK_S = 3.0  # seconds
LOST_AFTER_S = 3 * TICK_S
Listing = Literal["queued", "dispatched", "processing", "workers"]

# One pattern finds the keys of lists and workers, and few others.
ANY_QUEUE = "[jw]o[br]*s_*:*"
_UNFINISHED = re.compile(r"(?:jobs_dispatched|jobs_processing|workers_last_seen):(.+)", re.DOTALL)

# The valid positions of a cursor; see page.lua.
_POSITIONS = {
    State.READY: re.compile(rb"(?:[1-9]|10) .+", re.DOTALL),
    State.RUNNING: re.compile(rb"[12] [0-9.e+]+ .+", re.DOTALL),  # the server writes some scores with an exponent
}
_RESERVED = re.compile(r"(jobs|workers)_[a-z_0-9]+:|windlass:")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Inserted fields follow a space that no encoder writes there, so that they can be told from given ones.
_TEXT = r'"(?:[^"\\]|\\.)*"'
_LONGEST_PUT_IN = 6000  # bytes: an id and a name, with every character escaped
_PUT_IN = re.compile(
    rf'(,?) (?:"uuid":{_TEXT}(,|\}}))?(?:"queue_name":{_TEXT}(,|\}}))?(?:"priority":\d(\}}))?\Z'.encode()
)


class Dispatched(msgspec.Struct, frozen=True):
    """A job that was dispatched to a worker, and the time of that (ISO 8601)."""

    worker: str
    id: str
    json: bytes
    at: str
    priority: int


class ProcessorLayout(ForeignLayout):
    """One queue of Processor Job Queue."""

    name = "processor"
    heartbeat: float | None = LOST_AFTER_S
    audit_parts: tuple[str, ...] = (
        "jobs",
        "queued",
        "dispatched",
        "processing",
        "progress",
        "finished",
        "runs",
        "held",
        "counters",
    )

    def __init__(self, queue: str, *, max_dead: int = MAX_DEAD) -> None:
        super().__init__(queue, max_dead=max_dead)
        self.setting = max_dead

    def own_keys(self) -> tuple[str, ...]:
        names = (
            "jobs_queued",
            "jobs_dispatched",
            "jobs_processing",
            "jobs_progress",
            "jobs_finished",
            "workers_last_seen",
            "workers_idle",
            "workers_busy",
            *(f"jobs_queued_{priority}" for priority in range(10) if priority != 5),
        )
        return tuple(f"{name}:{self.queue}" for name in names)

    def encode(self, job: NewJob) -> bytes:
        if _RESERVED.match(job.id):
            raise InvalidId(
                f"id {job.id!r} may be the name of another key (queue {self.queue!r}). Use another id, or none"
            )
        try:
            fields = _FIELDS.decode(job.data.decode())  # as text, so that skipped parts are checked to be UTF-8, too
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InvalidPayload(
                f"job {job.id!r} for queue {self.queue!r}: layout 'processor' needs a JSON object, and this payload is "
                f"not ({error}). Pass a dict to enqueue_json"
            ) from None
        put_in: list[bytes] = []
        wanted = {"uuid": job.id, "queue_name": self.queue, "priority": job.change.priority}
        for name, value in wanted.items():
            if name not in fields:
                put_in.append(b'"%s":%s' % (name.encode(), msgspec.json.encode(value)))
            elif _value(fields[name]) != value:
                raise InvalidPayload(
                    f"job {job.id!r} for queue {self.queue!r}: field {name} of the data is "
                    f"{bytes(fields[name]).decode(errors='replace')}, but the job's is {value!r}. Remove the field, or "
                    "make them equal"
                )
        if not put_in:
            return job.data
        body = job.data.rstrip().removesuffix(b"}")
        return b"%s%s %s}" % (body, b"," if fields else b"", b",".join(put_in))

    def decode(self, data: bytes) -> bytes:
        found = _PUT_IN.search(data, max(0, len(data) - _LONGEST_PUT_IN))
        return data[: found.start()] + b"}" if found and data.endswith(b"}") else data

    def page(self, state: State, cursor: str | None, limit: int, tag: str | None = None) -> Call[Page]:
        if tag is not None:
            self._need(Capability.TAGS, "list jobs by a tag")

        def read(reply: list[Any]) -> Page:
            following, rows = reply
            return Page(tuple(map(self._read_row, rows)), _write_cursor(state, following) if following else None)

        position = b"" if cursor is None else _read_cursor(state, cursor)
        return self._read("page", "jobs", [state.value, position, limit], read)

    # -- for a service (`service` is its name) whose workers communicate by messages ------------------

    def hail(
        self,
        worker: str,
        ago: int,
        *,
        busy: bool,
        job: str | None = None,
        progress: float | None = None,
        service: str = "",
    ) -> Call[bool]:
        """Record a message of `ago` ms ago: idle, or busy with a job. False if ignored; see worker_report.lua."""
        said = ["busy" if busy else "idle", job or "", "" if progress is None else repr(float(progress)), service]
        return self._write("worker_report", "hear a worker", [worker, ago, *said], lambda reply: reply == 1)

    def dispatch(self, workers: Sequence[str]) -> Call[list[Dispatched]]:
        """Dispatch the next jobs to the idle ones of these workers."""

        def read(reply: list[Any]) -> list[Dispatched]:
            return [
                Dispatched(worker.decode(), id.decode(errors="replace"), json, at.decode(), priority)
                for worker, id, json, at, priority in reply
            ]

        return self._write("dispatch", "dispatch", list(workers), read)

    def accept(self, worker: str, ago: int, job: str, started_at: str, service: str = "") -> Call[bool]:
        """A worker accepts the job that was dispatched to it."""
        return self._write("accept", "accept", [worker, ago, job, started_at, service], lambda reply: reply == 1)

    def finish(self, worker: str, ago: int, job: str, finished_at: str, json: bytes, service: str = "") -> Call[bool]:
        """A worker has finished its job."""
        args: list[Argument] = [worker, ago, job, finished_at, json, service]
        return self._write("finish", "finish", args, lambda reply: reply == 1)

    def forget(self, worker: str, service: str) -> Call[bool]:
        """Remove a worker, if it has no job and no other service heard of it since."""
        return self._write("remove_worker", "forget a worker", [worker, service], lambda reply: reply == 1)

    def look(self, what: Listing) -> Call[tuple[int, list[list[Any]]]]:
        """List jobs or workers: the total, and the first entries; see list.lua."""
        return self._read("list", "list", [what], lambda reply: (int(reply[0]), reply[1]))


def unfinished_queue(key: bytes) -> str | None:
    """The queue of a key found by `ANY_QUEUE`, if the key holds assigned or running jobs, or workers; else None."""
    found = _UNFINISHED.fullmatch(key.decode(errors="replace"))
    return found[1] if found else None


def _write_cursor(state: State, position: bytes) -> str:
    return base64.urlsafe_b64encode(state.encode() + b":" + position).decode()


def _read_cursor(state: State, cursor: str) -> bytes:
    try:
        kind, _, position = base64.b64decode(cursor, altchars=b"-_", validate=True).partition(b":")
    except (ValueError, TypeError):
        kind = position = b""
    pattern = _POSITIONS.get(state)
    if kind != state.encode() or pattern is None or not pattern.fullmatch(position):
        raise InvalidOption(f"invalid cursor for {state} jobs. Pass page.cursor of the page before, of the same state")
    return position


def _value(raw: msgspec.Raw) -> object:
    return msgspec.json.decode(raw)
