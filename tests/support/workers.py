"""Real workers for the tests: each is a supervisor with its forkserver, runner and children, found by a mark in their
environment. Jobs write into a journal, a file that outlives every process; the tests read it.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from tests.support.marks import is_mark
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import JobRecord, Queue, TaskCall, Windlass
from windlass.tasks.envelope import write_envelope
from windlass.worker import process_info
from windlass.worker.settings import Settings

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
JOURNAL = "WINDLASS_TEST_JOURNAL"
MARK = "WINDLASS_TEST_MARK"
APPS = "tests.worker.apps"

_RUN = """
import sys
import msgspec
from tests.support.workers import die_with_parent
die_with_parent(int(sys.argv[3]))
from windlass.worker.supervisor.supervisor import run_worker
from windlass.worker.logs import set_up_logs
from windlass.worker.settings import Settings
settings = msgspec.json.decode(sys.argv[2], type=Settings)
set_up_logs("text", settings.log_level)
sys.exit(run_worker(sys.argv[1], settings))
"""


def die_with_parent(parent: int) -> None:
    """End this process with its parent, so that no worker outlives the tests, even if they are killed."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# -- the journal ---------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One line of a job. `at` is CLOCK_MONOTONIC, the same for all processes."""

    what: str
    task: str
    id: str
    attempt: int
    fence: int
    pid: int
    at: float
    more: dict[str, Any]

    @property
    def run(self) -> tuple[str, int]:
        """The attempt: job id and fence."""
        return self.id, self.fence


def note(what: str, job: Any = None, **more: Any) -> None:
    """Write a journal line from a job, with one write call, so that it is never torn. It has the task's short name."""
    told = ((job.task or "").rpartition(".")[2], job.id, job.attempt, job.fence) if job is not None else ("", "", 0, 0)
    line = json.dumps([what, *told, os.getpid(), time.monotonic(), more]) + "\n"
    fd = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


