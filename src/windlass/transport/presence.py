"""Worker heartbeats for people: each worker writes a record every few seconds; this lists workers and queues.

No lease and no job depends on these records, so a worker that cannot write them works all the same.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs

from windlass.errors import WindlassError
from windlass.storage.native import keys, scripts
from windlass.storage.port import Call
from windlass.transport.io_steps import Flow
from windlass.transport.session import Session
from windlass.values.validation import check_name
from windlass.values.worker_record import LOST, WorkerRecord

FORGET_AFTER_S = 60.0  # a silent worker leaves the list: long enough that people see it as lost first
MAX_MISSED_BEATS = 3  # then a worker counts as lost: one or two may be late on a busy server

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WorkerRecord).decode


# -- calls -----------------------------------------------------------------------------------------
# None of these is a numbered operation: repeating one does no harm.


def beat(record: WorkerRecord, namespace: str = "") -> Call[bool]:
    """Write a worker's record."""
    return _beat(namespace, record.name, _encode(record), "write the worker's record")


def forget(name: str, namespace: str = "") -> Call[bool]:
    """Delete the record of a worker that ends."""
    return _beat(namespace, name, b"", "delete the worker's record")


def _beat(namespace: str, name: str, record: bytes, about: str) -> Call[bool]:
    args = (name, record, round(FORGET_AFTER_S * 1000))
    return Call(scripts.PRESENCE_BEAT, keys.presence_keys(namespace), args, lambda reply: reply == 1, False, about)


def list_workers(session: Session, namespace: str = "") -> Flow[list[WorkerRecord]]:
    """The workers that have sent a heartbeat within FORGET_AFTER_S, by name."""
    args = (round(FORGET_AFTER_S * 1000),)
    found = keys.presence_keys(namespace)
    return session.perform(Call(scripts.PRESENCE_LIST, found, args, _read, False, "list the workers"))


def _read(reply: list[Any]) -> list[WorkerRecord]:
    *entries, now = reply
    found = [
        _record(name.decode(errors="replace"), float(seen), written, int(now))
        for name, seen, written in zip(*entries, strict=True)
    ]
    return sorted(found, key=lambda record: record.name)


def _record(name: str, seen_ms: float, written: bytes | None, now_ms: int) -> WorkerRecord:
    """Read a record. One that another version wrote may be unreadable: then only name and time are known."""
    try:
        record = _decode(written or b"")
    except (msgspec.DecodeError, ValueError):
        record = WorkerRecord(name, state="unknown")
    lost = now_ms - seen_ms > MAX_MISSED_BEATS * max(1.0, record.every) * 1000
    return structs.replace(record, name=name, seen_at=seen_ms / 1000, state=LOST if lost else record.state)


def list_queues(session: Session, namespace: str = "") -> Flow[list[str]]:
    """The queues that have any key in the server, by name."""
    found = yield from session.scan(keys.any_queue(namespace))
    return sorted({name for key in found if (name := keys.queue_of(key)) and _is_name(name)})


def _is_name(name: str) -> bool:
    try:
        return bool(check_name(name))
    except WindlassError:
        return False
