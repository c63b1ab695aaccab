"""The messages of the service: what may come in and what goes out, each one JSON object on a line of its own.

docs/stdio.md tells the protocol, and docs/stdio.schema.json has it for programs.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from time import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

MOST_BYTES = 4 * 1024 * 1024  # of one line
_SHOWN = 120  # characters of a bad topic

Uuid = Annotated[str, Meta(min_length=1, max_length=512)]
QueueName = Annotated[str, Meta(min_length=1, max_length=128)]
Worker = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Moment = Annotated[datetime, Meta(tz=True)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
What = Literal["queued", "dispatched", "processing", "workers"]


class BadMessage(Exception):
    """A line that is no message; its text says why."""


class Identity(Struct, frozen=True):
    """Who this service is in its messages, and in which namespaces it listens and speaks."""

    service_name: str
    service_uuid: str
    service_host: str
    listener: str
    publisher: str


# -- payloads that come in ---------------------------------------------------------------------------


class AddJob(Struct, frozen=True):
    """A job to be queued. Whatever else is in the payload belongs to the job."""

    uuid: Uuid
    queue_name: QueueName
    priority: Annotated[int, Meta(ge=0, le=9)] = 5


class WorkerIdle(Struct, frozen=True):
    """A worker is ready for a job."""

    queue_name: QueueName


class JobAccepted(Struct, frozen=True):
    """A worker has begun with the job that it was assigned."""

    uuid: Uuid
    queue_name: QueueName
    started_at: Moment | None = None


class WorkerProgress(Struct, frozen=True):
    """A worker goes on with a job."""

    uuid: Uuid
    queue_name: QueueName
    progress: Fraction


class Status(Struct, frozen=True):
    """How far a busy worker is."""

    progress: Fraction | None = None


class WorkerBusy(Struct, frozen=True):
    """A worker is at work, on a job if it names one."""

    queue_name: QueueName
    uuid: Uuid | None = None
    status: Status = Status()


class JobFinished(Struct, frozen=True):
    """A worker is done with a job. The payload is kept as what became of it."""

    uuid: Uuid
    queue_name: QueueName
    finished_at: Moment | None = None


class Tick(Struct, frozen=True):
    """Time to look for what is lost."""


class ListRequest(Struct, frozen=True):
    """Somebody wants to know what there is on a queue."""

    queue_name: QueueName


Payload = AddJob | WorkerIdle | JobAccepted | WorkerProgress | WorkerBusy | JobFinished | Tick | ListRequest

_PAYLOADS: dict[str, type[Payload]] = {
    "add_job": AddJob,
    "worker_idle": WorkerIdle,
    "job_accepted": JobAccepted,
    "worker_progress": WorkerProgress,
    "worker_busy": WorkerBusy,
    "job_finished": JobFinished,
    "list_job_queue": ListRequest,
    "list_leased_queue": ListRequest,
    "list_progress_queue": ListRequest,
    "list_worker_queue": ListRequest,
}
_LISTS: dict[str, What] = {
    "list_job_queue": "queued",
    "list_leased_queue": "dispatched",
    "list_progress_queue": "processing",
    "list_worker_queue": "workers",
}
_OF_WORKERS = (WorkerIdle, JobAccepted, WorkerProgress, WorkerBusy, JobFinished)
_TOPIC = re.compile(r"job_queue/(?:workers/([^/]+)/)?([a-z_]+)")


class _Topic(Struct, frozen=True):
    topic: str


class _Line(Struct, frozen=True):
    topic: str
    payload: Raw = Raw(b"{}")
    service_name: str | None = None
    service_uuid: str | None = None
    service_host: str | None = None
    created_at: Moment | None = None


class Message(Struct, frozen=True):
    """One message that came in: its payload, read and as it was written, and who said it when (ms since 1970).

    `worker` is empty where none speaks; `sender` is who sent it, if it says so.
    """

    payload: Payload
    text: bytes
    name: str
    worker: str
    at: int
    sender: str | None

    @property
    def ago(self) -> int:
        """How many milliseconds ago it was said."""
        return max(0, round(time() * 1000) - self.at)

    @property
    def what(self) -> What:
        """What a list request asks for."""
        return _LISTS[self.name]


_line = msgspec.json.Decoder(_Line)
_decoders = {kind: msgspec.json.Decoder(kind) for kind in {*_PAYLOADS.values(), Tick}}
_worker = msgspec.json.Decoder(Worker)


def read_message(line: bytes, namespace: str) -> Message:
    """The message on a line; `BadMessage` tells what is wrong with it, and quotes nothing: it may hold secrets."""
    size = f"{len(line):,} bytes"
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"a line is not UTF-8 ({error.reason} at byte {error.start}): {size}") from None
    try:
        found = _line.decode(text)
        name, kind, named = _topic(found.topic, namespace)
        payload = _decoders[kind].decode(found.payload)
        worker = _speaker(found, named) if kind in _OF_WORKERS else ""
    except msgspec.ValidationError as error:
        raise BadMessage(f"a message is not as it should be ({error}): {size}{_about(text)}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadMessage(f"a line is not JSON ({error}): {size}") from None
    if worker and found.created_at is None:
        raise BadMessage(f"a worker's message has no created_at: {size}{_about(text)}")
    at = round((time() if found.created_at is None else found.created_at.timestamp()) * 1000)
    for moment in (found.created_at, getattr(payload, "started_at", None), getattr(payload, "finished_at", None)):
        _check_moment(moment, text)
    return Message(payload, bytes(found.payload), name, worker, at, found.service_uuid)


def _check_moment(moment: datetime | None, text: str) -> None:
    """At the edges of the calendar there are times that can be read in one zone and not be told in another."""
    try:
        if moment is not None:
            iso(round(moment.timestamp() * 1000))
            iso(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadMessage(f"a message has a time that is out of range{_about(text)}") from None


def _topic(topic: str, namespace: str) -> tuple[str, type[Payload], str | None]:
    prefix = f"{namespace}/" if namespace else ""
    inner = topic.removeprefix(prefix)
    if topic.startswith(prefix):
        if inner == "tick":
            return "tick", Tick, None
        found = _TOPIC.fullmatch(inner)
        if found and found[2] in _PAYLOADS:
            return found[2], _PAYLOADS[found[2]], found[1]
    raise BadMessage(f"there is no topic {topic[:_SHOWN]!r} here: see docs/stdio.md")


def _speaker(line: _Line, named: str | None) -> str:
    """Who says it: as its sender calls itself, or as the topic does."""
    worker = line.service_uuid or named
    if not worker:
        raise BadMessage("a worker's message has no service_uuid, and its topic names no worker")
    return _worker.decode(msgspec.json.encode(worker))


def _about(text: str) -> str:
    """What a message is about, if that can be read."""
    try:
        return f", topic {msgspec.json.decode(text, type=_Topic).topic[:_SHOWN]!r}"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""


# -- what goes out -----------------------------------------------------------------------------------


class QueuedJob(Struct, frozen=True):
    """A job that waits."""

    uuid: str
    priority: int


class RunningJob(Struct, frozen=True, omit_defaults=True):
    """A job that a worker was assigned, or has accepted."""

    uuid: str
    worker_uuid: str | None = None
    dispatched_at: str | None = None
    last_seen: str | None = None
    progress: float | None = None


class KnownWorker(Struct, frozen=True, omit_defaults=True):
    """A worker that was heard of."""

    uuid: str
    state: str
    last_seen: str | None = None


class JobList(Struct, frozen=True, omit_defaults=True):
    """The answer to a list request for jobs; some of them if there are very many."""

    queue_name: str
    total: int
    jobs: list[QueuedJob] | list[RunningJob]
    requested_by: str | None = None


class WorkerList(Struct, frozen=True, omit_defaults=True):
    """The answer to a list request for workers."""

    queue_name: str
    total: int
    workers: list[KnownWorker]
    requested_by: str | None = None


class _Out(Struct, frozen=True):
    topic: str
    service_name: str
    service_uuid: str
    service_host: str
    created_at: str
    payload: Raw


def write_message(identity: Identity, topic: str, payload: bytes) -> bytes:
    """A line; the payload is JSON already."""
    message = _Out(
        f"{identity.publisher}/{topic}" if identity.publisher else topic,
        identity.service_name,
        identity.service_uuid,
        identity.service_host,
        iso(round(time() * 1000)),
        Raw(msgspec.json.format(payload, indent=-1)),  # a payload may have been written over several lines
    )
    return msgspec.json.encode(message) + b"\n"


def write_assignment(
    identity: Identity, worker: str, data: bytes, uuid: str, queue: str, priority: int, dispatched_at: str
) -> bytes:
    """A line that assigns a job to a worker: the job's payload, and what must be known of every job."""
    topic = f"job_queue/workers/{worker}/job_assignment"
    known = {"uuid": uuid, "queue_name": queue, "priority": priority, "dispatched_at": dispatched_at}
    own = {name: Raw(msgspec.json.encode(value)) for name, value in known.items()}
    try:
        return write_message(identity, topic, msgspec.json.encode(_fields(data) | own))
    except RecursionError:  # nested so deep that it can just be read, but not within something else
        return write_message(identity, topic, msgspec.json.encode(_as_bytes(data) | own))


def _fields(data: bytes) -> dict[str, Raw]:
    """The fields of a job: those of an object; else `data` has the value, or `base64` the bytes that are no JSON."""
    try:
        data.decode()
        value = msgspec.json.decode(data, type=Raw)
        if data.lstrip().startswith(b"{"):
            return msgspec.json.decode(data, type=dict[str, Raw])
        return {"data": value}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _as_bytes(data)


def _as_bytes(data: bytes) -> dict[str, Raw]:
    return {"base64": Raw(msgspec.json.encode(b64encode(data).decode()))}


def iso(ms: float) -> str:
    """A time as it stands in messages: ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
