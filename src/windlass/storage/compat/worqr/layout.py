"""The layout of Worqr (npm `worqr` 1.2.3, with its default prefix): peers that recover each other, tasks as they are.

| key | type | holds |
|---|---|---|
| `worqr:queues:<q>` | list | tasks that wait, each just its bytes; pushed left, taken from the right |
| `worqr:processes:<q>_<uuid>` | list of one | a task that is worked on, under a process id |
| `worqr:workingProcesses:<q>` | set | the process ids of a queue, of all workers |
| `worqr:workers` | set | all workers |
| `worqr:expiringWorkers` | set | those that must show signs of life |
| `worqr:permanentWorkers` | set | those that need not |
| `worqr:workerTimers:<worker>` | string, expires | `RUN`, as long as the worker lives |
| `worqr:workingQueues:<worker>` | set | the queues that it serves |
| `worqr:uniqueTasks:<md5 of a task>` | string | a peer enqueued it as the only one; goes when the task is finished |

| channel | says |
|---|---|
| `worqr_<q>_work` | how many tasks came, or came back |
| `worqr_<q>_done` | `{"workerId": …, "task": …, "result": null}` |
| `worqr_<q>_cancel` | the task that is cancelled |
| `worqr_<q>_delete` | nothing: the queue was deleted |

Every holder is a worker to its peers, a raw lease one of its own (`.` and its fence). Which worker has which process,
the document's set for each worker and queue, is in the ledger: so failing one of ours returns its own tasks only.

Decided where the document leaves it open:

* Tasks return to the *front*, as the requirement and the drawings say, which is the right end: the document's
  `RPOPLPUSH P1 Q1` would put them at the back. Several return in the order in which they were taken.
* A task has no id. Here it is called what it says, when that is text of 1 to 512 bytes, else `sha1:` and its hash.
  Equal tasks have one id: `cancel` means all of them, and by a hash it reads the whole queue.
* A worker of another make does not tell which processes of its queue are its own. When it dies, all come back that no
  Windlass worker has, in no order, as the published package does: a task of its living neighbours may run twice.
* Whoever of that package fails a worker takes all processes of its queues back, ours too, and our workers then find
  that they have lost them. If it forgets one that was begun meanwhile, our next heartbeat lists it again.
* A worker whose timer is gone has failed: it gets no tasks and no more time. What it still settles before anybody has
  taken it back counts: nobody else has begun it.
* A timer is given the time of the lease; a heartbeat never shortens it, for a worker may serve several queues.
* The announcement of a failed worker (4c) says how many tasks came back. So does one for a task that is given back.
* What is to be tried again goes to the back. There is no place for what failed: `fail` finishes the task, with the
  announcement `done`, and the worker logs why. Bytes that are no text are replaced in that announcement.
* Our workers drop what a peer cancels (`obey_cancel`). A cancellation of our own has told them already, and must not
  hit a task that was enqueued after it: for 3 s they do not listen when it is said again.
* The mark of a unique task goes when the task is finished, as with the published package; also when it is cancelled
  and runs nowhere else, unless its id is a hash: the server has no MD5. Then the mark stays until whoever runs the task
  has ended it. Purging a queue leaves marks alone.
* The published package cannot take an empty task: it leaves it to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import md5, sha1
from typing import TypeVar

from msgspec import structs

from windlass.storage.compat.base import ForeignLayout
from windlass.storage.compat.base.keys import ledger_key
from windlass.storage.port import Argument, Beat, Call, Turn
from windlass.values.job import JobRecord, Lease, Limits, NewJob
from windlass.values.outcome import Outcome
from windlass.values.validation import MAX_ID_BYTES

T = TypeVar("T")
PREFIX = "worqr"


class WorqrLayout(ForeignLayout):
    """One queue of Worqr."""

    name = "worqr"
    heartbeat = 3.0
    audit_parts: tuple[str, ...] = ("listed", "processes", "runs", "held")

    def own_keys(self) -> tuple[str, ...]:
        of_queue = (f"{PREFIX}:{name}:{self.queue}" for name in ("queues", "workingProcesses"))
        of_all = (f"{PREFIX}:{name}" for name in ("workers", "expiringWorkers", "permanentWorkers"))
        return (*of_queue, *of_all, ledger_key(self.name, self.queue, "tokens"))

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
        call = super().turn(outcomes, want=want, seconds=seconds, holder=holder, waiter=waiter, registered=registered)
        return _with_workers(call, [holder] if holder else [])

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        return _with_workers(
            super().beat(holder, seconds, register=register, failure_handler=failure_handler), [holder]
        )

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        holders = dict.fromkeys(lease.holder or f".{lease.fence}" for lease in leases)
        return _with_workers(super().extend(leases, seconds), holders)

    def id_of(self, job: NewJob) -> str:
        """A task is called what it says."""
        return name_of(job.data)

    def _pack_outcome(self, outcome: Outcome) -> tuple[Argument, ...]:
        """The verb; then the task's MD5, by which the mark of a unique task is found, and whether it is text."""
        verb, a, b, _ = super()._pack_outcome(outcome)
        task = outcome.lease.data
        return (verb, a, b, _md5(task) + ("t" if _is_text(task) else "b"))

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        """Every waiting copy of these tasks goes; those who run one, of any make, are told if asked for."""
        return super().cancel([f"{_md5(id.encode())}{id}" for id in ids], running=running)

    @property
    def peer_cancel_channel(self) -> str:
        """Where peers of any make say which task is cancelled: the message is the task."""
        return f"{PREFIX}_{self.queue}_cancel"

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        """A peer said that a task is cancelled: what this holder runs of it is cancelled, which it hears as always."""
        return self._write("obey", "cancel", [holder, message, _md5(message)], lambda reply: reply == 1)

    def get(self, id: str) -> Call[JobRecord | None]:
        """A task by its text or hash: one that runs, else one that waits."""
        return self._read("get", "get", [id], lambda row: self._read_row(row) if row else None)

    def wake_channel(self, waiter: str) -> str:
        """Where peers of any make announce work."""
        return f"{PREFIX}_{self.queue}_work"


def _with_workers(call: Call[T], workers: Iterable[str]) -> Call[T]:
    """The same, with the keys of these workers: what holds something else is found out before anything is written."""
    names = [f"{PREFIX}:{name}:{worker}" for worker in workers for name in ("workingQueues", "workerTimers")]
    return structs.replace(call, keys=(*call.keys[:-1], *names, call.keys[-1]))


def name_of(task: bytes) -> str:
    """What a task is called: its text, or its hash."""
    try:
        text = task.decode() if 1 <= len(task) <= MAX_ID_BYTES else ""
    except UnicodeDecodeError:
        text = ""
    return text or f"sha1:{sha1(task, usedforsecurity=False).hexdigest()}"


def _is_text(task: bytes) -> bool:
    try:
        task.decode()
    except UnicodeDecodeError:
        return False
    return True


def _md5(task: bytes) -> str:
    return md5(task, usedforsecurity=False).hexdigest()
