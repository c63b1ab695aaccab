"""Every error that Windlass raises, as one small tree.

    WindlassError
    ├── InvalidInput (also ValueError)     an argument cannot be used; nothing was sent
    │   ├── InvalidName                      a queue or holder name
    │   ├── InvalidId                        a job id
    │   ├── InvalidPayload                   data that is not bytes
    │   ├── PayloadTooLarge                  data over the limit
    │   ├── NoSuchQueue                      a pattern that no queue matches
    │   ├── InvalidOption                    priority, counts, flags, durations, URLs
    │   ├── InvalidTime                      a run_at or delay that is not a valid time
    │   ├── InvalidTask                      a task, handler or schedule that cannot be declared so
    │   ├── InvalidArguments                 arguments that do not fit the task
    │   └── ForeignLease                     a lease of another queue, or no lease
    ├── Undecodable                        a payload that cannot be decoded
    ├── TooManyUndecodable                 many jobs in a row that this program cannot decode
    ├── JobFailed                          a job failed for good
    │   └── StallError                       its lease was lost too often
    │       └── CrashError                     its process died too often
    ├── ResultMissing                      the job is gone, and no result was kept
    │   └── JobExpired                       it expired before its first attempt
    ├── UnsupportedByLayout                the queue's layout does not support the operation
    ├── NotApplied                         the operation did not happen: safe to try again
    │   ├── ServerUnreachable                no connection could be made
    │   ├── ServerLoading                    the server is still reading its data
    │   ├── ServerReadOnly                   it is a replica, or refuses writes
    │   ├── ServerBusy                       a script blocks it, or part of the cluster is down
    │   ├── QueueFull                        the server has no memory left for new jobs
    │   └── AccessDenied                     wrong password, or the user may not do this
    ├── NotDurable                         the job is on the queue, below the durability asked for
    ├── OutcomeUnknown                     the reply was lost: applied or not, we cannot know
    │   └── ServerFault                      the server answered with an unknown error
    ├── ServerUnfit                        the server is not fit for a queue
    │   ├── ServerTooOld                     older than Redis 7.0 or Valkey 7.2
    │   └── ServerMayEvict                   its eviction policy may delete jobs
    ├── KeyConflict                        another program wrote one of the queue's keys
    └── EmbeddedError                      the embedded server could not be found, started or stopped
        ├── ServerBinaryMissing              no valkey-server or redis-server was found
        └── ServerWillNotStart               the server process did not come up

One class is no error: `BlockingCallWarning` tells of a blocking verb inside an event loop.

Each message says what happened, to which queue or job, and what to do next. After a connection error the class says
whether the operation happened: `NotApplied` (no) or `OutcomeUnknown` (maybe).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.values.job import Receipt


class WindlassError(Exception):
    """The base of all errors that Windlass raises."""


class InvalidInput(WindlassError, ValueError):
    """An argument cannot be used; nothing was sent to the server."""


class InvalidName(InvalidInput):
    """A queue or holder name that is not `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`."""


class NoSuchQueue(InvalidInput):
    """No queue has a name of this pattern."""


class InvalidId(InvalidInput):
    """A job id that is not a string of 1 to 512 bytes."""


class InvalidPayload(InvalidInput):
    """Data that is not bytes."""


class PayloadTooLarge(InvalidInput):
    """Data over the payload limit."""


class InvalidOption(InvalidInput):
    """An option outside the values it may take."""


class InvalidTime(InvalidInput):
    """A run time or delay that is not a valid time."""


class InvalidTask(InvalidInput):
    """A task, handler or schedule that cannot be declared like this."""


class InvalidArguments(InvalidInput):
    """Arguments that do not fit the signature of their task."""


class ForeignLease(InvalidInput):
    """A lease of another queue, or an object that is not a lease."""


class Undecodable(WindlassError):
    """A payload that cannot be decoded. `worker_specific`: a worker with other code or keys may decode it."""

    def __init__(self, reason: str, *, worker_specific: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.worker_specific = worker_specific


class TooManyUndecodable(WindlassError):
    """This program could not decode many jobs of a queue in a row. It released the others."""


class JobFailed(WindlassError):
    """A job failed for good. `queue` and `id` name it, `message` is the last error."""

    def __init__(self, queue: str, id: str, message: str = "") -> None:
        super().__init__(queue, id, message)
        self.queue = queue
        self.id = id
        self.message = message

    def __str__(self) -> str:
        message = f": {self.message}" if self.message else ""
        return f"job {self.id!r} of queue {self.queue!r} failed for good{message}"


class StallError(JobFailed):
    """A job lost its lease, and its `stalls` exceeded `max_stalls` ("When a job is dead" in docs/tasks.md)."""


class CrashError(StallError):
    """A job's process died, and its `stalls` exceeded `max_stalls` ("When a job is dead" in docs/tasks.md)."""


