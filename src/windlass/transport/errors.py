"""Turns connection failures and error replies into the public errors, which say whether the operation was applied.

An error reply means that the operation was not applied. The exception is an unknown error: a script may have raised it
half-way. A lost connection leaves the outcome unknown, so the session repeats the operation under the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from windlass import errors


class WireLost(Exception):
    """The connection broke or timed out after the request may have been sent."""


class ConnectFailed(Exception):
    """No connection was made, so nothing was sent. `reason` is the public error if the server itself gave a reason."""

    def __init__(self, text: str, reason: errors.WindlassError | None = None) -> None:
        super().__init__(text)
        self.reason = reason


# What `Windlass.run` and `arun` raise for a server that cannot be used now and may be usable soon.
SERVER_UNAVAILABLE = (
    errors.ServerUnreachable,
    errors.ServerLoading,
    errors.ServerReadOnly,
    errors.ServerBusy,
    errors.OutcomeUnknown,
)


def public_error(error: ConnectFailed | WireLost, server: object) -> errors.WindlassError:
    """Return the public error for a transport error."""
    if isinstance(error, ConnectFailed):
        return error.reason or errors.ServerUnreachable(
            f"no connection to {server} ({error}); nothing was sent. Is the server running, and is the URL right?"
        )
    return errors.OutcomeUnknown(
        f"the connection to {server} was lost ({error}). A request that was under way may have been applied or not: "
        "check, then try again"
    )


class Action(Enum):
    """What the session does about an error reply."""

    GIVE_UP = auto()
    TRY_AGAIN = auto()
    LOAD_SCRIPTS = auto()
    MOVE = auto()
    ASK = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """A classified error reply: the session's next step, the public error, and what the user can do."""

    action: Action
    error: type[errors.WindlassError]
    remedy: str


_TABLE: tuple[tuple[str, Fault], ...] = (
    ("NOSCRIPT", Fault(Action.LOAD_SCRIPTS, errors.ServerBusy, "its script cache is flushed again and again; find the program that runs SCRIPT FLUSH")),
    ("MOVED", Fault(Action.MOVE, errors.ServerBusy, "the cluster keeps moving the queue's slot")),
    ("ASK", Fault(Action.ASK, errors.ServerBusy, "the cluster keeps moving the queue's slot")),
    ("TRYAGAIN", Fault(Action.TRY_AGAIN, errors.ServerBusy, "the queue's slot is being moved; try again")),
    ("CLUSTERDOWN", Fault(Action.TRY_AGAIN, errors.ServerBusy, "part of the cluster is down; look at CLUSTER INFO")),
    ("MASTERDOWN", Fault(Action.TRY_AGAIN, errors.ServerReadOnly, "it is a replica that has lost its primary; connect to the primary or use Sentinel")),
    ("LOADING", Fault(Action.TRY_AGAIN, errors.ServerLoading, "it is still reading its data; try again in a while")),
    ("BUSY", Fault(Action.TRY_AGAIN, errors.ServerBusy, "a script blocks it; look at SLOWLOG")),
    ("READONLY", Fault(Action.TRY_AGAIN, errors.ServerReadOnly, "it is a replica; connect to the primary or use Sentinel")),
    ("NOREPLICAS", Fault(Action.TRY_AGAIN, errors.ServerReadOnly, "too few replicas are in step (min-replicas-to-write)")),
    ("MISCONF", Fault(Action.GIVE_UP, errors.ServerReadOnly, "it cannot write to its disk; look at its log")),
    ("OOM", Fault(Action.GIVE_UP, errors.QueueFull, "its memory is full: raise maxmemory, or wait until workers have finished jobs")),
    ("NOAUTH", Fault(Action.GIVE_UP, errors.AccessDenied, "it requires a password: put one into the URL")),
    ("WRONGPASS", Fault(Action.GIVE_UP, errors.AccessDenied, "the user name or password is wrong: check the URL")),
    ("NOPERM", Fault(Action.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ACL failure", Fault(Action.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ERR The user executing the script", Fault(Action.GIVE_UP, errors.AccessDenied, "this user may not do that: give it the rights named in docs/server.md")),
    ("ERR max number of clients", Fault(Action.TRY_AGAIN, errors.ServerUnreachable, "nothing was sent; close connections or raise its maxclients")),
    ("ERR DB index", Fault(Action.GIVE_UP, errors.InvalidOption, "it has no such database: use a lower number in the URL")),
    ("WRONGTYPE", Fault(Action.GIVE_UP, errors.KeyConflict, "another program wrote a key of this queue: rename or delete that key")),
    ("CROSSSLOT", Fault(Action.GIVE_UP, errors.UnsupportedByLayout, "this layout spreads its keys over several cluster slots: use the layout native or queasy, or a single server")),
    ("FORMAT", Fault(Action.GIVE_UP, errors.KeyConflict, "use one version of Windlass for a queue, or delete its keys")),
    ("GENERATION", Fault(Action.GIVE_UP, errors.KeyConflict, "use another queue name, or let the workers of that release empty this queue and then delete the key")),
    ("STALEOP", Fault(Action.GIVE_UP, errors.OutcomeUnknown, "an older request arrived after a newer one")),
)  # fmt: skip
_UNKNOWN = Fault(Action.GIVE_UP, errors.ServerFault, "Windlass does not know this error; please report it")


def classify(text: str) -> Fault:
    """Look up an error reply by its code. If a script raised it, other words may come before the code."""
    for code, fault in _TABLE:
        if text.startswith(code):
            return fault
    for code, fault in _TABLE:
        if f"{code} " in text:
            return fault
    return _UNKNOWN
