"""The processes of the worker as the demo sees them: started, found, dismissed. None outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from windlass.ops.demo.shop_loader import APP, shop_folder
from windlass.worker import process_info

LEASE_SECONDS = 3  # short, so that what a dead worker held comes back soon
OPTIONS = (
    *("--processes", "2", "--threads", "4", "--concurrency", "8"),
    *("--lease", f"{LEASE_SECONDS}s", "--grace", "2s", "--kill-grace", "1s", "--log-format", "text"),
)
PATIENCE = 5.0  # seconds for a worker to end by itself


class WorkerProcess:
    """One worker at a time: its supervisor, which the demo starts, and the processes that come from it."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.log = folder / "worker.log"
        self.seen: set[int] = set()  # every process that was ever found
        self._variables = dict(variables)
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a worker; it takes some tenths of a second until it works."""
        with open(self.log, "ab") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", "windlass.cli.attached_worker", APP, *OPTIONS],
                cwd=shop_folder(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # In the environment, not among the arguments: a URL may hold a password.
                env=_without_ours(os.environ) | self._variables,
                process_group=0,  # Ctrl-C is meant for the demo, which dismisses its worker
            )

    # -- who is there ----------------------------------------------------------------------------

    @property
    def supervisor(self) -> int | None:
        """The process that runs no job, and watches over the others."""
        return self._supervisor.pid if self._supervisor is not None and self._supervisor.poll() is None else None

    @property
    def forkserver(self) -> int | None:
        """The process that has imported the shop; runner and children are forked from it."""
        return next(iter(_children(self.supervisor)), None)

    @property
    def forked(self) -> list[int]:
        """The runner, then its children."""
        return _by_age(_children(self.forkserver))

    @property
    def all(self) -> list[int]:
        """Every process of the worker, the supervisor first."""
        found = [pid for pid in (self.supervisor, self.forkserver) if pid is not None] + self.forked
        self.seen.update(found)
        return found

    @property
    def ended_unasked(self) -> int | None:
        """The exit code of a worker that is gone though nobody asked for it."""
        return self._supervisor.poll() if self._supervisor is not None else None

    # -- the end ---------------------------------------------------------------------------------

    def bury(self) -> None:
        """The worker was killed: wait until its supervisor is gone."""
        if self._supervisor is not None:
            self._supervisor.wait(PATIENCE)
            self._close_input()
            self._supervisor = None

    def dismiss(self) -> None:
        """Have the worker finish what it has and end; what has not ended then is killed."""
        if self._supervisor is None:
            return
        everybody = self.all
        self._close_input()
        try:
            self._supervisor.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            everybody = self.all
            send(signal.SIGKILL, everybody)
            self._supervisor.wait(PATIENCE)
        await_gone(everybody)
        self._supervisor = None

    def _close_input(self) -> None:
        if self._supervisor is not None and self._supervisor.stdin is not None:
            self._supervisor.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()


def _without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that are meant for the user's own workers must not change the demo's."""
    return {name: value for name, value in environment.items() if not name.startswith("WINDLASS_")}


def send(number: int, pids: Iterable[int]) -> None:
    """Signal processes, those that are gone already aside."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def await_gone(pids: Iterable[int]) -> None:
    """Wait until none of these runs any more, for a few seconds at most."""
    deadline = time.monotonic() + PATIENCE
    while any(_is_there(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.005)


def _is_there(pid: int) -> bool:
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
    return _ask_ps(pid) if found is None else [child for child in found if _is_there(child)]


def _ask_ps(parent: int) -> list[int]:
    """The children of a process where there is no /proc."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if line.split()[1] == str(parent)]


def _by_age(pids: list[int]) -> list[int]:
    """The runner is forked before its children."""
    looks = {pid: process_info.look(pid) for pid in pids}
    return sorted(pids, key=lambda pid: (look.started if (look := looks[pid]) else 0, pid))
