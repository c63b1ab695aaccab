"""The table that turns what goes wrong between us and the server into what a caller must know: did it happen?

A reply with an error was read, so the operation was judged: it was not applied, unless the error is one that we
do not know: that one may have come in the middle of a script. A wire that broke leaves it open; the operation is then repeated under the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from windlass import errors


class WireLost(Exception):
    """The connection broke, or did not answer in time, after the request may have left."""


class ConnectFailed(Exception):
    """No connection was made, so nothing was sent. `reason` when the server itself said why."""

    def __init__(self, text: str, reason: errors.WindlassError | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class Next(Enum):
    """What to do about an error reply."""

    GIVE_UP = auto()
    TRY_AGAIN = auto()
    LOAD_SCRIPTS = auto()
    MOVE = auto()
    ASK = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """An error reply, understood."""

    next: Next
    error: type[errors.WindlassError]
    remedy: str


_TABLE: tuple[tuple[str, Fault], ...] = (
    ("NOSCRIPT", Fault(Next.LOAD_SCRIPTS, errors.ServerBusy, "its script cache is flushed faster than it is filled")),
    ("MOVED", Fault(Next.MOVE, errors.ServerBusy, "the cluster keeps moving the queue's slot")),
    ("ASK", Fault(Next.ASK, errors.ServerBusy, "the cluster keeps moving the queue's slot")),
    ("TRYAGAIN", Fault(Next.TRY_AGAIN, errors.ServerBusy, "the queue's slot is being moved; try again")),
    ("CLUSTERDOWN", Fault(Next.TRY_AGAIN, errors.ServerBusy, "the cluster is not whole; look at CLUSTER INFO")),
    ("MASTERDOWN", Fault(Next.TRY_AGAIN, errors.ServerReadOnly, "it is a replica without its primary")),
    ("LOADING", Fault(Next.TRY_AGAIN, errors.ServerLoading, "it is still reading its data; try again in a while")),
    ("BUSY", Fault(Next.TRY_AGAIN, errors.ServerBusy, "a script blocks it; look at SLOWLOG")),
    ("READONLY", Fault(Next.TRY_AGAIN, errors.ServerReadOnly, "it is a replica; connect to the primary or use Sentinel")),
    ("NOREPLICAS", Fault(Next.TRY_AGAIN, errors.ServerReadOnly, "too few replicas are in step (min-replicas-to-write)")),
    ("MISCONF", Fault(Next.GIVE_UP, errors.ServerReadOnly, "it cannot write to its disk; look at its log")),
    ("OOM", Fault(Next.GIVE_UP, errors.QueueFull, "its memory is full: raise maxmemory, or wait until jobs are worked off")),
    ("NOAUTH", Fault(Next.GIVE_UP, errors.AccessDenied, "it wants a password: put one into the URL")),
    ("WRONGPASS", Fault(Next.GIVE_UP, errors.AccessDenied, "the user name or password is wrong: check the URL")),
    ("NOPERM", Fault(Next.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ACL failure", Fault(Next.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ERR The user executing the script", Fault(Next.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ERR max number of clients", Fault(Next.TRY_AGAIN, errors.ServerUnreachable, "nothing was sent; close connections or raise its maxclients")),
    ("ERR DB index", Fault(Next.GIVE_UP, errors.InvalidOption, "it has no such database: use a lower number in the URL")),
    ("WRONGTYPE", Fault(Next.GIVE_UP, errors.KeyConflict, "a key of this queue holds something else: rename or delete that key")),
    ("CROSSSLOT", Fault(Next.GIVE_UP, errors.UnsupportedByLayout, "the keys of this layout lie in several slots of the cluster: use a native queue or queasy there, or a single server")),
    ("FORMAT", Fault(Next.GIVE_UP, errors.KeyConflict, "use one version of Windlass for a queue, or delete its keys")),
    ("STALEOP", Fault(Next.GIVE_UP, errors.OutcomeUnknown, "an older request arrived after a newer one")),
)  # fmt: skip
_UNKNOWN = Fault(Next.GIVE_UP, errors.ServerFault, "this is not an error that Windlass knows; please report it")


def understand(text: str) -> Fault:
    """The entry for an error reply, by its text: inside a script the code may stand behind other words."""
    for code, fault in _TABLE:
        if text.startswith(code):
            return fault
    for code, fault in _TABLE:
        if f"{code} " in text:
            return fault
    return _UNKNOWN
