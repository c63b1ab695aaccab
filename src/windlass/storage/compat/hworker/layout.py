"""The layout of hworker (Hackage `hworker`): a job is just the text of the JSON array `[id, job]`.

| key | type | holds |
|---|---|---|
| `hworker-jobs-<name>` | list | waiting texts; pushed left, taken from the right |
| `hworker-progress-<name>` | hash | text of a running job → its begin time: `"2015-07-25T12:34:56.789Z"` |
| `hworker-broken-<name>` | hash | undecodable text → time when that was found, in the same form |
| `hworker-failed-<name>` | list | texts of jobs that failed for good, the latest first; at most `max_dead` |

Decisions where the document is open:

* A retry goes to the back at once; a worker with a retry delay keeps the job while it waits. Jobs that the monitor
  takes back, jobs of a lost worker and released jobs go to the front. Nothing is charged: the keys have no counters.
* A job that certainly killed its process goes to the back like a retry: at the front, a job that does so each time
  would block all others. If it was one of several suspects, all of them go to the front, to run alone.
* The begin time of a running Windlass job is its last heartbeat, so that the monitors of peers leave long jobs alone.
  For a lease that is longer than the timeout, a later begin time is written, so that the job lasts to the lease's end.
* A run has its job while the begin time is the one that Windlass wrote: a peer that takes the job writes its own.
* An unreadable time in `progress` counts from when a Windlass monitor first sees it.
* Two equal texts are one job while they run, because they share a field of that hash: the later run has it.
* A text is a job if it begins with a JSON array of a string and one more element. What stands behind the array is
  ignored, as by the package, and stays with the text. Any other text goes to `broken` when it is taken. A text that is
  nested too deep for the server's parser is a job if it begins and ends like one. The handler checks whether the job
  in it is UTF-8.
* A job whose task the worker does not know goes to `broken`, too: the document uses that place also for applications
  that were pointed at the wrong queue.
* The worker logs the messages of retries and failures; the keys have no place for them.
* A dead or broken job is revived by the id in its array (all jobs with that id); a job without a readable id, by
  `sha1:` and the SHA-1 of its text.
* The field `false` of `progress` is no job: idle workers of the package write it. Windlass neither counts it nor puts
  it on the queue; a purge deletes it.
* Running and broken jobs are listed by time; more than 10,000 of them in the order of the server.
* `audit(repair=True)` does the same as `clean()` and repairs the ledger. A job is one text in one place, so nothing
  else can be inconsistent, and the monitor handles every other problem.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from windlass.errors import InvalidPayload
from windlass.storage.compat.base import ForeignLayout
from windlass.values.job import JobRecord, NewJob
from windlass.values.validation import MAX_DEAD

_SPACE = b" \t\r\n"
_TOO_DEEP = "it is nested too deep"
_MARK = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)
_HEAD = re.compile(rb'[ \t\r\n]*+\[[ \t\r\n]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"[ \t\r\n]*+,', re.DOTALL)


class HworkerLayout(ForeignLayout):
    """One queue of hworker."""

    name = "hworker"
    timeout = 120.0  # seconds after which a job in progress counts as abandoned; configure its peers with the same
    heartbeat: float | None = timeout

    def __init__(self, queue: str, *, max_dead: int = MAX_DEAD) -> None:
        super().__init__(queue, max_dead=max_dead)
        self.setting = max_dead

    def waits_at(self) -> str:
        return f"hworker-jobs-{self.queue}"

    def own_keys(self) -> tuple[str, ...]:
        return tuple(f"hworker-{what}-{self.queue}" for what in ("jobs", "progress", "broken", "failed"))

    def encode(self, job: NewJob) -> bytes:
        if problem := _json_problem(job.data):
            raise InvalidPayload(
                f"job {job.id!r} for queue {self.queue!r}: layout 'hworker' needs JSON, and this payload is not "
                f"({problem}). Use enqueue_json, or pass the bytes of a JSON text"
            )
        return b"[%s,%s]" % (json.dumps(job.id).encode(), job.data)

    def decode(self, data: bytes) -> bytes:
        return _cut_out(data)

    def _read_row(self, row: list[Any]) -> JobRecord:
        """Read a row. A waiting or broken text may be no job: then its data is the whole text."""
        text = row[2]
        array = _first_array(text)
        job = _cut_out(array)
        data = job if job is not array and _json_problem(job) in (None, _TOO_DEEP) else text
        return msgspec.structs.replace(super()._read_row(row), data=data)


def _cut_out(text: bytes) -> bytes:
    """Cut the job out of a text; return the whole text if it does not look like one."""
    head = _HEAD.match(text)
    body = text.rstrip(_SPACE)
    if head is None or not body.endswith(b"]"):
        return text
    return body[head.end() : -1].strip(_SPACE)


def _first_array(text: bytes) -> bytes:
    """A text up to the bracket that closes its first one, as in hworker.lua."""
    depth = 0
    for mark in _MARK.finditer(text):
        if mark[0] in b"[{":
            depth += 1
        elif mark[0] in b"]}":
            depth -= 1
            if depth == 0:
                return text[: mark.end()]
    return text


def _json_problem(data: bytes) -> str | None:
    """Why the data is not JSON; None if it is. Builds no objects."""
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        return _TOO_DEEP
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    return None
