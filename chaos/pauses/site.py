"""The test site: a server, workers on this machine and in network namespaces, and a steady flow of jobs."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.server import Server
from tests.support.waiting import wait_until

from chaos import tap
from chaos.nemesis.network import Namespace
from chaos.pauses.app import QUEUES, call
from windlass import JobRecord, Windlass
from windlass.worker import process_info

ROOT = Path(__file__).parent.parent.parent
MARK = "WINDLASS_PAUSES_MARK"
SLOTS = {"loops": 3, "threads": 2, "processes": 1}  # of one worker
LOAD_SHARE = 0.6  # share of slots in use, which leaves room for a paused worker's jobs
FEED_EVERY_S = 0.05  # seconds between two checks of the feeder
READY_TIMEOUT_S = 60.0  # seconds for all workers to have a job
DRAIN_TIMEOUT_S = 60.0

_START = """
import sys
from tests.support.workers import die_with_parent
die_with_parent(int(sys.argv[1]))
from chaos import tap
tap.install_supervisor()
from windlass.cli import main
main(["worker", *sys.argv[2:]])
"""


class Hand:
    """One worker: `windlass worker`, with all its descendants."""

    def __init__(self, name: str, url: str, lease: float, folder: Path, namespace: Namespace | None) -> None:
        self.name = name
        self.namespace = namespace
        self._mark = secrets.token_hex(8)
        options = [f"--{kind}={SLOTS[queue]}" for queue, kind in _KINDS.items()]
        options += [f"--lease={lease}s", "--grace=5s", "--kill-grace=1s", "--log-format=text"]
        command = [sys.executable, "-c", _START, str(os.getpid()), "chaos.pauses.app:app", "--name", name, *options]
        environment = {**os.environ, "WINDLASS_URL": url, tap.FOLDER: str(folder), MARK: self._mark}
        with (folder / f"{name}.out").open("ab") as out:
            self.process = subprocess.Popen(
                namespace.command(command) if namespace else command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *_own_path()])},
                start_new_session=True,
            )

    @property
    def supervisor(self) -> int:
        return self.process.pid

    def processes(self) -> list[int]:
        """All live processes of it."""
        wanted = f"{MARK}={self._mark}".encode()
        return [
            process.pid
            for process in process_info.all_processes()
            if not process.is_zombie and wanted in (process_info.environment(process.pid) or ())
        ]

    def holds(self, holder: str | None) -> bool:
        """Whether this holder name belongs to this worker."""
        return holder is not None and worker_of(holder) == self.name


def _own_path() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


_KINDS = {"loops": "concurrency", "threads": "threads", "processes": "processes"}


def worker_of(holder: str) -> str:
    """The worker of a holder name: `<name>-<random>.<incarnation>`."""
    return holder.rpartition("-")[0]


@dataclass(frozen=True)
class Size:
    """The number of workers of each sort."""

    here: int
    apart: int  # in network namespaces


class Site:
    """The server, the workers and the flow of jobs. Closing it ends all of them."""

    def __init__(self, folder: Path, size: Size, lease: float, seed: int) -> None:
        self.folder = folder
        self.lease = lease
        self.namespaces = [Namespace(f"apart{number}") for number in range(size.apart)]
        binds = " ".join(["127.0.0.1", *(namespace.host for namespace in self.namespaces)])
        # Only the namespaces reach it.
        self.server = Server(tcp=True, config={"bind": binds, "protected-mode": "no"})
        self.hands: list[Hand] = []
        self.sent: dict[str, str] = {}
        """Enqueued jobs, each with its queue."""
        self._size = size
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self._feeding = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._problem: Exception | None = None

    def __enter__(self) -> Self:
        try:
            self.server.start()
            self.app = Windlass(self.server.url, retry_for=10)
            self._start_workers()
            self._feeding.start()
            wait_until(lambda: all(map(self.held_by, self.hands)), "all workers to work", timeout=READY_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_workers(self) -> None:
        for number in range(self._size.here):
            self.hands.append(Hand(f"here{number}", self.server.url, self.lease, self.folder, None))
        for number, namespace in enumerate(self.namespaces):
            url = f"redis://{namespace.host}:{self.server.port}/0"
            self.hands.append(Hand(f"apart{number}", url, self.lease, self.folder, namespace))

    # -- jobs ----------------------------------------------------------------------------------------

    def leased(self) -> Iterator[JobRecord]:
        """All current leases."""
        for name in QUEUES:
            yield from self.app.queue(name).all_jobs("running")

    def held_by(self, hand: Hand) -> list[JobRecord]:
        """The jobs that one worker holds."""
        return [record for record in self.leased() if hand.holds(record.holder)]

    def _feed(self) -> None:
        try:
            while not self._ending.wait(FEED_EVERY_S):
                for name, slots in SLOTS.items():
                    counts = self.app.queue(name).counts()
                    wanted = round(slots * len(self.hands) * LOAD_SHARE) - counts.waiting - counts.running
                    if wanted > 0:
                        self._send(name, wanted)
        except Exception as error:
            self._problem = error

    def _send(self, name: str, count: int) -> None:
        chance = self._chance
        # Most jobs are short. The others still run when their worker is declared lost.
        lengths = [
            chance.uniform(0.05, 0.5) if chance.random() < 0.5 else chance.uniform(1.0, 3.0) for _ in range(count)
        ]
        calls = [call(name, round(length, 3), chance.random() < 0.5) for length in lengths]
        for receipt in self.app.enqueue_many(calls):
            self.sent[receipt.id] = name

    # -- the end -------------------------------------------------------------------------------------

    def drain(self) -> bool:
        """Stop the flow and wait until all jobs are done; returns whether they are."""
        self._ending.set()
        self._feeding.join(30.0)
        if self._problem is not None:
            raise self._problem
        try:
            wait_until(self._is_empty, "all jobs to be done", timeout=DRAIN_TIMEOUT_S, interval=0.05)
        except TimeoutError:
            return False
        return True

    def _is_empty(self) -> bool:
        every = [self.app.queue(name).counts() for name in QUEUES]
        return not any(counts.waiting or counts.running for counts in every)

    def left(self) -> dict[str, int]:
        """Remaining jobs by state; all zero after a successful run."""
        total: dict[str, int] = {}
        for name in QUEUES:
            counts = self.app.queue(name).counts()
            for state in ("waiting", "running", "dead", "broken"):
                total[state] = total.get(state, 0) + getattr(counts, state)
        return total

    def dismiss(self) -> list[int]:
        """Tell all workers to stop; returns their exit codes."""
        for hand in self.hands:
            hand.process.send_signal(signal.SIGTERM)
        return [hand.process.wait(30.0) for hand in self.hands]

    def close(self) -> None:
        self._ending.set()
        if self._feeding.is_alive():
            self._feeding.join(30.0)
        for hand in self.hands:
            for pid in hand.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            hand.process.wait(10.0)
        if hasattr(self, "app"):
            self.app.close()
        self.server.close()
        for namespace in self.namespaces:
            namespace.close()
