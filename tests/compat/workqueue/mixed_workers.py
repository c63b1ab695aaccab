"""Peers as processes: started, killed on the way and stopped in the end, and what their journals say together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tests.compat.workqueue.peers.journal import read_journal
from tests.support.waiting import wait_until

Kind = Literal["windlass", "published", "node"]
Role = Literal["add", "work", "clean"]
ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "peers"


@dataclass(frozen=True)
class Peer:
    """One process and its journal."""

    kind: Kind
    role: Role
    process: subprocess.Popen[bytes]
    journal: Path
    errors: Path

    def steps(self, *marks: str) -> list[str]:
        """The ids of its steps with one of these marks, in their order."""
        return [id for mark, id in read_journal(self.journal) if mark in marks]

    def wait_for(self, *marks: str, unless: Callable[[], bool] = lambda: False) -> None:
        """Until it has taken a step with one of these marks."""

        def has_taken() -> bool:
            assert self.process.poll() in (None, 0), self.errors.read_text()
            return bool(self.steps(*marks)) or unless()

        wait_until(has_taken, f"a {self.kind} peer to {self.role}")


class MixedWorkers:
    """All peers on one queue. As a context manager it leaves no process behind."""

    def __init__(self, folder: Path, url: str, prefix: str, node_modules: Path | None = None) -> None:
        self.peers: list[Peer] = []
        self.killed: list[Peer] = []
        self._folder = folder
        self._words = (url, prefix)
        self._env = os.environ | {"PYTHONPATH": str(ROOT), "NODE_PATH": str(node_modules)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            if peer.process.poll() is None:
                peer.process.kill()
            peer.process.wait()

    def start(self, kind: Kind, role: Role, count: int = 0) -> Peer:
        """One more."""
        journal = self._folder / f"{len(self.peers)}-{kind}-{role}"
        module = f"tests.compat.workqueue.peers.{kind}"
        program = ["node", str(FOLDER / "published.cjs")] if kind == "node" else [sys.executable, "-m", module]
        errors = journal.with_suffix(".err")
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [*program, role, *self._words, str(journal), str(count)],
                cwd=ROOT,
                env=self._env,
                stdout=subprocess.DEVNULL,  # the published cleaner is talkative
                stderr=stderr,
            )
        self.peers.append(Peer(kind, role, process, journal, errors))
        return self.peers[-1]

    def kill_and_replace(self, victim: Peer, is_over: Callable[[], bool] = lambda: False) -> Peer:
        """SIGKILL for one that is at work, while there is any, and another in its place."""
        victim.wait_for("+", "-", "c", unless=is_over)
        victim.process.kill()
        victim.process.wait()
        self.killed.append(victim)
        return self.start(victim.kind, victim.role)

    def wait_done(self, count: int) -> None:
        """Until so many items were completed."""
        wait_until(
            lambda: self.steps("+").total() >= count, f"{count} items to be completed", timeout=60, interval=0.03
        )

    def wait_added(self) -> None:
        """Until all who add have ended, as they should."""
        for peer in self.peers:
            if peer.role == "add":
                assert peer.process.wait(60) == 0, peer.errors.read_text()

    def stop(self) -> None:
        """SIGTERM for all; each must end as it should."""
        living = [peer for peer in self.peers if peer not in self.killed]
        for peer in living:
            peer.wait_for("r")
            peer.process.send_signal(signal.SIGTERM)
        for peer in living:
            assert peer.process.wait(30) == 0, peer.errors.read_text()

    def steps(self, *marks: str, kind: Kind | None = None) -> Counter[str]:
        """How often each id had one of these marks, in all journals or those of one kind."""
        return Counter(id for peer in self.peers if kind in (None, peer.kind) for id in peer.steps(*marks))
