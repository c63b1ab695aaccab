"""A real service process, and what is said to it and by it: every line is checked against the schema in docs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue as Inbox
from typing import IO, Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import redis

from tests.support.server import Server
from windlass import Queue, Windlass

SCHEMA = json.loads((Path(__file__).parent.parent.parent / "docs" / "stdio.schema.json").read_text())
PATIENCE = 15.0
_VALIDATORS = {
    kind: jsonschema.Draft202012Validator(SCHEMA | {"anyOf": [{"$ref": f"#/$defs/{kind}"}]})
    for kind in ("in", "out", "log")
}
_numbers = itertools.count()


def conforms(line: Any, kind: str) -> None:
    """It is a message of that kind ("in", "out" or "log"), or this fails."""
    _VALIDATORS[kind].validate(line)


def moment(ago: float = 0) -> str:
    """A time in the past as messages have it."""
    return (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Service:
    """`windlass stdio`, running; what is sent to it is about its `queue` if nothing else is said."""

    queue = "ffmpeg"

    def __init__(self, url: str, *options: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "stdio", "--url", url, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
        )
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.stdin = self.process.stdin
        self.said: Inbox[Any] = Inbox()
        self.logged: Inbox[Any] = Inbox()
        self._ready = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.said, "out"), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.logged, "log"), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def write(self, line: bytes) -> None:
        """Any line."""
        self.stdin.write(line + b"\n")
        self.stdin.flush()

    def send(self, topic: str, worker: str | None = None, *, ago: float = 0, **payload: Any) -> None:
        """A message; the topic of a worker is put together from its last word."""
        assert self._ready.wait(PATIENCE)  # a worker's word is soon too old
        message: dict[str, Any] = {"topic": f"default/{topic}", "payload": payload}
        if worker:
            message["topic"] = f"default/job_queue/workers/{worker}/{topic}"
            message |= {"service_uuid": worker, "created_at": moment(ago)}
        conforms(message, "in")
        self.write(json.dumps(message).encode())

    def add(self, uuid: str, **payload: Any) -> None:
        """A job."""
        self.send("job_queue/add_job", uuid=uuid, **{"queue_name": self.queue} | payload)

    def idle(self, worker: str, *, ago: float = 0, on: str | None = None) -> None:
        """A worker is idle."""
        self.send("worker_idle", worker, ago=ago, queue_name=on or self.queue)

    def job(self, word: str, worker: str, uuid: str, **payload: Any) -> None:
        """A worker speaks of a job."""
        self.send(word, worker, uuid=uuid, **{"queue_name": self.queue} | payload)

    def hear(self) -> Any:
        """The next message that it says."""
        return self.said.get(timeout=PATIENCE)

    def assigned(self) -> tuple[str, str]:
        """The next assignment: worker and job."""
        message = self.hear()
        *_, worker, word = message["topic"].split("/")
        assert word == "job_assignment", message
        return worker, message["payload"]["uuid"]

    def listed(self, what: str, on: str | None = None) -> Any:
        """What it answers to a list request: the payload."""
        self.send(f"job_queue/list_{what}_queue", queue_name=on or self.queue)
        message = self.hear()
        assert message["topic"] == f"default/job_queue/list_{what}_queue/answer", message
        return message["payload"]

    def log(self) -> Any:
        """The next line of its log."""
        return self.logged.get(timeout=PATIENCE)

    def complaint(self) -> str:
        """The next line of its log, which must tell of an error."""
        line = self.log()
        assert line["log_level"] == "error", line
        return str(line["log_message"])

    def is_silent(self) -> bool:
        """Whether all that was sent was handled without a word: what comes next answers a question and a bad line."""
        self.send("job_queue/list_worker_queue", queue_name="nobody")
        self.write(b'{"topic": "default/nothing"}')
        said, logged = self.hear(), self.log()
        return said["topic"].endswith("/answer") and "default/nothing" in logged["log_message"]

    def end(self) -> int:
        """Its input ends; what it returns. All that it said before is in `said` and `logged`."""
        self.stdin.close()
        return self.wait()

    def wait(self) -> int:
        """It ends by itself."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def _read(self, stream: IO[bytes], into: Inbox[Any], kind: str) -> None:
        try:
            for line in stream:
                message = json.loads(line)
                conforms(message, kind)
                if message.get("log_message", "").endswith(" is ready"):
                    self._ready.set()
                else:
                    into.put(message)
        except ValueError:
            pass  # closed under our hands
        except jsonschema.ValidationError as error:
            into.put({"topic": f"not as the schema says: {error}", "log_level": "schema", "log_message": str(error)})

    def kill(self) -> None:
        """Whatever it does."""
        self.process.kill()
        self.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


Start = Callable[..., Service]


@pytest.fixture
def start(server: Server, client: redis.Redis, app: Windlass) -> Iterator[Start]:
    """Starts services; whatever is left of them and of their queue is gone in the end."""
    running: list[Service] = []

    def start(*options: str, **environment: str) -> Service:
        running.append(Service(server.url, *options, **environment))
        return running[-1]

    yield start
    for service in running:
        service.kill()
    for layout in ("processor", "native"):
        app.queue(Service.queue, layout=layout).purge()


@pytest.fixture(scope="module")
def processor_service(valkey: Server) -> Iterator[Service]:
    """One for all tests of a file, on the layout of Processor Job Queue; it does nothing by itself."""
    service = Service(valkey.url, "--tick", "off")
    yield service
    service.kill()


@pytest.fixture(scope="module")
def native_service(valkey: Server) -> Iterator[Service]:
    """The same on native queues."""
    service = Service(valkey.url, "--layout", "native", "--tick", "off")
    yield service
    service.kill()


@pytest.fixture
def service(processor_service: Service, app: Windlass, request: pytest.FixtureRequest) -> Iterator[Service]:
    """That service, with a queue of the test's own."""
    processor_service.queue = _name(request)
    yield processor_service
    _leave(processor_service, app.queue(processor_service.queue, layout="processor"))


@pytest.fixture
def native(native_service: Service, app: Windlass, request: pytest.FixtureRequest) -> Iterator[Service]:
    """The same on a native queue."""
    native_service.queue = _name(request)
    yield native_service
    _leave(native_service, app.queue(native_service.queue, layout="native"))


def _name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname}-{next(_numbers)}"[-100:].lstrip("_")


def _leave(service: Service, queue: Queue) -> None:
    silent = service.is_silent()
    queue.purge()
    service.said.queue.clear()
    service.logged.queue.clear()
    assert silent, "it said more than the test has heard"
