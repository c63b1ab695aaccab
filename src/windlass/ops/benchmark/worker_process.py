"""The bench's worker: a real one, in processes of its own, which do not outlive the bench."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from windlass.app import AppConfig
from windlass.errors import WindlassError
from windlass.ops.benchmark.spec import APP, NOTE, VARIABLE, BenchSpec

CONCURRENCY = 100
OPTIONS = (
    *("--concurrency", str(CONCURRENCY), "--threads", "1", "--processes", "1"),
    *("--grace", "1s", "--kill-grace", "1s", "--log-format", "text", "--log-level", "warning"),
    "--allow-unsafe",  # what these jobs do is worth nothing
)
LAST_WORDS = 5  # lines of its log that are told when it ends by itself
PATIENCE = 5.0  # seconds for it to end when it is told to
TICK = 0.2  # seconds between two looks whether it still runs


class Note(NamedTuple):
    """What a job told: which it is, when it ran (`time.monotonic`), and the CPU time of its process, in seconds."""

    n: int
    at: float
    cpu: float


class WorkerEnded(WindlassError):
    """The worker does not run, or does not do its jobs."""


class WorkerProcess:
    """`with WorkerProcess(given, queue, stop) as worker:` then `start`, and hear the notes of its jobs."""

    def __init__(self, given: AppConfig, queue: str, stop: threading.Event) -> None:
        self._given = given
        self._queue = queue
        self._stop = stop
        self._worker: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Not where TMPDIR says: the path of a socket may only have about 100 letters.
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-bench-", dir="/tmp"))
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notes.bind(str(self._folder / "notes"))
        self._notes.settimeout(TICK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._dismiss()
        finally:
            self._notes.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the worker; it takes some tenths of a second until it works."""
        spec = BenchSpec(self._given, self._queue, str(self._folder / "notes"))
        # Variables that are meant for the user's own workers must not change this one.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_")}
        with open(self._log, "wb") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-P", "-m", "windlass.cli.attached_worker", APP, *OPTIONS],
                stdin=subprocess.PIPE,  # when it is closed, the worker ends, however the bench has ended
                stdout=log,
                stderr=log,
                env=ours | {VARIABLE: msgspec.json.encode(spec).decode()},
                process_group=0,  # Ctrl-C is meant for the bench, which dismisses its worker
            )

    def hear(self, seconds: float) -> Note:
        """The next note, within so many seconds; KeyboardInterrupt when the bench is to stop."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            try:
                return Note(*NOTE.unpack(self._notes.recv(NOTE.size)))
            except TimeoutError:
                self._check()
        raise WorkerEnded(f"the worker did not do a job within {seconds:g} s. {self._last_words()}")

    def _check(self) -> None:
        """Raise if the bench is to stop, or the worker has ended though nobody asked for it."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        code = None if self._worker is None else self._worker.poll()
        if code is not None:
            raise WorkerEnded(f"the worker has ended with {code}. {self._last_words()}")

    def _dismiss(self) -> None:
        """Have it finish what it has, and end."""
        if self._worker is None or self._worker.stdin is None:
            return
        self._worker.stdin.close()
        try:
            self._worker.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._worker.kill()  # its forkserver ends with it, and what that has forked
            self._worker.wait(PATIENCE)

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-LAST_WORDS:]
        return f"Its last words: {' | '.join(lines)}" if lines else "It has said nothing."
