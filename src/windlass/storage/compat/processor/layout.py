"""The layout of Processor Job Queue: jobs are hashes named by their uuid alone, and a queue is a suffix of its keys.

| key | type | holds |
|---|---|---|
| `<uuid>` | hash | a job: `json` (its payload, one JSON object), then `dispatched_at`, `started_at`, `worker_uuid`, \
`finished_at` as it goes on (times as ISO 8601 in UTC); `priority` where it is not 5 |
| `jobs_queued:<queue>` | list | uuids that wait; pushed left, taken from the right |
| `jobs_queued_<0…9>:<queue>` | list | the same for the priorities other than 5 |
| `jobs_dispatched:<queue>` | sorted set | uuids that a worker was assigned and has not accepted → when |
| `jobs_processing:<queue>` | sorted set | uuids that a worker has accepted → its last sign of life |
| `jobs_progress:<queue>` | sorted set | the same uuids → how far they are, 0 to 1 |
| `jobs_finished:<queue>` | sorted set | uuids that are done → when |
| `workers_last_seen:<queue>` | sorted set | workers → when they were last heard of |
| `workers_idle:<queue>`, `workers_busy:<queue>` | set | workers |

Scores that are times are seconds since 1970. A worker or job of which nothing was heard for 9 s (three ticks) is lost.

Decided where the document leaves it open:

* A lease of a Windlass worker is dispatched and accepted in one step; the worker is the lease's holder. Such workers
  are never in `workers_idle`: they ask for jobs, and a service that assigned one to them would not be heard.
* A lease that is not 9 s long is written as if its last sign had come earlier or later, so that for peers, too, it
  ends when it ends.
* What is lost returns to the front, in its old order: jobs of lost workers, and what was not accepted in time. A
  worker that says it is idle has dropped its job; that returns when nothing was heard of it for 9 s. A job that was
  retried, or that crashed its process, goes to the back.
* An assignment that is not accepted yet keeps its worker busy, even if it says that it is idle: the two messages may
  have crossed.
* The published service puts the text of `job_accepted` in place of `json`. Here that stays as it was added, for the
  job may have to be assigned again; only `job_finished` puts its own there.
* Finished jobs are kept as peers may want to read them: the last `max_dead` of them and up to a tenth more,
  for a day. With 0 nothing is kept. What a peer adds again is none of them any more.
* There is no place for what failed: `fail` finishes the job, and the worker logs why.
* A uuid may be any text that is no name of another key, and is one job on the whole server: added again, it is kept as
  it is, in whatever queue, until it is finished.
* The lists of other priorities than 5 are not known to peers of another make. What those put back waits at 5 for once.
* `uuid`, `queue_name` and `priority` are put into a payload that lacks them, and taken out again for who leases it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from windlass.errors import InvalidId, InvalidOption, InvalidPayload
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.port import Argument, Call
from windlass.values.job import NewJob, Page, State
from windlass.values.validation import MAX_DEAD

TICK = 3.0  # seconds
LOST_AFTER = 3 * TICK
Listing = Literal["queued", "dispatched", "processing", "workers"]

# Where a page of jobs may begin; see page.lua.
_POSITIONS = {
    State.READY: re.compile(rb"(?:[1-9]|10) .+", re.DOTALL),
    State.LEASED: re.compile(rb"[12] [0-9.e+]+ .+", re.DOTALL),  # the server writes some scores with an exponent
}
_RESERVED = re.compile(r"(jobs|workers)_[a-z_0-9]+:|windlass:")
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# A space that no encoder writes there tells what was put in from what was given.
_TEXT = r'"(?:[^"\\]|\\.)*"'
_LONGEST_PUT_IN = 6000  # bytes: an id and a name, with every character escaped
_PUT_IN = re.compile(
    rf'(,?) (?:"uuid":{_TEXT}(,|\}}))?(?:"queue_name":{_TEXT}(,|\}}))?(?:"priority":\d(\}}))?\Z'.encode()
)


class Dispatched(msgspec.Struct, frozen=True):
    """A job that was assigned to a worker: what it is, and when that was (ISO 8601)."""

    worker: str
    id: str
    json: bytes
    at: str
    priority: int


class ProcessorLayout(ForeignLayout):
    """One queue of Processor Job Queue."""

    name = "processor"
    heartbeat: float | None = LOST_AFTER
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
            raise InvalidId(f"{job.id!r} could be the name of another key: give the job another id, or none")
        try:
            fields = _FIELDS.decode(job.data.decode())  # as text: what is passed over must be UTF-8, too
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise InvalidPayload(
                f"data on queue {self.queue!r} ({self.name}) must be a JSON object: give enqueue_json a dict ({error})"
            ) from None
        put_in: list[bytes] = []
        wanted = {"uuid": job.id, "queue_name": self.queue, "priority": job.change.priority}
        for name, value in wanted.items():
            if name not in fields:
                put_in.append(b'"%s":%s' % (name.encode(), msgspec.json.encode(value)))
            elif _value(fields[name]) != value:
                raise InvalidPayload(
                    f"its {name} is {bytes(fields[name]).decode(errors='replace')} and that of the job is {value!r}: "
                    "leave it out of the data, or make them the same"
                )
        if not put_in:
            return job.data
        body = job.data.rstrip().removesuffix(b"}")
        return b"%s%s %s}" % (body, b"," if fields else b"", b",".join(put_in))

    def decode(self, data: bytes) -> bytes:
        found = _PUT_IN.search(data, max(0, len(data) - _LONGEST_PUT_IN))
        return data[: found.start()] + b"}" if found and data.endswith(b"}") else data

    def page(self, state: State, cursor: str | None, limit: int) -> Call[Page]:
        def read(reply: list[Any]) -> Page:
            following, rows = reply
            return Page(tuple(map(self._read_row, rows)), _write_cursor(state, following) if following else None)

        position = b"" if cursor is None else _read_cursor(state, cursor)
        return self._read("page", "jobs", [state.value, position, limit], read)

    # -- for a service, which has a name: workers that speak through messages -------------------------

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
        """A worker's word, so many ms ago: idle, or busy with a job. False when it does not count; see hail.lua."""
        said = ["busy" if busy else "idle", job or "", "" if progress is None else repr(float(progress)), service]
        return self._write("hail", "hear a worker", [worker, ago, *said], lambda reply: reply == 1)

    def dispatch(self, workers: Sequence[str]) -> Call[list[Dispatched]]:
        """Assign the next jobs to those of these workers that are idle."""

        def read(reply: list[Any]) -> list[Dispatched]:
            return [
                Dispatched(worker.decode(), id.decode(errors="replace"), json, at.decode(), priority)
                for worker, id, json, at, priority in reply
            ]

        return self._write("dispatch", "dispatch", list(workers), read)

    def accept(self, worker: str, ago: int, job: str, started_at: str, service: str = "") -> Call[bool]:
        """A worker accepts what was dispatched to it."""
        return self._write("accept", "accept", [worker, ago, job, started_at, service], lambda reply: reply == 1)

    def finish(self, worker: str, ago: int, job: str, finished_at: str, json: bytes, service: str = "") -> Call[bool]:
        """A worker has finished its job."""
        args: list[Argument] = [worker, ago, job, finished_at, json, service]
        return self._write("finish", "finish", args, lambda reply: reply == 1)

    def forget(self, worker: str, service: str) -> Call[bool]:
        """A worker is known no more, if it has no job and nobody heard of it since this service did."""
        return self._write("forget", "forget a worker", [worker, service], lambda reply: reply == 1)

    def look(self, what: Listing) -> Call[tuple[int, list[list[Any]]]]:
        """How many there are, and some of them with what is known; see look.lua."""
        return self._read("look", "list", [what], lambda reply: (int(reply[0]), reply[1]))


def _write_cursor(state: State, position: bytes) -> str:
    return base64.urlsafe_b64encode(state.encode() + b":" + position).decode()


def _read_cursor(state: State, cursor: str) -> bytes:
    try:
        kind, _, position = base64.b64decode(cursor, altchars=b"-_", validate=True).partition(b":")
    except (ValueError, TypeError):
        kind = position = b""
    pattern = _POSITIONS.get(state)
    if kind != state.encode() or pattern is None or not pattern.fullmatch(position):
        raise InvalidOption(f"that is no cursor for {state} jobs: pass what page.cursor was, for the same state")
    return position


def _value(raw: msgspec.Raw) -> object:
    return msgspec.json.decode(raw)
