"""The processes of a chaos run: its workers and producers, and when each of them ended.

No process outlives the run. A worker is a supervisor with its forkserver, runner and children. All of them carry the
run's mark in their environment, and only marked processes are ever signalled.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tests.support.waiting import wait_until

import windlass
from chaos.nemesis.processes import Victim
from windlass.worker import process_info

ROOT = Path(__file__).parent.parent
PATH = os.pathsep.join([str(Path(windlass.__file__).parent.parent), str(ROOT)])  # children import the same Windlass
MARK = "WINDLASS_CHAOS_MARK"
EXIT_TIMEOUT_S = 20.0  # seconds to wait for processes to end
SCAN_EVERY_S = 0.5  # seconds between two scans for new processes

Ending = Callable[[int, str], None]
"""Receives a process that has ended, and how."""

# Runs the given module after asking the kernel to end it together with the thread that started it.
_GUARD = """
import ctypes, os, runpy, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the chaos run has ended")
module, sys.argv = sys.argv[2], sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class DeathWatch:
    """Reports the moment when watched processes end. They need not be children of this process."""

    def __init__(self, ended: Ending) -> None:
        self._ended = ended
        self._watched: set[int] = set()
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake, wake_end = os.pipe()
        self._wake_end = wake_end
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="death watch", daemon=True)
        self._thread.start()

    def add(self, pids: Iterable[int]) -> None:
        """Watch these processes as well, if they are alive and not yet watched."""
        with self._lock:
            for pid in set(pids) - self._watched:
                try:
                    fd = os.pidfd_open(pid)
                except OSError:
                    continue
                self._watched.add(pid)
                self._selector.register(fd, selectors.EVENT_READ, pid)

    def close(self) -> None:
        """Stop watching."""
        os.close(self._wake_end)
        self._thread.join(EXIT_TIMEOUT_S)

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select(1.0):
                if key.fd == self._wake:
                    return
                self._ended(key.data, "gone")
                with self._lock:
                    self._selector.unregister(key.fd)
                    self._watched.discard(key.data)
                os.close(key.fd)


class Process:
    """A process that the run started, with all its descendants."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], mark: str, watch: DeathWatch) -> None:
        self.name = name
        self.process = process
        self._mark = f"{MARK}={mark}".encode()
        self._watch = watch

    @property
    def supervisor(self) -> int:
        """The started process; for a worker, its supervisor."""
        return self.process.pid

    def processes(self) -> list[int]:
        """All live processes of it."""
        found = [
            process.pid
            for process in process_info.all_processes()
            if not process.is_zombie and self._mark in (process_info.environment(process.pid) or ())
        ]
        self._watch.add(found)
        return found

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Fleet:
    """All workers and producers. As a context manager it kills all of them on exit."""

    def __init__(self, folder: Path, variables: Mapping[str, str], ended: Ending) -> None:
        self._folder = folder
        self._variables = dict(variables)
        self._watch = DeathWatch(ended)
        self._everybody: list[Process] = []
        self._workers: dict[str, Process] = {}
        self._orders: dict[str, tuple[str, Sequence[str]]] = {}
        self._lock = threading.Lock()
        # The kernel ends a process together with the *thread* that started it, so this thread lives as long as the run.
        self._launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="launcher")
        self._ending = threading.Event()
        self._looking = threading.Thread(target=self._look_on, name="fleet", daemon=True)
        self._looking.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- starting ----------------------------------------------------------------------------------

    def start_worker(self, name: str, url: str, options: Sequence[str]) -> None:
        """Start a worker. It is restarted whenever it ends."""
        self._orders[name] = (url, options)
        self._restart(name)

    def start_producer(self, name: str, url: str, options: Sequence[str]) -> Process:
        return self._start(name, url, ["chaos.producer", *options])

    def replace(self, victim: Victim) -> None:
        """Start a new worker in place of one that was killed or stopped."""
        self._restart(victim.name)

    def _restart(self, name: str) -> None:
        """Restart a missing worker as a service manager would, unless it was already restarted."""
        with self._lock:
            there = self._workers.get(name)
            if (there is None or not there.alive) and not self._ending.is_set():
                url, options = self._orders[name]
                self._workers[name] = self._start(name, url, ["chaos.worker", "--name", name, *options])

    def _start(self, name: str, url: str, command: list[str]) -> Process:
        return self._launcher.submit(self._launch, name, url, command).result()

    def _launch(self, name: str, url: str, command: list[str]) -> Process:
        mark = secrets.token_hex(8)
        variables = {**os.environ, **self._variables, "WINDLASS_URL": url, MARK: mark, "PYTHONPATH": PATH}
        with (self._folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-c", _GUARD, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=variables,
                start_new_session=True,
            )
        started = Process(name, process, mark, self._watch)
        self._watch.add([process.pid])
        self._everybody.append(started)
        return started

    # -- who is there ------------------------------------------------------------------------------

    def workers(self) -> list[Process]:
        """The running workers."""
        with self._lock:
            return [worker for worker in self._workers.values() if worker.alive]

    def _look_on(self) -> None:
        """Scan for new processes, so that their end is seen. Also restart workers that end by themselves, as a worker
        does if its forkserver is killed during the import of the app.
        """
        while not self._ending.wait(SCAN_EVERY_S):
            self.mend()
            for worker in self.workers():
                worker.processes()

    def mend(self) -> None:
        """Restart every missing worker."""
        for name in list(self._orders):
            self._restart(name)

    def ready(self) -> bool:
        """Whether every worker has a runner."""
        return all(_has_forked(worker.supervisor) for worker in self.workers())

    # -- the end -----------------------------------------------------------------------------------

    def dismiss(self) -> dict[str, int]:
        """Tell all workers to finish and stop; returns their exit codes by name."""
        wait_until(self.ready, "every worker to have begun", timeout=EXIT_TIMEOUT_S, interval=0.05)  # one may be new
        self._ending.set()
        workers = self.workers()
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        codes = {worker.name: worker.process.wait(EXIT_TIMEOUT_S) for worker in workers}
        wait_until(lambda: not self.left(), "the workers' processes to be gone", timeout=EXIT_TIMEOUT_S, interval=0.05)
        return codes

    def left(self) -> list[int]:
        """Live processes that the run started."""
        marks = {process._mark for process in self._everybody}
        return [
            process.pid
            for process in process_info.all_processes()
            if not process.is_zombie and not marks.isdisjoint(process_info.environment(process.pid) or ())
        ]

    def close(self) -> None:
        """Kill all remaining processes."""
        self._ending.set()
        self._looking.join(EXIT_TIMEOUT_S)
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while (left := self.left()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        for process in self._everybody:
            if process.process.poll() is None:
                process.process.wait(EXIT_TIMEOUT_S)
        self._watch.close()
        self._launcher.shutdown()


def _has_forked(supervisor: int) -> bool:
    return any(process_info.children(forkserver) for forkserver in process_info.children(supervisor) or ())