class ResultMissing(WindlassError):
    """There is no result: the task keeps none, the job was cancelled, or nothing tells how it ended."""


class JobExpired(ResultMissing):
    """The job expired before its first attempt, so it did not run."""


class UnsupportedByLayout(WindlassError):
    """The layout of this queue does not support the operation."""


class NotApplied(WindlassError):
    """The operation did not happen; it is safe to try it again."""


class ServerUnreachable(NotApplied):
    """No connection could be made, or it was lost in a call that writes nothing."""


class ServerLoading(NotApplied):
    """The server is still reading its data from disk."""


class ServerReadOnly(NotApplied):
    """The server is a replica, or refuses writes for now."""


class ServerBusy(NotApplied):
    """A script blocks the server, or part of the cluster is down."""


class QueueFull(NotApplied):
    """The server has no memory left for new jobs."""


class AccessDenied(NotApplied):
    """The password is wrong, or the user lacks a permission."""


class NotDurable(WindlassError):
    """The jobs are on the queue, below the durability asked for. `receipts` has their ids and levels."""

    def __init__(self, queue: str, asked: str, reached: str, receipts: Sequence[Receipt]) -> None:
        super().__init__(queue, asked, reached, receipts)
        self.queue = queue
        self.asked = asked
        self.reached = reached
        self.receipts = list(receipts)

    def __str__(self) -> str:
        jobs = f"job {self.receipts[0].id!r}" if len(self.receipts) == 1 else f"{len(self.receipts)} jobs"
        return (
            f"enqueue on queue {self.queue!r}: the server has {jobs}, with durability {self.reached} instead of "
            f"{self.asked}. {_REMEDIES[self.asked.partition('(')[0]]}"
        )


_DISK = "Set `appendonly yes` and `appendfsync always`, and allow +config|get"
_REMEDIES = {
    "everysec": "Set `appendonly yes` and `appendfsync everysec` or `always`, and allow +config|get",
    "fsync": f"{_DISK}; check whether its disk keeps up",
    "replicated": f"{_DISK}; check that enough replicas are in sync (INFO replication), and allow +wait",
}


class OutcomeUnknown(WindlassError):
    """The reply was lost, and no repeat got one: the operation may or may not have happened."""


class ServerUnfit(WindlassError):
    """The server is not fit for a queue as it is."""


class ServerTooOld(ServerUnfit):
    """The server is older than Redis 7.0 or Valkey 7.2."""


class ServerMayEvict(ServerUnfit):
    """The server's eviction policy may delete jobs when memory runs short."""


class KeyConflict(WindlassError):
    """Another program, or another version of Windlass, wrote one of the queue's keys."""


class ServerFault(OutcomeUnknown):
    """The server answered with an error that Windlass does not know. A script may have stopped half-way."""


class EmbeddedError(WindlassError):
    """The embedded server could not be found, started or stopped."""


class ServerBinaryMissing(EmbeddedError):
    """No valkey-server or redis-server was found."""


class ServerWillNotStart(EmbeddedError):
    """The embedded server was started, but did not come up."""


class BlockingCallWarning(UserWarning):
    """A blocking verb was called inside a running event loop: await the verb with an `a` in front instead."""
