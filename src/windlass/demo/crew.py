"""The worker processes of a run: started, one of them killed, the others dismissed. None outlives its crew."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Member:
    """One worker process, with its ledger."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.ledger = folder / f"{name}.ledger"
        self._complaints = folder / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, url: str, queue: str, batch: int, lease_seconds: float) -> None:
        """Start the process."""
        arguments = [queue, self.name, str(self.ledger), str(batch), str(lease_seconds)]
        with open(self._complaints, "wb") as complaints:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "windlass.demo.worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                # In the environment, not among the arguments: a URL may hold a password.
                env=os.environ | {"WINDLASS_URL": url},
                process_group=0,  # Ctrl-C is meant for the demo, which dismisses its workers
            )

    @property
    def pid(self) -> int | None:
        """Its process."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def fell(self) -> bool:
        """Whether it ended in the midst of its work, killed or by a fault of its own."""
        return self._process is not None and self._process.poll() not in (None, 0)

    @property
    def last_words(self) -> str:
        """The last line it wrote to stderr, or else how it ended."""
        lines = self._complaints.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"exit code {self._process.poll() if self._process else None}"

    def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def dismiss(self) -> None:
        """Tell it to end when the job at hand is done."""
        if self._process and self._process.stdin:
            self._process.stdin.close()

    def await_end(self, deadline: float) -> None:
        """Wait for it to end; if it has not ended by then it is killed."""
        try:
            if self._process:
                self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()


class Crew:
    """All workers of one run."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.members = [Member(f"worker-{number}", folder) for number in range(1, workers + 1)]

    def start(self, url: str, queue: str, batch: int, lease_seconds: float) -> None:
        """Start the worker processes."""
        for member in self.members:
            member.start(url, queue, batch, lease_seconds)

    @property
    def alive(self) -> list[Member]:
        """Those that run."""
        return [member for member in self.members if member.alive]

    def dismiss(self, patience: float = 5.0) -> None:
        """Have all of them end, and wait for it."""
        for member in self.members:
            member.dismiss()
        deadline = time.monotonic() + patience
        for member in self.members:
            member.await_end(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss()
