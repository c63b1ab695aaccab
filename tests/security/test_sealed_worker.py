"""A worker with encrypted jobs: all that a job can do works, and its secrets lie nowhere in the clear."""

from __future__ import annotations

import os
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.security.sealed_app import answer, fail, send
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import JOURNAL, Worker, Workshop
from windlass import Windlass
from windlass.worker.settings import Settings

CANARY, CONTROL = "canary-ecafb3", "control-81d0aa"
SIGNING, ENCRYPTION = os.urandom(32), os.urandom(32)
KEYS = {
    "WINDLASS_SIGNING_KEYS": f"s1:{b64encode(SIGNING).decode()}",
    "WINDLASS_ENCRYPTION_KEYS": f"e1:{b64encode(ENCRYPTION).decode()}",
}
# What is not encrypted can be found: the server is to compress nothing.
PLAIN_FILES = {"appendonly": "yes", "rdbcompression": "no", "save": ""}


@contextmanager
def monitored(server: Server) -> Iterator[bytearray]:
    """All that MONITOR says."""
    heard = bytearray()
    assert isinstance(server.address, Path)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(server.address))
        wire.sendall(b"MONITOR\r\n")

        def listen() -> None:
            while more := wire.recv(65536):
                heard.extend(more)

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            wait_until(lambda: b"+OK" in heard, "MONITOR to begin")
            yield heard
        finally:
            wire.shutdown(socket.SHUT_RDWR)
            listener.join()


def test_with_encryption_a_secret_lies_nowhere_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the server's files, not on the wire, not in the logs; and every way of a job works all the same.

    A job of a program without keys is the control: what is looked for is found there.
    """
    with Server(config=PLAIN_FILES) as server, monitored(server) as heard:
        with Windlass(server.url) as control, Windlass(server.url, signing_keys={"s1": SIGNING}) as before:
            control.queue("control").enqueue(CONTROL.encode())
            before.queue("raw").enqueue(b"canary-, signed in the days before encryption")
        for variable, value in KEYS.items():
            monkeypatch.setenv(variable, value)
        with Workshop(server, tmp_path) as shop:
            shop.queue("raw").enqueue(CANARY.encode())
            shop.send_many([send.call(CANARY), fail.call(CANARY)])
            (id,) = shop.send_many([answer.call(CANARY)])
            worker = start(shop, tmp_path)
            assert shop.app.job("near", id, str).result(timeout=20) == f"{CANARY} again"
            for what in ("answer", "receive", "failure", "tick"):
                assert shop.journal.wait(1, what)[0].more["right"], what
            assert [entry.more["right"] for entry in shop.journal.wait(2, "raw")] == [True, True]
            told = {"log": worker.log.encode(), **files_of(server, "while it worked")}
            server.command("SAVE")
            told |= files_of(server, "with a snapshot")
            assert worker.stop() == 0
        told |= {"MONITOR": bytes(heard), "log to its end": worker.log.encode()}
    for place in ("MONITOR", "while it worked: appendonly", "with a snapshot: dump"):
        assert any(CONTROL.encode() in told[name] for name in told if name.startswith(place)), place
    assert b"answer near/" in told["log"], "the log tells of jobs"
    for place, content in told.items():
        for secret in (*spellings(CANARY.encode()), *spellings(SIGNING), *spellings(ENCRYPTION)):
            assert secret not in content, f"{secret!r} is in {place}"


def files_of(server: Server, when: str) -> dict[str, bytes]:
    return {f"{when}: {path.name}": path.read_bytes() for path in server.dir.rglob("*") if path.is_file()}


def spellings(secret: bytes) -> list[bytes]:
    """A secret in all ways in which it might be written; as base64 it may begin at each of three places."""
    shifted = [b64encode(bytes(shift) + secret)[4 : 4 + len(secret)] for shift in range(3)]
    return [secret, secret.hex().encode(), repr(secret)[2:-1].encode(), *shifted]


def start(shop: Workshop, folder: Path) -> Worker:
    """A worker with the keys in its environment, that tells all it knows."""
    settings = Settings(
        name="w",
        queues={"near": 1, "far": 1, "raw": 1},
        lease=5.0,
        grace=5.0,
        threads=2,
        processes=2,
        log_level="debug",
    )
    environment = {"WINDLASS_URL": shop.url, JOURNAL: str(shop.journal.path), **KEYS}
    worker = Worker("tests.security.sealed_app:app", settings, environment, folder / "worker.log")
    shop.workers.append(worker)
    return worker
