"""Every error that Windlass raises, as one small tree.

    WindlassError
    ├── InvalidInput (also ValueError)     what was passed cannot be used; nothing was sent
    │   ├── InvalidName                      a queue or holder name
    │   ├── InvalidId                        a job id
    │   ├── InvalidPayload                   data that is not bytes
    │   ├── PayloadTooLarge                  data over the limit
    │   ├── InvalidOption                    priority, counts, flags, durations, URLs
    │   ├── InvalidTime                      run_at or delay that is no moment in time
    │   ├── InvalidTask                      a task or handler that cannot be declared like this
    │   ├── InvalidArguments                 arguments that do not fit the task
    │   └── ForeignLease                     a lease of another queue
    ├── Undecodable                        a payload that cannot be decoded
    ├── TooManyUndecodable                 many jobs in a row that this program cannot decode
    ├── JobFailed                          a job failed for good
    │   └── StallError                       its lease was lost too often
    │       └── CrashError                     its process died too often
    ├── ResultMissing                      the job is gone, and nothing of it was kept
    ├── UnsupportedByLayout                the queue's layout has no such operation
    ├── NotApplied                         the operation did not happen: safe to try again
    │   ├── ServerUnreachable                no connection could be made
    │   ├── ServerLoading                    the server is still reading its data
    │   ├── ServerReadOnly                   it is a replica, or refuses writes
    │   ├── ServerBusy                       it answers nobody for now, or the cluster is not whole
    │   ├── QueueFull                        the server has no memory left for new jobs
    │   └── AccessDenied                     wrong password, or the user may not do this
    ├── NotDurable                         the job is on the queue, but not as safe as was asked for
    ├── OutcomeUnknown                     the reply was lost and could not be asked for again
    │   └── ServerFault                      the server answered with an error we do not know
    ├── ServerUnfit                        the server must not be used
    │   ├── ServerTooOld                     older than Redis 7.0 or Valkey 7.2
    │   └── ServerMayEvict                   its eviction policy may throw jobs away
    ├── KeyConflict                        one of the queue's keys holds something that is not ours
    └── EmbeddedError                      the embedded server could not be found, started or stopped
        ├── ServerBinaryMissing              no valkey-server or redis-server anywhere
        └── ServerWillNotStart               it was started and did not come up

Each message says what happened, to what, and what to do next. `NotApplied` and `OutcomeUnknown`
answer the one question that matters after a connection error: did it happen?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.values.job import Receipt


class WindlassError(Exception):
    """Anything that Windlass raises on purpose."""


class InvalidInput(WindlassError, ValueError):
    """What was passed cannot be used; nothing was sent to the server."""


class InvalidName(InvalidInput):
    """A queue or holder name that is not `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`."""


class InvalidId(InvalidInput):
    """A job id that is not a string of 1 to 512 bytes."""


class InvalidPayload(InvalidInput):
    """Data that is not bytes."""


class PayloadTooLarge(InvalidInput):
    """Data over the payload limit."""


class InvalidOption(InvalidInput):
    """An option outside the values it may take."""


class InvalidTime(InvalidInput):
    """A run time or delay that is no moment in time."""


class InvalidTask(InvalidInput):
    """A task or handler that cannot be declared like this."""


class InvalidArguments(InvalidInput):
    """Arguments that do not fit the signature of their task."""


class ForeignLease(InvalidInput):
    """A lease that was given out by another queue."""


class Undecodable(WindlassError):
    """A payload that cannot be decoded. `worker_specific`: a program with other code or keys may be able to."""

    def __init__(self, reason: str, *, worker_specific: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.worker_specific = worker_specific


class TooManyUndecodable(WindlassError):
    """Many jobs of a queue in a row cannot be decoded by this program: it gave the others back."""


class JobFailed(WindlassError):
    """A job failed for good: which one, and the last that was said about it."""

    def __init__(self, queue: str, id: str, message: str = "") -> None:
        super().__init__(queue, id, message)
        self.queue = queue
        self.id = id
        self.message = message

    def __str__(self) -> str:
        told = f": {self.message}" if self.message else ""
        return f"job {self.id!r} of queue {self.queue!r} failed for good{told}"


class StallError(JobFailed):
    """Its lease was lost more often than `max_stalls` forgives."""


class CrashError(StallError):
    """Its process died more often than `max_stalls` forgives."""


class ResultMissing(WindlassError):
    """The job is gone, and no result of it was kept."""


class UnsupportedByLayout(WindlassError):
    """The layout of this queue has no such operation."""


class NotApplied(WindlassError):
    """The operation did not happen; it is safe to try it again."""


class ServerUnreachable(NotApplied):
    """No connection could be made."""


class ServerLoading(NotApplied):
    """The server is still reading its data from disk."""


class ServerReadOnly(NotApplied):
    """The server is a replica, or refuses writes for now."""


class ServerBusy(NotApplied):
    """The server answers nobody for now, or the cluster is not whole."""


class QueueFull(NotApplied):
    """The server has no memory left for new jobs."""


class AccessDenied(NotApplied):
    """The password is wrong, or this user may not do this."""


class NotDurable(WindlassError):
    """The jobs are on the queue, but not as safe as was asked for. `receipts` has their ids, and what was reached."""

    def __init__(self, queue: str, asked: str, reached: str, receipts: Sequence[Receipt]) -> None:
        super().__init__(queue, asked, reached, receipts)
        self.queue = queue
        self.asked = asked
        self.reached = reached
        self.receipts = list(receipts)

    def __str__(self) -> str:
        jobs = f"job {self.receipts[0].id!r}" if len(self.receipts) == 1 else f"{len(self.receipts)} jobs"
        return (
            f"enqueue on queue {self.queue!r}: the server has {jobs}, but only as safe as {self.reached}, and "
            f"{self.asked} was asked for. {_REMEDIES[self.asked.partition('(')[0]]}"
        )


_DISK = "Set `appendonly yes` and `appendfsync always`, and let this user see that (+config|get)"
_REMEDIES = {
    "everysec": "Set `appendonly yes` and `appendfsync everysec` or `always`, and let this user see that (+config|get)",
    "fsync": f"{_DISK}; see whether its disk keeps up",
    "replicated": f"{_DISK}; see whether so many replicas are in step (INFO replication), and allow +wait",
}


class OutcomeUnknown(WindlassError):
    """The reply was lost and could not be asked for again: the operation may or may not have happened."""


class ServerUnfit(WindlassError):
    """The server must not be used for a queue as it is."""


class ServerTooOld(ServerUnfit):
    """Older than Redis 7.0 or Valkey 7.2."""


class ServerMayEvict(ServerUnfit):
    """Its eviction policy may throw jobs away when memory runs short."""


class KeyConflict(WindlassError):
    """One of the queue's keys holds something that Windlass did not put there."""


class ServerFault(OutcomeUnknown):
    """The server answered with an error that Windlass does not know: it may have come half-way."""


class EmbeddedError(WindlassError):
    """The embedded server could not be found, started or stopped."""


class ServerBinaryMissing(EmbeddedError):
    """There is no valkey-server or redis-server to run."""


class ServerWillNotStart(EmbeddedError):
    """The embedded server was started and did not come up."""