class Journal:
    """The lines that jobs have written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[Entry] = []
        self._read = 0

    def all(self, what: str | None = None, *, task: str | None = None, id: str | None = None) -> list[Entry]:
        """All lines so far, in write order; optionally of one kind, task or job."""
        self._read_on()
        return [
            entry
            for entry in self._entries
            if (what is None or entry.what == what)
            and (task is None or entry.task == task)
            and (id is None or entry.id == id)
        ]

    def ids(self, what: str, *, task: str | None = None) -> list[str]:
        """The job id of each such line."""
        return [entry.id for entry in self.all(what, task=task)]

    def wait(self, count: int, what: str, *, timeout: float = LIMIT_S, **only: Any) -> list[Entry]:
        """Wait until there are `count` such lines."""

        def enough() -> list[Entry] | None:
            found = self.all(what, **only)
            return found if len(found) >= count else None

        try:
            return wait_until(enough, f"{count} × {what!r} {only or ''}", timeout=timeout, interval=0.005)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; there are {len(self.all(what, **only))}") from None

    def overlaps(self) -> list[tuple[Entry, Entry]]:
        """Pairs of attempts at one job in which the second started before the first ended, as (end, start)."""
        ends = {entry.run: entry for entry in self.all("end")}
        starts: dict[str, list[Entry]] = {}
        for entry in self.all("start"):
            starts.setdefault(entry.id, []).append(entry)
        found = []
        for attempts in starts.values():
            attempts.sort(key=lambda entry: entry.at)
            for first, second in pairwise(attempts):
                end = ends.get(first.run)
                if end is not None and end.at > second.at:
                    found.append((end, second))
        return found

    def _read_on(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        self._entries += [Entry(*json.loads(line)) for line in whole.splitlines()]


# -- workers -------------------------------------------------------------------------------------


class Worker:
    """One worker. All its processes, including those that its jobs start, carry its mark."""

    def __init__(
        self,
        target: str,
        settings: Settings,
        environment: Mapping[str, str],
        log: Path,
        output: int | None = None,
        folder: Path = ROOT,
    ) -> None:
        self.settings = settings
        self.mark = secrets.token_hex(8)
        self.log_path = log
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        self._environment = {**os.environ, **environment, MARK: self.mark, "PYTHONPATH": path}
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUN, target, msgspec.json.encode(settings).decode(), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out if output is None else output,
                stderr=out if output is None else output,
                env=self._environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def supervisor(self) -> int:
        return self.process.pid

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def processes(self) -> list[int]:
        """All live processes of it."""
        wanted = f"{MARK}={self.mark}".encode()
        return [
            process.pid
            for process in process_info.all_processes()
            if not process.is_zombie and wanted in (process_info.environment(process.pid) or ())
        ]

    @property
    def forkserver(self) -> int:
        """The process that imported the app."""
        (pid,) = process_info.children(self.supervisor) or [0]
        return pid

    def signal(self, number: int) -> None:
        """Send a signal to the supervisor."""
        os.kill(self.supervisor, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to all its processes, as fast as possible."""
        for pid in self.processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def stop(self, timeout: float = LIMIT_S) -> int:
        """Stop it with SIGTERM; returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout)

    def kill_everything(self) -> None:
        """SIGKILL all processes, until none is left."""
        if self.process.poll() is None:
            self.process.kill()

        def gone() -> bool:
            self.process.poll()
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            return not left

        wait_until(gone, "the worker's processes to be gone")
        self.process.wait(LIMIT_S)

    def wait_gone(self) -> None:
        """Wait until no process of it is left."""

        def gone() -> bool:
            self.process.poll()
            return not self.processes()

        wait_until(gone, "all processes to be gone")


class Workshop:
    """A server, an app to send jobs with, a journal, and workers. Closing it ends all of them."""

    def __init__(self, server: Server, folder: Path, *, url: str | None = None) -> None:
        self.server = server
        self.url = url or server.url
        self.journal = Journal(folder / "journal")
        self.app = Windlass(server.url, retry_for=5)
        self.workers: list[Worker] = []
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        target: str,
        *,
        wait: bool = True,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
        **settings: Any,
    ) -> Worker:
        """Start a worker for the app of `tests.worker.apps.<target>`; wait until it is registered on its queues.

        `output` may be `subprocess.PIPE`, which is never read.
        """
        number = len(self.workers) + 1
        settings = {"name": f"w{number}", "queues": {}, "lease": 5.0, "grace": 5.0, "threads": 4, **settings}
        variables = {"WINDLASS_URL": self.url, JOURNAL: str(self.journal.path), **(environment or {})}
        log = self._folder / f"worker-{number}.log"
        worker = Worker(f"{APPS}.{target}:app", Settings(**settings), variables, log, output)
        self.workers.append(worker)
        if wait:
            self.wait_ready(worker)
        return worker

    def wait_ready(self, worker: Worker, timeout: float = LIMIT_S) -> None:
        """Wait until one of its runners looks for jobs."""

        def ready() -> bool:
            if worker.process.poll() is not None:
                raise RuntimeError(f"the worker exited with {worker.process.returncode}:\n{worker.log[-3000:]}")
            return bool(self._client_names(worker))

        wait_until(ready, "the worker to be ready", timeout=timeout)

    def _client_names(self, worker: Worker) -> bool:
        # A registered waiter means that the runner has looked for jobs on some queue.
        with self.server.client() as client:
            for key in client.scan_iter("windlass:{*:holders"):
                if any(bytes(name).decode().startswith(f"{worker.name}.") for name in client.zrange(key, 0, -1)):
                    return self._runner_is_there(worker)
        return False

    def _runner_is_there(self, worker: Worker) -> bool:
        return any(len(process_info.children(pid) or ()) > 0 for pid in process_info.children(worker.supervisor) or ())

    # -- sending

    def call(self, task: str, *args: Any, queue: str = "default", **options: Any) -> TaskCall:
        """A call of a task by name."""
        return TaskCall(task, queue, write_envelope(task, msgspec.json.encode(args)), options)  # type: ignore[arg-type]

    def send(self, task: str, *args: Any, queue: str = "default", **options: Any) -> str:
        """Enqueue one call; returns its id."""
        return self.send_many([self.call(task, *args, queue=queue, **options)])[0]

    def send_many(self, calls: Iterable[TaskCall]) -> list[str]:
        """Enqueue many calls; returns their ids."""
        return [job.id for job in self.app.enqueue_many(calls)]

    def queue(self, name: str = "default") -> Queue:
        return self.app.queue(name)

    # -- waiting

    def wait_empty(self, *names: str, timeout: float = LIMIT_S) -> None:
        """Wait until no job waits or runs on these queues."""
        for name in names or ("default",):
            self._wait_empty(self.queue(name), timeout)

    def _wait_empty(self, queue: Queue, timeout: float) -> None:
        def empty() -> bool:
            counts = queue.counts()
            return not (counts.waiting or counts.running or counts.outbox)

        try:
            wait_until(empty, f"{queue.name} to be empty", timeout=timeout)
        except TimeoutError as error:
            logs = "\n".join(worker.log[-3000:] for worker in self.workers)
            raise TimeoutError(f"{error}: {queue.counts()}\n{logs}") from None

    def wait(self, check: Callable[[], T | None], what: str, timeout: float = LIMIT_S) -> T:
        """`wait_until`, as a method."""
        return wait_until(check, what, timeout=timeout)

    def wait_job_gone(self, queue: str, id: str, timeout: float = LIMIT_S) -> None:
        """Wait until the job no longer exists."""
        wait_until(lambda: self.queue(queue).get(id) is None, f"{id} to be gone", timeout=timeout)

    def wait_state(self, queue: str, id: str, state: str, timeout: float = LIMIT_S) -> JobRecord:
        """Wait until a job is in a state; returns its record."""

        def there() -> JobRecord | None:
            record = self.queue(queue).get(id)
            return record if record and record.state == state else None

        return wait_until(there, f"{id} to be {state}", timeout=timeout)

    # -- closing

    def stop_all(self) -> None:
        """Stop all workers with SIGTERM."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.process.wait(LIMIT_S)

    def close(self) -> None:
        """Kill the remaining workers, and flush the server."""
        try:
            for worker in self.workers:
                worker.kill_everything()
                print(f"-- {worker.name} log ends with:\n{worker.log[-4000:]}")  # shown when a test fails
        finally:
            self.app.close()
            if self.server.alive:
                with self.server.client() as client:
                    client.flushall()


def keys_left(server: Server) -> list[str]:
    """All keys on the server that do not end by themselves, as results and marks do."""
    with server.client() as client:
        return sorted(bytes(key).decode() for key in client.keys("*") if not is_mark(client, key))


def wait_dead(*pids: int, timeout: float = LIMIT_S) -> None:
    """Wait until all these processes have ended."""
    wait_until(
        lambda: not any(process_info.is_alive(pid) for pid in pids), f"{pids} to end", timeout=timeout, interval=0.002
    )


def pass_time(seconds: float, since: float | None = None) -> None:
    """Sleep: only for tests about time itself."""
    time.sleep(max(0.0, (since or time.monotonic()) + seconds - time.monotonic()))
