"""The layout of Worqr (npm `worqr` 1.2.3, default prefix): workers recover each other, and a task is raw bytes.

| key | type | holds |
|---|---|---|
| `worqr:queues:<q>` | list | waiting tasks, each just its bytes; pushed left, taken from the right |
| `worqr:processes:<q>_<uuid>` | list of one | a running task, under a process id |
| `worqr:workingProcesses:<q>` | set | the process ids of a queue, of all workers |
| `worqr:workers` | set | all workers |
| `worqr:expiringWorkers` | set | workers that must send heartbeats |
| `worqr:permanentWorkers` | set | workers that need not |
| `worqr:workerTimers:<worker>` | string, expires | `RUN`, as long as the worker lives |
| `worqr:workingQueues:<worker>` | set | the queues that it serves |
| `worqr:uniqueTasks:<md5 of a task>` | string | mark of a task enqueued as unique; deleted when it finishes |

| channel | message |
|---|---|
| `worqr_<q>_work` | number of tasks that came, or came back |
| `worqr_<q>_done` | `{"workerId":…,"task":…}`; the package adds `"result":…` if its worker gives one |
| `worqr_<q>_cancel` | the cancelled task |
| `worqr_<q>_delete` | empty: the queue was deleted |

Peers see every holder as a worker, and a raw lease as a worker of its own (`.` and its fence). The ledger has the
document's set of processes per worker and queue, so failing a Windlass worker returns only its own tasks.

Decisions where the document is open:

* Tasks return to the *front*, as the requirement and the drawings say, which is the right end: the document's
  `RPOPLPUSH P1 Q1` would put them at the back. Several tasks return in the order in which they were taken.
* A task has no id. Its id here is its text, if that is valid text of 1 to 512 bytes, else `sha1:` and its hash.
  Equal tasks have one id: `cancel` cancels all of them, and by a hash it reads the whole queue.
* No key says which worker of the package runs a process: the set of processes is the queue's, and a process is a
  random id and the task. When such a worker dies, all processes of its queues that no Windlass worker has come back,
  unordered, as in the package: a task of its live neighbours runs twice. To spare these would leave tasks of the dead
  one behind.
* A worker of the published package that fails another takes back all processes of the queue, also those of Windlass,
  whose workers then find that they have lost them. If it drops a process that has just begun, our next heartbeat lists
  it again.
* A worker whose timer has expired has failed: it gets no tasks and no extension. Its outcomes still count until a peer
  takes the tasks back, because no other worker has started them.
* A timer lasts as long as the lease; a heartbeat never shortens it, because a worker may serve several queues.
* The announcement of a failed worker (4c) has the number of tasks that came back; so has the one for a released task.
* A retried task goes to the back. There is no place for failed tasks: `fail` finishes the task, with the announcement
  `done`, and the worker logs the error. Bytes that are not text are replaced in that announcement.
* Windlass workers drop a task that a peer cancels (`obey_cancel`). A cancellation by Windlass has told them already and
  must not cancel a task that was enqueued after it: for 3 s they ignore its announcement.
* The mark of a unique task is deleted when the task finishes, as in the published package; also when it is cancelled
  and does not run, unless its id is a hash (the server has no MD5): then the mark stays until the task's worker ends
  it. Purging a queue keeps the marks.
* The published package cannot lease an empty task: it leaves it to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import md5, sha1
from typing import TypeVar

from msgspec import structs

from windlass.storage.compat.base import ForeignLayout
from windlass.storage.compat.base.keys import ledger_key
from windlass.storage.port import NO_LEASES, Argument, Beat, Call, LeaseRequest, Turn
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

    def turn(self, outcomes: Sequence[Outcome] = (), request: LeaseRequest = NO_LEASES) -> Call[Turn]:
        return _with_workers(super().turn(outcomes, request), [request.holder] if request.holder else [])

    def beat(self, holder: str, seconds: float, *, register: bool, failure_handler: Limits | None = None) -> Call[Beat]:
        return _with_workers(
            super().beat(holder, seconds, register=register, failure_handler=failure_handler), [holder]
        )

    def extend(self, leases: Sequence[Lease], seconds: float) -> Call[list[bool]]:
        holders = dict.fromkeys(lease.holder or f".{lease.fence}" for lease in leases)
        return _with_workers(super().extend(leases, seconds), holders)

    def id_of(self, job: NewJob) -> str:
        """The id of a task is its text or hash."""
        return name_of(job.data)

    def _pack_outcome(self, outcome: Outcome) -> tuple[Argument, ...]:
        """Pack the verb, the task's MD5 (in the key of a unique task's mark), and whether the task is text."""
        verb, a, b, _ = super()._pack_outcome(outcome)
        task = outcome.lease.data
        return (verb, a, b, _md5(task) + ("t" if _is_text(task) else "b"))

    def cancel(self, ids: Sequence[str], *, running: bool) -> Call[list[bool]]:
        """Remove every waiting copy of these tasks; with `running`, tell their workers, also those of other systems."""
        return super().cancel([f"{_md5(id.encode())}{id}" for id in ids], running=running)

    @property
    def peer_cancel_channel(self) -> str:
        """The channel of cancelled tasks, of Windlass and of other systems. The message is the task."""
        return f"{PREFIX}_{self.queue}_cancel"

    def obey_cancel(self, holder: str, message: bytes) -> Call[bool]:
        """A peer cancelled a task: cancel this holder's runs of it. The holder hears of it on its own channel."""
        return self._write("peer_cancel", "cancel", [holder, message, _md5(message)], lambda reply: reply == 1)

    def get(self, id: str) -> Call[JobRecord | None]:
        """Read a task by its text or hash: a running one, else a waiting one."""
        return self._read("get", "get", [id], lambda row: self._read_row(row) if row else None)

    def wake_channel(self, waiter: str) -> str:
        """The channel on which Windlass and other systems announce work."""
        return f"{PREFIX}_{self.queue}_work"


def _with_workers(call: Call[T], workers: Iterable[str]) -> Call[T]:
    """Add the keys of these workers to a call, so that its script checks their types before it writes anything."""
    names = [f"{PREFIX}:{name}:{worker}" for worker in workers for name in ("workingQueues", "workerTimers")]
    return structs.replace(call, keys=(*call.keys[:-1], *names, call.keys[-1]))


def name_of(task: bytes) -> str:
    """The id of a task: its text, or its hash."""
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
