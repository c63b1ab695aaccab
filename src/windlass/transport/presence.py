"""Which workers and queues there are: what workers tell the server every few seconds, and how it is read.

People look at this. No lease and no job depends on it, so a worker that cannot write here works all the same.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from windlass.errors import WindlassError
from windlass.storage.native import keys, scripts
from windlass.storage.port import Call
from windlass.transport.session import Session
from windlass.transport.wire import Flow
from windlass.values.validation import check_name
from windlass.values.worker_record import LOST, WorkerRecord

FORGOTTEN = 60.0  # seconds after which a worker that was not heard of is gone
SIGNS_MISSED = 3  # after so many a worker counts as lost

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


# -- calls -----------------------------------------------------------------------------------------
# They are no operations with a number: to repeat one of them does no harm.


def beat(record: WorkerRecord) -> Call[bool]:
    """Write what a worker tells of itself."""
    return _beat(record.name, _encode(record), "tell the fleet of a worker")


def forget(name: str) -> Call[bool]:
    """A worker ends."""
    return _beat(name, b"", "take a worker off the fleet")


def _beat(name: str, told: bytes, about: str) -> Call[bool]:
    args = (name, told, round(FORGOTTEN * 1000))
    return Call(scripts.PRESENCE_BEAT, keys.presence_keys(), args, lambda reply: reply == 1, False, about)


def list_workers(session: Session) -> Flow[list[WorkerRecord]]:
    """All workers that were heard of of late, by name."""
    args = (round(FORGOTTEN * 1000),)
    return session.perform(Call(scripts.PRESENCE_LIST, keys.presence_keys(), args, _read, False, "list the workers"))


def _read(reply: list[Any]) -> list[WorkerRecord]:
    *entries, now = reply
    found = [
        _record(name.decode(errors="replace"), int(seen), told, int(now))
        for name, seen, told in zip(*entries, strict=True)
    ]
    return sorted(found, key=lambda record: record.name)


def _record(name: str, seen_ms: int, told: bytes | None, now_ms: int) -> WorkerRecord:
    """What another version told may not be readable here; that there is such a worker is known all the same."""
    try:
        record = _decode(told or b"")
    except (msgspec.DecodeError, ValueError):
        record = WorkerRecord(name, state="unknown")
    lost = now_ms - seen_ms > SIGNS_MISSED * max(1.0, record.every) * 1000
    return structs.replace(record, name=name, seen_at=seen_ms / 1000, state=LOST if lost else record.state)


def list_queues(session: Session) -> Flow[list[str]]:
    """All queues that have something in the server, by name."""
    found = yield from session.scan(keys.ANY_QUEUE)
    return sorted({name for key in found if (name := keys.queue_of(key)) and _is_name(name)})


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name))
    except WindlassError:
        return False
