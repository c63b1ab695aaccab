"""The layout of Queasy: scheduled, retried, singleton jobs. The braces keep a queue in one cluster slot.

| key | type | holds |
|---|---|---|
| `{<queue>}:waiting` | zset | id → run time in ms since 1970; negative for a blocked job |
| `{<queue>}:waiting_job:<id>` | hash | the job, see below |
| `{<queue>}:active` | zset | `<id>:<worker>` → deadline of its next heartbeat, in ms |
| `{<queue>}:active_job:<id>` | hash | the running job |
| `{<queue>}-fail:…` | the same four | jobs for failure handlers, under the ids of the failed jobs |

| field of a hash | |
|---|---|
| `id`, `data` | `data` is JSON |
| `runAt`, `maxFailures`, `maxStalls`, `minBackoff`, `maxBackoff` | times in ms |
| `failureCount`, `stallCount` | |
| `lockedBy` | while it runs: the worker |
| `updateData`, `updateRunAt` and so on, `resetCounts` | while blocked: how to merge it if the running job comes back; \
left out if they say "true" |
| `error` | of a failure job: a JSON object with `name` ("Error" or "StallError"), `message` and `reason` |
| `job` | of a failure job, Windlass only: a JSON object with limits and counts of the failed job, and `failedAt` |
| `limited` | Windlass only: the job was enqueued with limits, even if they are the plain ones |
| `note` | Windlass only: the last message |

A queue of a newer release is refused: see the beginning of queasy.lua.

Decisions where the document is open:

* A run time of 0 has no sign, so a blocked job with it has the score -1. The server stores the -0 of a peer as 0:
  Windlass does not lease such a job while one with its id is active, and changes its score to -1.
* A blocked job gets its own run time when the running job ends, whatever its `updateRunAt`: the document's addToWaiting
  would leave it blocked forever if that is false or "ifEarlier".
* A third job with an id changes the blocked one: a field is updated if either of them updates it, to the value of the
  last one.
* `runAt` in the hash follows the score. Jobs are taken by run time, then by id: jobs with run time 0 have no other
  order.
* A stalled or crashed job comes back at once, at its old place and with its old run time. So does a released job,
  uncharged. A crash counts as a stall.
* The worker decides whether a failed attempt is followed by another, by the limits that came with the lease.
* A job that cannot be decoded, or whose task is unknown, is retried in five minutes, uncharged, because the keys
  have no place for it.
* `{<queue>}-fail:waiting` shows that a queue has failure handlers, and an empty sorted set does not exist. So a worker
  with a handler puts a placeholder there, `windlass:<worker>`, with the score -9007199254740991, which is never leased.
  It is removed with the worker. Without any handler a failed job is deleted.
* A failure job has the limits of the handler that was registered last, or the default ones if only peers have a
  handler. Workers with a handler lease it before other jobs. Its id is `failure-<id>`. It is deleted if it fails for
  good itself, or if no handler takes it.
* A worker's heartbeat extends all its jobs at once. A job that a peer took back meanwhile is stopped like a cancelled
  one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.errors import InvalidName, InvalidPayload
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.port import NO_LEASES, Beat, Call, LeaseRequest, Turn
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
                f"job {job.id!r} for queue {self.queue!r}: layout 'queasy' needs JSON, and this payload is not "
                f"({error}). Use enqueue_json, or json.dumps(…).encode()"
            ) from None
        return job.data

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        self._check_holder(request.holder)
        return super().turn(outcomes, request)

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        self._check_holder(holder)
        return super().beat(holder, seconds, register=register, failure_handler=failure_handler)

    def _check_holder(self, holder: str | None) -> None:
        if holder and ":" in holder:
            raise InvalidName(f"invalid holder name {holder!r} for layout 'queasy'. Use a name without a colon")

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
        # The counts in the hash do not include the last attempt, as in the document.
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
    """The fields of the failed job and its error, as far as they were written, and its data."""
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
