"""The payload of a task's job: `{"task": "welcome", "args": {"user_id": 42}}`, as any language can write it.

`args` is an object by name or an array by place; `"keep": 60` keeps the result for so many seconds. Fields that are
not known are passed over, so that newer producers do not break older workers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from windlass.errors import Undecodable

LONGEST_KEEP = 10 * 365 * 86400.0
LONGEST_TASK = (
    128  # characters; no task can be declared with more, and what nobody can know must not fill logs and notes
)
NO_ARGUMENTS = msgspec.Raw(b"{}")


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name of a task, its arguments as they were written, and how long to keep the result (seconds)."""

    task: Annotated[str, msgspec.Meta(max_length=LONGEST_TASK)]
    args: msgspec.Raw = NO_ARGUMENTS
    keep: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_KEEP)] = 0.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Envelope).decode


def write_envelope(task: str, args: bytes = b"{}", keep: float = 0.0) -> bytes:
    """The payload for a task and its arguments, which are JSON already."""
    before, behind = around_arguments(task, keep)
    return before + args + behind


def around_arguments(task: str, keep: float) -> tuple[bytes, bytes]:
    """What a payload has before and behind its arguments: the same for all calls of a task."""
    before = b'{"task":' + _encode(task) + b',"args":'
    return before, b',"keep":' + _encode(keep) + b"}" if keep else b"}"


def read_envelope(data: bytes) -> Envelope:
    """The envelope that a payload is; `Undecodable` if it is none."""
    try:
        envelope = _decode(data)
    except RecursionError:
        raise Undecodable("the payload is nested too deep") from None
    except (msgspec.DecodeError, ValueError) as error:  # text that is not UTF-8 is a ValueError
        raise Undecodable(f'the payload is no task ({error}): write {{"task": "name", "args": {{…}}}}') from None
    if memoryview(envelope.args)[0] not in b"{[":
        raise Undecodable(f"args of task {envelope.task!r} must be an object or an array")
    return envelope
