"""The worker of the benchmark, and the notes that its jobs send over a unix socket."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from windlass.app import AppConfig
from windlass.errors import WindlassError
from windlass.ops.attached_worker import AttachedWorker
from windlass.ops.benchmark.spec import APP, NOTE, VARIABLE, BenchSpec

CONCURRENCY = 100
OPTIONS = (
    *("--concurrency", str(CONCURRENCY), "--threads", "1", "--processes", "1"),
    *("--grace", "1s", "--kill-grace", "1s", "--log-format", "text", "--log-level", "warning"),
    "--allow-unsafe",  # the jobs of a benchmark may be lost
)
MAX_LOG_LINES = 5  # of the worker's log in an error message
POLL_INTERVAL_S = 0.2  # between two checks that the worker still runs


class Note(NamedTuple):
    """A job's report: its number, when it ran (`time.monotonic`), and the CPU time of its process, in seconds."""

    n: int
    at: float
    cpu: float


class WorkerEnded(WindlassError):
    """The worker of the benchmark has ended, or does not run its jobs."""


class WorkerProcess:
    """`with WorkerProcess(given, queue, stop) as worker:` then call `start`, and receive the notes of its jobs."""

    def __init__(self, given: AppConfig, queue: str, stop: threading.Event) -> None:
        self._given = given
        self._queue = queue
        self._stop = stop
        self._worker: AttachedWorker | None = None

    def __enter__(self) -> Self:
        # In /tmp rather than TMPDIR: the path of a unix socket is limited to about 100 characters.
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-bench-", dir="/tmp"))
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notes.bind(str(self._folder / "notes"))
        self._notes.settimeout(POLL_INTERVAL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._worker is not None:
                self._worker.stop()
        finally:
            self._notes.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the worker."""
        spec = BenchSpec(self._given, self._queue, str(self._folder / "notes"))
        variables = {VARIABLE: msgspec.json.encode(spec).decode()}
        self._worker = AttachedWorker(APP, OPTIONS, log=self._log, variables=variables)

    def next_note(self, seconds: float) -> Note:
        """Wait up to `seconds` for the next note. Raises KeyboardInterrupt when the benchmark must stop."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            try:
                return Note(*NOTE.unpack(self._notes.recv(NOTE.size)))
            except TimeoutError:
                self._check()
        raise WorkerEnded(f"the worker of the bench ran no job within {seconds:g} s. {self._log_tail()}")

    def _check(self) -> None:
        """Raise if the benchmark must stop, or if the worker has ended."""
        if self._stop.is_set():
            raise KeyboardInterrupt
        code = None if self._worker is None else self._worker.exit_code
        if code is not None:
            raise WorkerEnded(f"the worker of the bench ended with exit code {code}. {self._log_tail()}")

    @property
    def _log(self) -> Path:
        return self._folder / "worker.log"

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-MAX_LOG_LINES:]
        return f"The end of its log: {' | '.join(lines)}" if lines else "Its log is empty."
