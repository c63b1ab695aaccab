"""The layout of hworker (Hackage `hworker`): a job is the JSON array `[id, job]`, and its text is all that it has.

| key | type | holds |
|---|---|---|
| `hworker-jobs-<name>` | list | texts that wait; pushed left, taken from the right |
| `hworker-progress-<name>` | hash | text of a running job → when it began, as JSON: `"2015-07-25T12:34:56.789Z"` |
| `hworker-broken-<name>` | hash | text that cannot be read → when that was found, written alike |
| `hworker-failed-<name>` | list | texts of jobs that failed for good, the latest first; no more than `max_dead` |

Decided where the document leaves it open:

* "Retry" goes to the back, at once; a worker that is to wait before it does so with the job in its hands. What the
  monitor takes back, what a lost worker held and what is given back unharmed goes to the front. Nothing is charged, for
  there is nowhere to count.
* A job that was seen to kill its process goes to the back like a retry: that is no lost worker, and at the front a job
  that does so each time would be all that is ever run. Where it was one of several, all of them go to the front, to be
  run alone.
* A running job of ours has the time of its last sign of life as its beginning, so that the monitors of peers leave long
  jobs alone. A lease that is longer than the timeout is written as begun so much later that it lasts to its end.
* A job is ours while the time there is the one that we wrote: a peer that took it over has put its own.
* A time in `progress` that cannot be read counts from when a monitor of ours first sees it.
* Two equal texts are one job while they run, as that hash has it: the later run has it.
* A text that is no JSON array of a string and something goes to `broken` when it is taken. One that is nested too deep
  for the server to look through is a job if it begins and ends like one. Whether the job in it is UTF-8 is left to its
  handler.
* A job of a task that a worker does not know goes to `broken` too: the document keeps that place also for applications
  that were pointed at the wrong queue.
* The messages of retries and failures are logged by the worker; the keys have no place for them.
* A dead or broken job comes back by the id in its array (all that carry it); one in which no id can be read, by
  `sha1:` and the SHA-1 of its text.
* Running and broken jobs are listed by their times; where there are more than 10,000, as the server has them.
* `clean(deep=True)` does what `clean()` does, and mends the ledger. A job is one text in one place, with nothing beside
  it that could differ, and the monitor sees to all that can be wrong there.
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
_HEAD = re.compile(rb'[ \t\r\n]*+\[[ \t\r\n]*+"[^"\\]*+(?:\\.[^"\\]*+)*+"[ \t\r\n]*+,', re.DOTALL)


class HworkerLayout(ForeignLayout):
    """One queue of hworker."""

    name = "hworker"
    timeout = 120.0  # seconds after which a job in progress counts as abandoned; its peers are set to the same
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
                f"a job of an hworker queue is JSON, and this payload is not ({problem}): use enqueue_json, or pass "
                "the bytes of a JSON text"
            )
        return b"[%s,%s]" % (json.dumps(job.id).encode(), job.data)

    def decode(self, data: bytes) -> bytes:
        return _cut_out(data)

    def _read_row(self, row: list[Any]) -> JobRecord:
        """What waits and what is broken may be any text: shown whole where there is no job in it."""
        text = row[2]
        data = text if _json_problem(_cut_out(text)) else self.decode(text)
        return msgspec.structs.replace(super()._read_row(row), data=data)


def _cut_out(text: bytes) -> bytes:
    """The job in a text, as it stands there; a text that does not look like one is returned whole."""
    head = _HEAD.match(text)
    body = text.rstrip(_SPACE)
    if head is None or not body.endswith(b"]"):
        return text
    return body[head.end() : -1].strip(_SPACE)


def _json_problem(data: bytes) -> str | None:
    """Why this is no JSON text; nothing is built from it."""
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
    except RecursionError:
        return "it is nested too deep"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    return None
