"""The payload of a task's job: `{"task": "welcome", "args": {"user_id": 42}}`. Any language can write it.

`args` is an object (by name) or an array (by position). `"keep": 60` keeps the result for 60 seconds. Unknown fields
are ignored, so that newer producers do not break older workers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from windlass.errors import Undecodable

MAX_KEEP_S = 10 * 365 * 86400.0  # the longest duration that Windlass accepts anywhere
MAX_TASK_NAME = 128  # characters; keeps log lines and records short, whatever a payload contains
NO_ARGUMENTS = msgspec.Raw(b"{}")


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task name, its encoded arguments, and how long to keep the result (seconds)."""

    task: Annotated[str, msgspec.Meta(max_length=MAX_TASK_NAME)]
    args: msgspec.Raw = NO_ARGUMENTS
    keep: Annotated[float, msgspec.Meta(ge=0, le=MAX_KEEP_S)] = 0.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Envelope).decode


def write_envelope(task: str, args: bytes = b"{}", keep: float = 0.0) -> bytes:
    """Build the payload for a task and its JSON-encoded arguments."""
    before, behind = around_arguments(task, keep)
    return before + args + behind


def around_arguments(task: str, keep: float) -> tuple[bytes, bytes]:
    """The bytes of a payload before and after its arguments. They are the same for all calls of a task."""
    before = b'{"task":' + _encode(task) + b',"args":'
    return before, b',"keep":' + _encode(keep) + b"}" if keep else b"}"


def read_envelope(data: bytes) -> Envelope:
    """Decode a payload. Raises `Undecodable`."""
    try:
        envelope = _decode(data)
    except RecursionError:
        raise Undecodable("the payload is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:  # text that is not UTF-8 is a ValueError
        raise Undecodable(f'the payload is not a task ({error}): write {{"task": "name", "args": {{…}}}}') from None
    if memoryview(envelope.args)[0] not in b"{[":
        raise Undecodable(f"args of task {envelope.task!r} must be an object or an array")
    return envelope
