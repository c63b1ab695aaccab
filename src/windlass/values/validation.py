"""Checks names, ids, payloads and numbers before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass.errors import InvalidId, InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge

MAX_PAYLOAD = 1024 * 1024  # bytes, by default: larger data belongs into a store, with a reference in the job
LARGEST_PAYLOAD = 512 * 1024 * 1024  # bytes, the upper bound of max_payload: the largest string that a server holds
MAX_ID_BYTES = 512
MAX_COUNT = 2**32 - 1  # the server stores limits in four bytes
MAX_DEAD = 1000  # dead jobs that a queue keeps by default; the oldest are dropped when there are more
MAX_BROKEN = 1000  # broken jobs that a queue keeps by default; none is dropped
MAX_MESSAGE = 4096  # bytes: an error's text must not outgrow its job
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: object, what: str = "queue") -> str:
    """Check a name: it must be safe in a key, a channel and a URL."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "…"
        raise InvalidName(
            f"{shown} is not a {what} name: use 1 to 128 letters, digits, dots, underscores and hyphens, "
            "beginning with a letter or digit"
        )
    return name


def check_id(id: object) -> str:
    """Check a job id: any text of 1 to 512 bytes."""
    if not isinstance(id, str):
        raise InvalidId(f"a job id must be a string, not {type(id).__name__}")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise InvalidId("a job id must be valid Unicode text") from None
    if not 1 <= size <= MAX_ID_BYTES:
        remedy = "hash a longer one" if size else "omit it to get a random one"
        raise InvalidId(f"a job id must have 1 to {MAX_ID_BYTES} bytes, not {size}: {remedy}")
    return id


def check_payload(data: object, limit: int) -> bytes:
    """Check a payload: bytes, no longer than the limit."""
    if type(data) is not bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidPayload(
                f"data must be bytes, not {type(data).__name__}: encode it first, for example with "
                "json.dumps(…).encode()"
            )
        data = bytes(data)
    if len(data) > limit:
        raise PayloadTooLarge(
            f"data has {len(data):,} bytes and the limit is {limit:,}: store it elsewhere and enqueue a "
            "reference, or allow more with Windlass(max_payload=…)"
        )
    return data


def check_whole(value: object, what: str, least: int, most: int) -> int:
    """Check a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOption(f"{what} must be a whole number from {least} to {most}, not {value!r}")
    return value


def check_progress(value: object) -> None:
    """Check a progress value: a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidOption(f"progress must be a number from 0 to 1, not {value!r}")


def check_priority(priority: object) -> int:
    """Check a priority: 0 (first) to 9 (last)."""
    return check_whole(priority, "priority", 0, 9)


def check_choice(value: object, what: str, choices: tuple[str, ...]) -> str:
    """Check that a value is one of the choices."""
    if value not in choices:
        raise InvalidOption(f"{what} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return str(value)


def check_flag(value: object, what: str) -> bool:
    """Check a bool."""
    if not isinstance(value, bool):
        raise InvalidOption(f"{what} must be True or False, not {value!r}")
    return value


def check_known(options: Mapping[str, object], known: type, who: str | None = None) -> None:
    """Refuse unknown options. `known` is the TypedDict of the known ones."""
    for name in sorted(options.keys() - known.__annotations__.keys()):
        if who is None:
            raise InvalidOption(f"unknown option {name!r}: the options are {listed(known)}")
        raise InvalidOption(f"{who} has no option {name!r}: the options are {listed(known)}")


def listed(known: type) -> str:
    """The options of a TypedDict, for an error message."""
    return ", ".join(known.__annotations__)


def shortened(message: str) -> str:
    """Cut a message to MAX_MESSAGE bytes."""
    return message.encode("utf-8", "replace")[:MAX_MESSAGE].decode("utf-8", "ignore")
