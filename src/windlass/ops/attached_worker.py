"""A `windlass worker` that ends with this program. The demo and the benchmark each run one.

The standard input of the worker is a pipe from this program. The worker stops when the pipe closes: when `stop` closes
it, or when this program ends, even by kill -9.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

MODULE = "windlass.cli.attached_worker"  # run by name: `ops` must not import `cli`
STOP_TIMEOUT_S = 5.0  # longer than the --grace and --kill-grace of both callers together


class AttachedWorker:
    """A started worker: its supervisor process."""

    def __init__(
        self,
        app: str,
        options: Sequence[str],
        *,
        log: Path,
        variables: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        """Start `windlass worker APP OPTIONS` in `folder`. It runs jobs some tenths of a second later.

        The worker appends its output to `log`. It gets this program's environment without WINDLASS_ variables, which
        are for the user's own workers, and with `variables`: a URL may contain a password, so it must not be an
        argument.
        """
        with open(log, "ab") as output:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, app, *options],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_without_windlass_variables(os.environ) | dict(variables),
                process_group=0,  # Ctrl-C reaches this program only, which then stops the worker
            )

    @property
    def pid(self) -> int | None:
        """The process id of the supervisor while it runs."""
        return self._supervisor.pid if self._supervisor.poll() is None else None

    @property
    def exit_code(self) -> int | None:
        """None while the worker runs."""
        return self._supervisor.poll()

    def stop(self, list_processes: Callable[[], Iterable[int]] | None = None) -> None:
        """Let the worker finish its jobs and end; kill it after STOP_TIMEOUT_S.

        The kill hits the processes that `list_processes` finds then, or else the supervisor, whose forkserver and
        forked processes end with it.
        """
        self._close_input()
        try:
            self._supervisor.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            if list_processes is None:
                self._supervisor.kill()
            else:
                send_signal(signal.SIGKILL, list_processes())
            self._supervisor.wait(STOP_TIMEOUT_S)

    def reap(self) -> None:
        """Wait for a supervisor that was killed."""
        self._supervisor.wait(STOP_TIMEOUT_S)
        self._close_input()

    def _close_input(self) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()


def _without_windlass_variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("WINDLASS_")}


def send_signal(number: int, pids: Iterable[int]) -> None:
    """Signal these processes; skip those that have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
