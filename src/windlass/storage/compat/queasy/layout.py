"""The layout of Queasy: scheduled, retried, singleton jobs. The braces are part of a key: a queue is one cluster slot.

| key | type | holds |
|---|---|---|
| `{<queue>}:waiting` | zset | id → run time in ms since 1970; of a blocked job with a minus |
| `{<queue>}:waiting_job:<id>` | hash | the job, see below |
| `{<queue>}:active` | zset | `<id>:<worker>` → when its next heartbeat is due at the latest, in ms |
| `{<queue>}:active_job:<id>` | hash | the job that runs |
| `{<queue>}-fail:…` | the same four | jobs for failure handlers, under the ids of the jobs that failed |

| field of a hash | |
|---|---|
| `id`, `data` | `data` is JSON |
| `runAt`, `maxFailures`, `maxStalls`, `minBackoff`, `maxBackoff` | times in ms |
| `failureCount`, `stallCount` | |
| `lockedBy` | while it runs: the worker |
| `updateData`, `updateRunAt` and so on, `resetCounts` | while blocked: how to merge it if the running job comes back |
| `error` | of a failure: a JSON object with `name` ("Error" or "StallError"), `message` and `reason` |
| `job` | of a failure, ours: a JSON object with limits and counts of the job that failed, and `failedAt` |
| `limited` | ours: limits were given with the job, also where they are the plain ones |
| `note` | ours: what was last said of it |

Decided where the document leaves it open:

* A run time of 0 has no sign, so a blocked job with it has the score -1. The -0 that a peer writes lies there as 0:
  we do not take such a job while one of its id is active, and give it the score -1 when we meet it.
* What was blocked by a job that is done gets its own run time, whatever its `updateRunAt`: as listed, addToWaiting
  would leave it blocked for ever where that is false or "ifEarlier".
* A third job of an id changes the one that is blocked: what either of them updates is updated, to what the last one
  says.
* `runAt` in the hash follows the score. Jobs are taken by run time, and by id where that is the same: those of run
  time 0 have no other order.
* A job that stalled, or whose process crashed, comes back at once and at its old place, with the run time it had. So
  does one that is given back, uncharged. A crash counts as a stall.
* Whether a failed attempt is followed by another is decided before it is settled, by the limits that came with the
  lease.
* What cannot be decoded, or whose task nobody here knows, is put aside for five minutes, uncharged: there is no place
  for it.
* Failure handlers are known by `{<queue>}-fail:waiting`, and an empty sorted set does not exist. So a worker that has
  one puts a placeholder there, `windlass:<worker>`, with the score -9007199254740991, from which nobody takes a job.
  It goes with the worker. Without a handler anywhere a job that failed is gone.
* A failure has the limits of the handler that was registered last, or those of a handler that says nothing where only
  peers have one. It goes to workers with a handler, before other jobs. We call it `failure-<id>`. One that fails for
  good itself, or that no handler wants, is gone.
* A worker's heartbeat is for all its jobs at once. One that a peer took back meanwhile is stopped as if it were
  cancelled.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import InvalidName, InvalidPayload
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.port import Beat, Call, Turn
from windlass.values.job import JobRecord, Lease, Limits, NewJob, State
from windlass.values.outcome import Outcome

_LENGTHS = struct.Struct(">II")
_FAILURE = "failure-"
_REASONS = ("failed", "stalled", "crashed")


class QueasyLayout(ForeignLayout):
    """One queue of Queasy."""

    name = "queasy"
    heartbeat: float | None = 10.0
    audit_parts: tuple[str, ...] = (
        "jobs",
        "waiting",
        "active",
        "fail_waiting",
        "fail_active",
        "runs",
        "held",
    )

    def own_keys(self) -> tuple[str, ...]:
        queue = f"{{{self.queue}}}"
        return (f"{queue}:waiting", f"{queue}:active", f"{queue}-fail:waiting", f"{queue}-fail:active")

    def encode(self, job: NewJob) -> bytes:
        if job.change.must_exist and not job.change.update_data:
            return b""
        try:
            msgspec.json.decode(job.data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # text that is not UTF-8 is a ValueError
            raise InvalidPayload(
                f"job {job.id!r} for queue {self.queue!r}: in the layout 'queasy' data is JSON, and this is none "
                f"({error}); use enqueue_json, or json.dumps(…).encode()"
            ) from None
        return job.data

    def turn(
        self,
        outcomes: Sequence[Outcome] = (),
        *,
        want: int = 0,
        seconds: float = 0,
        holder: str | None = None,
        waiter: str | None = None,
        registered: bool = False,
    ) -> Call[Turn]:
        self._check_holder(holder)
        return super().turn(outcomes, want=want, seconds=seconds, holder=holder, waiter=waiter, registered=registered)

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        self._check_holder(holder)
        return super().beat(holder, seconds, register=register, failure_handler=failure_handler)

    def _check_holder(self, holder: str | None) -> None:
        if holder and ":" in holder:
            raise InvalidName(
                f"{holder!r} is no holder name for the layout 'queasy': its peers write a colon before it"
            )

    def failure(self, lease: Lease) -> JobRecord:
        job, error, data = _read_failure(lease.data)
        said = error.get("reason")
        reason = said if said in _REASONS else "stalled" if error.get("name") == "StallError" else "failed"
        limits = Limits(
            _whole(job, "maxFailures", lease.limits.max_failures),
            _whole(job, "maxStalls", lease.limits.max_stalls),
            _whole(job, "minBackoff", round(lease.limits.min_backoff * 1000)) / 1000,
            _whole(job, "maxBackoff", round(lease.limits.max_backoff * 1000)) / 1000,
        )
        died_at = _whole(job, "failedAt", 0)
        # The attempt that was the end is in no count of the hash, as the document has it.
        return JobRecord(
            queue=self.queue,
            id=lease.id.removeprefix(_FAILURE),
            state=State.DEAD,
            data=self.decode(data),
            failures=_whole(job, "failureCount", 0) + (reason == "failed"),
            stalls=_whole(job, "stallCount", 0) + (reason != "failed"),
            limits=limits,
            reason=reason,
            message=str(error.get("message", "")),
            died_at=died_at / 1000 if died_at else None,
        )


def _read_failure(record: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The job that failed and its error, as far as whoever wrote them did so, and its data."""
    if len(record) < _LENGTHS.size:
        return {}, {}, record
    job, error = _LENGTHS.unpack_from(record)
    start, middle = _LENGTHS.size, _LENGTHS.size + job
    return _object(record[start:middle]), _object(record[middle : middle + error]), record[middle + error :]


def _object(text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {"message": text.decode(errors="replace")}


def _whole(job: dict[str, Any], field: str, default: int) -> int:
    value = job.get(field, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
