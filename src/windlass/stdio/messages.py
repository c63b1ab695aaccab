"""The messages of the service, in and out: each is one JSON object on one line.

docs/stdio.md describes the protocol, docs/stdio.schema.json is its JSON Schema.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from time import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

MAX_LINE_BYTES = 4 * 1024 * 1024
_MAX_TOPIC_CHARS = 120  # of a bad topic in an error message

Uuid = Annotated[str, Meta(min_length=1, max_length=512)]
QueueName = Annotated[str, Meta(min_length=1, max_length=128)]
Worker = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Moment = Annotated[datetime, Meta(tz=True)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
ListKind = Literal["queued", "dispatched", "processing", "workers"]


class BadMessage(Exception):
    """A line is not a valid message; the text of the error says why."""


class Identity(Struct, frozen=True):
    """The name of this service in its messages, and its namespaces for input and output."""

    service_name: str
    service_uuid: str
    service_host: str
    listener: str
    publisher: str


# -- incoming payloads -------------------------------------------------------------------------------


class AddJob(Struct, frozen=True):
    """A job to enqueue. The job gets the whole payload, with all other fields."""

    uuid: Uuid
    queue_name: QueueName
    priority: Annotated[int, Meta(ge=0, le=9)] = 5


class WorkerIdle(Struct, frozen=True):
    """A worker wants a job."""

    queue_name: QueueName


class JobAccepted(Struct, frozen=True):
    """A worker has begun its assigned job."""

    uuid: Uuid
    queue_name: QueueName
    started_at: Moment | None = None


class WorkerProgress(Struct, frozen=True):
    """A worker reports the progress of a job."""

    uuid: Uuid
    queue_name: QueueName
    progress: Fraction


class Status(Struct, frozen=True):
    """The progress of a busy worker."""

    progress: Fraction | None = None


class WorkerBusy(Struct, frozen=True):
    """A worker runs the job `uuid`, or all its jobs if it names none."""

    queue_name: QueueName
    uuid: Uuid | None = None
    status: Status = Status()


class JobFinished(Struct, frozen=True):
    """A worker has finished a job. The payload is kept as its result."""

    uuid: Uuid
    queue_name: QueueName
    finished_at: Moment | None = None


class Tick(Struct, frozen=True):
    """A request to look for lost jobs and workers."""


class ListRequest(Struct, frozen=True):
    """A request to list jobs or workers of a queue."""

    queue_name: QueueName


Payload = AddJob | WorkerIdle | JobAccepted | WorkerProgress | WorkerBusy | JobFinished | Tick | ListRequest

PAYLOADS: dict[str, type[Payload]] = {
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
_LISTS: dict[str, ListKind] = {
    "list_job_queue": "queued",
    "list_leased_queue": "dispatched",
    "list_progress_queue": "processing",
    "list_worker_queue": "workers",
}
_FROM_WORKERS = (WorkerIdle, JobAccepted, WorkerProgress, WorkerBusy, JobFinished)
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
    """An incoming message: its decoded payload, the payload's text, its sender and its time (ms since 1970).

    `worker` is empty if the message is not from a worker. `sender` is the service_uuid, if the message has one.
    """

    payload: Payload
    text: bytes
    name: str
    worker: str
    at: int
    sender: str | None

    @property
    def ago(self) -> int:
        """The age of the message in milliseconds."""
        return max(0, round(time() * 1000) - self.at)

    @property
    def list_kind(self) -> ListKind:
        """The kind of list that a list request asks for."""
        return _LISTS[self.name]


_line = msgspec.json.Decoder(_Line)
_decoders = {kind: msgspec.json.Decoder(kind) for kind in {*PAYLOADS.values(), Tick}}
_worker = msgspec.json.Decoder(Worker)


def read_message(line: bytes, namespace: str) -> Message:
    """The message on a line. The text of a `BadMessage` never quotes the line, which may contain secrets."""
    size = f"{len(line):,} bytes"
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"line skipped: not UTF-8 ({error.reason} at byte {error.start}), {size}") from None
    try:
        found = _line.decode(text)
        name, kind, named = _topic(found.topic, namespace)
        payload = _decoders[kind].decode(found.payload)
        worker = _speaker(found, named) if kind in _FROM_WORKERS else ""
    except msgspec.ValidationError as error:
        raise BadMessage(f"message skipped: invalid field ({error}), {size}{_about(text)}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadMessage(f"line skipped: not JSON ({error}), {size}") from None
    if worker and found.created_at is None:
        raise BadMessage(f"message skipped: a worker's message needs created_at, {size}{_about(text)}")
    at = round((time() if found.created_at is None else found.created_at.timestamp()) * 1000)
    for moment in (found.created_at, getattr(payload, "started_at", None), getattr(payload, "finished_at", None)):
        _check_moment(moment, text)
    return Message(payload, bytes(found.payload), name, worker, at, found.service_uuid)


def _check_moment(moment: datetime | None, text: str) -> None:
    """Refuse a time that is valid in its time zone but outside the calendar in UTC."""
    try:
        if moment is not None:
            iso(round(moment.timestamp() * 1000))
            iso(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadMessage(f"message skipped: a time is out of range{_about(text)}") from None


def _topic(topic: str, namespace: str) -> tuple[str, type[Payload], str | None]:
    prefix = f"{namespace}/" if namespace else ""
    inner = topic.removeprefix(prefix)
    if topic.startswith(prefix):
        if inner == "tick":
            return "tick", Tick, None
        found = _TOPIC.fullmatch(inner)
        if found and found[2] in PAYLOADS:
            return found[2], PAYLOADS[found[2]], found[1]
    raise BadMessage(f"message skipped: unknown topic {topic[:_MAX_TOPIC_CHARS]!r}; docs/stdio.md lists the topics")


def _speaker(line: _Line, named: str | None) -> str:
    """The worker of a message: its service_uuid, or else the worker in its topic."""
    worker = line.service_uuid or named
    if not worker:
        raise BadMessage("message skipped: a worker's message needs service_uuid, or a worker in its topic")
    return _worker.decode(msgspec.json.encode(worker))


def _about(text: str) -> str:
    """The topic of a message, if it can be decoded."""
    try:
        return f", topic {msgspec.json.decode(text, type=_Topic).topic[:_MAX_TOPIC_CHARS]!r}"
    except (msgspec.DecodeError, ValueError, RecursionError):
        return ""


# -- outgoing messages -------------------------------------------------------------------------------


class QueuedJob(Struct, frozen=True):
    """A waiting job."""

    uuid: str
    priority: int


class RunningJob(Struct, frozen=True, omit_defaults=True):
    """A job that is assigned to a worker, or accepted by it."""

    uuid: str
    worker_uuid: str | None = None
    dispatched_at: str | None = None
    last_seen: str | None = None
    progress: float | None = None


class KnownWorker(Struct, frozen=True, omit_defaults=True):
    """A worker that has reported."""

    uuid: str
    state: str
    last_seen: str | None = None


class JobList(Struct, frozen=True, omit_defaults=True):
    """The answer to a list request for jobs. `total` counts all jobs, `jobs` may be only the first of them."""

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
    """A message as a line. `payload` is JSON."""
    message = _Out(
        f"{identity.publisher}/{topic}" if identity.publisher else topic,
        identity.service_name,
        identity.service_uuid,
        identity.service_host,
        iso(round(time() * 1000)),
        Raw(msgspec.json.format(payload, indent=-1)),  # removes line breaks from the payload
    )
    return msgspec.json.encode(message) + b"\n"


def write_assignment(
    identity: Identity, worker: str, data: bytes, uuid: str, queue: str, priority: int, dispatched_at: str
) -> bytes:
    """A line that assigns a job to a worker: the fields of the job's payload, and four fields of every job."""
    topic = f"job_queue/workers/{worker}/job_assignment"
    known = {"uuid": uuid, "queue_name": queue, "priority": priority, "dispatched_at": dispatched_at}
    own = {name: Raw(msgspec.json.encode(value)) for name, value in known.items()}
    try:
        return write_message(identity, topic, msgspec.json.encode(_fields(data) | own))
    except RecursionError:  # the payload is nested too deep to be put into a message
        return write_message(identity, topic, msgspec.json.encode(_as_bytes(data) | own))


def _fields(data: bytes) -> dict[str, Raw]:
    """The fields of an assignment: a JSON object as it is, other JSON as `data`, other bytes as `base64`."""
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
    """A time in the format of messages: ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
