"""The processes of a chaos run: its workers and producers, and when each of them ended.

None outlives the run. A worker is a supervisor with its forkserver, runner and children; all carry its mark in their
environment, and only what carries it is ever signalled.
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
PATH = os.pathsep.join([str(Path(windlass.__file__).parent.parent), str(ROOT)])  # all run the same Windlass as we do
MARK = "WINDLASS_CHAOS_MARK"
PATIENCE = 20.0  # seconds for processes to end
LOOK = 0.5  # seconds between two looks for new processes

Ending = Callable[[int, str], None]
"""Takes a process that has ended, and how."""

# Becomes what it is told to, after asking the kernel to end it together with the thread that started it.
_GUARD = """
import ctypes, os, runpy, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the run is gone")
module, sys.argv = sys.argv[2], sys.argv[2:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class DeathWatch:
    """Tells the moment in which processes end, also those that are not our own children."""

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
        """Watch these as well, those that are there and not watched yet."""
        with self._lock:
            for pid in set(pids) - self._watched:
                try:
                    fd = os.pidfd_open(pid)
                except OSError:
                    continue
                self._watched.add(pid)
                self._selector.register(fd, selectors.EVENT_READ, pid)

    def close(self) -> None:
        """Watch no more."""
        os.close(self._wake_end)
        self._thread.join(PATIENCE)

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
    """One process that the run started, with all that comes from it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], mark: str, watch: DeathWatch) -> None:
        self.name = name
        self.process = process
        self._mark = f"{MARK}={mark}".encode()
        self._watch = watch

    @property
    def supervisor(self) -> int:
        """The process that was started; of a worker its supervisor."""
        return self.process.pid

    def processes(self) -> list[int]:
        """All that is alive of it."""
        found = [
            process.pid
            for process in process_info.everybody()
            if not process.is_zombie and self._mark in (process_info.environment(process.pid) or ())
        ]
        self._watch.add(found)
        return found

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Fleet:
    """All workers and producers. As a context manager it kills on exit whatever is left of them."""

    def __init__(self, folder: Path, variables: Mapping[str, str], ended: Ending) -> None:
        self._folder = folder
        self._variables = dict(variables)
        self._watch = DeathWatch(ended)
        self._everybody: list[Process] = []
        self._workers: dict[str, Process] = {}
        self._orders: dict[str, tuple[str, Sequence[str]]] = {}
        self._lock = threading.Lock()
        # The kernel ends a process together with the *thread* that started it: this one lives as long as the run.
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
        """A worker, and another one like it whenever it has ended."""
        self._orders[name] = (url, options)
        self._restart(name)

    def start_producer(self, name: str, url: str, options: Sequence[str]) -> Process:
        return self._start(name, url, ["chaos.producer", *options])

    def replace(self, victim: Victim) -> None:
        """Another worker for one that was killed or told to end."""
        self._restart(victim.name)

    def _restart(self, name: str) -> None:
        """As a service manager would: if it is not there, and nobody else has seen to it."""
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
        """The workers that run."""
        with self._lock:
            return [worker for worker in self._workers.values() if worker.alive]

    def _look_on(self) -> None:
        """New processes come all the time, and their end is to be seen. And a worker whose forkserver was killed
        while it
        imported the app ends by itself."""
        while not self._ending.wait(LOOK):
            self.mend()
            for worker in self.workers():
                worker.processes()

    def mend(self) -> None:
        """Every worker that there should be is there."""
        for name in list(self._orders):
            self._restart(name)

    def ready(self) -> bool:
        """Whether every worker has a runner."""
        return all(_has_forked(worker.supervisor) for worker in self.workers())

    # -- the end -----------------------------------------------------------------------------------

    def dismiss(self) -> dict[str, int]:
        """Tell all workers to finish and end; their exit codes by name."""
        wait_until(self.ready, "every worker to have begun", timeout=PATIENCE, interval=0.05)  # one may be new
        self._ending.set()
        workers = self.workers()
        for worker in workers:
            worker.process.send_signal(signal.SIGTERM)
        codes = {worker.name: worker.process.wait(PATIENCE) for worker in workers}
        wait_until(lambda: not self.left(), "the workers' processes to be gone", timeout=PATIENCE, interval=0.05)
        return codes

    def left(self) -> list[int]:
        """What is still alive of all that was ever started."""
        marks = {process._mark for process in self._everybody}
        return [
            process.pid
            for process in process_info.everybody()
            if not process.is_zombie and not marks.isdisjoint(process_info.environment(process.pid) or ())
        ]

    def close(self) -> None:
        """Kill whatever is left."""
        self._ending.set()
        self._looking.join(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while (left := self.left()) and time.monotonic() < deadline:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        for process in self._everybody:
            if process.process.poll() is None:
                process.process.wait(PATIENCE)
        self._watch.close()
        self._launcher.shutdown()


def _has_forked(supervisor: int) -> bool:
    return any(process_info.children(forkserver) for forkserver in process_info.children(supervisor) or ())
