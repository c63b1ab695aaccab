"""The worker of the demo: start it, list its processes, stop it. It does not outlive the demo."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from windlass.ops.attached_worker import AttachedWorker
from windlass.ops.demo.shop_loader import APP, shop_folder
from windlass.worker import process_info

LEASE_S = 3  # short, so that the jobs of a killed worker soon run again
OPTIONS = (
    *("--processes", "2", "--threads", "4", "--concurrency", "8"),
    *("--lease", f"{LEASE_S}s", "--grace", "2s", "--kill-grace", "1s", "--log-format", "text"),
)
GONE_TIMEOUT_S = 5.0  # for processes that were killed


class WorkerProcess:
    """One worker at a time: its supervisor, the forkserver, and the forked processes."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.log = folder / "worker.log"
        self.seen: set[int] = set()  # the ids of all processes that were ever found
        self._variables = dict(variables)
        self._worker: AttachedWorker | None = None

    def start(self) -> None:
        """Start a worker."""
        self._worker = AttachedWorker(APP, OPTIONS, log=self.log, variables=self._variables, folder=shop_folder())

    # -- processes -------------------------------------------------------------------------------

    @property
    def supervisor(self) -> int | None:
        """The process that watches the others. It runs no jobs."""
        return self._worker.pid if self._worker is not None else None

    @property
    def forkserver(self) -> int | None:
        """The process that has imported the shop. The runner and its children are forked from it."""
        return next(iter(_children(self.supervisor)), None)

    @property
    def forked(self) -> list[int]:
        """The runner, then its children."""
        return _by_age(_children(self.forkserver))

    @property
    def all(self) -> list[int]:
        """All processes of the worker, the supervisor first."""
        found = [pid for pid in (self.supervisor, self.forkserver) if pid is not None] + self.forked
        self.seen.update(found)
        return found

    @property
    def exit_code(self) -> int | None:
        """The exit code of a worker that has ended by itself."""
        return self._worker.exit_code if self._worker is not None else None

    # -- the end ---------------------------------------------------------------------------------

    def reap(self) -> None:
        """Wait for the supervisor of a worker that was killed."""
        if self._worker is not None:
            self._worker.reap()
            self._worker = None

    def stop(self) -> None:
        """Let the worker finish its jobs and end; kill its processes if it does not end."""
        if self._worker is None:
            return
        _ = self.all  # adds them to `seen`
        self._worker.stop(lambda: self.all)
        await_gone(self.seen)
        self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def await_gone(pids: Iterable[int]) -> None:
    """Wait up to GONE_TIMEOUT_S until none of these processes runs."""
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_running(pid: int) -> bool:
    alive = process_info.is_alive(pid)
    if alive is not None:
        return alive
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int | None) -> list[int]:
    if pid is None:
        return []
    found = process_info.children(pid)
    return _ask_ps(pid) if found is None else [child for child in found if _is_running(child)]


def _ask_ps(parent: int) -> list[int]:
    """The children of a process, on systems without /proc."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if line.split()[1] == str(parent)]


def _by_age(pids: list[int]) -> list[int]:
    """The runner first: it is forked before its children."""
    infos = {pid: process_info.find(pid) for pid in pids}
    return sorted(pids, key=lambda pid: (info.started if (info := infos[pid]) else 0, pid))
