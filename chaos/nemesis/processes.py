"""Faults of worker processes: kill, stop, terminate.

A worker is a supervisor, its forkserver, a runner and children (see ARCHITECTURE.md). They are found through the
supervisor, and only processes with the worker's mark are ever signalled.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol

from tests.support.waiting import wait_until

from chaos.nemesis.fault import Detail, Fault
from windlass.worker import process_info
from windlass.worker.ipc.slot_table import FILE_NAME

Part = Literal["child", "runner", "forkserver", "supervisor", "worker"]
"""The part of a worker to hit; `worker` means all of it."""


class Victim(Protocol):
    """A worker of the run, such as `tests.support.workers.Worker`."""

    @property
    def name(self) -> str: ...

    @property
    def supervisor(self) -> int: ...

    def processes(self) -> list[int]:
        """All live processes of it, found by its mark."""
        ...


Replace = Callable[[Victim], None]
"""Starts a new worker in place of one that is gone. Called in the thread that ends the fault."""


class Anatomy(NamedTuple):
    """The live processes of a worker by role."""

    supervisor: int | None
    forkserver: int | None
    runner: int | None
    children: tuple[int, ...]
    others: tuple[int, ...]
    """Processes that its jobs started."""

    @property
    def everybody(self) -> list[int]:
        """All pids, parents first: processes stopped in this order cannot replace one another."""
        leaders = [pid for pid in (self.supervisor, self.forkserver, self.runner) if pid is not None]
        return [*leaders, *self.children, *self.others]

    def part(self, part: Part, which: int = 0) -> list[int]:
        """The pids of a part; empty if there is no such process now. `which` chooses among children."""
        if part == "worker":
            return self.everybody
        if part == "child":
            return [self.children[which % len(self.children)]] if self.children else []
        pid = {"supervisor": self.supervisor, "forkserver": self.forkserver, "runner": self.runner}[part]
        return [pid] if pid is not None else []


def anatomy(worker: Victim) -> Anatomy:
    """Find the roles of a worker's processes. The runner is the forked process that has the slot table open."""
    marked = worker.processes()
    parents = {pid: process.parent for pid in marked if (process := process_info.find(pid)) is not None}
    supervisor = worker.supervisor if worker.supervisor in parents else None
    forkserver = next((pid for pid, parent in parents.items() if supervisor is not None and parent == supervisor), None)
    forked = [pid for pid, parent in parents.items() if forkserver is not None and parent == forkserver]
    runner = next((pid for pid in forked if _has_slot_table(pid)), None)
    children = tuple(pid for pid in forked if pid != runner)
    known = {supervisor, forkserver, *forked}
    return Anatomy(supervisor, forkserver, runner, children, tuple(pid for pid in parents if pid not in known))


def _has_slot_table(pid: int) -> bool:
    return any(FILE_NAME in path for path in (process_info.open_files(pid) or {}).values())


def _signal(pids: Iterable[int], number: int) -> list[int]:
    """Signal these processes; returns the pids that existed."""
    hit = []
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        hit.append(pid)
    return hit


class Kill(Fault):
    """One kill. The worker recovers by itself, or through `replace` if the supervisor was killed."""

    name = "kill"
    summary = "SIGKILL hits a child, the runner, the forkserver, the supervisor, or a whole worker at once."

    def __init__(self, worker: Victim, part: Part, *, which: int = 0, replace: Replace | None = None) -> None:
        self.worker = worker
        self.part = part
        self.which = which
        self._replace = replace
        self._supervisor_hit = False

    def begin(self) -> Detail:
        pids = anatomy(self.worker).part(self.part, self.which)
        if self.part == "worker":
            # So that none of them sees another die and returns its jobs.
            _signal(pids, signal.SIGSTOP)
            pids = anatomy(self.worker).everybody
        hit = _signal(pids, signal.SIGKILL)
        self._supervisor_hit = self.worker.supervisor in hit
        return {"worker": self.worker.name, "part": self.part, "pids": hit}

    def end(self) -> Detail:
        hit, self._supervisor_hit = self._supervisor_hit, False
        if not hit:
            return {}
        wait_until(lambda: not process_info.is_alive(self.worker.supervisor), "the killed supervisor to be gone")
        if self._replace is not None:
            self._replace(self.worker)
        return {"worker": self.worker.name, "replaced": self._replace is not None}


class Stop(Fault):
    """SIGSTOP until the end. If a whole worker is stopped, no process of it can react."""

    name = "stop"
    summary = "SIGSTOP stops a child, the runner, the supervisor or a whole worker; SIGCONT resumes it."

    def __init__(self, worker: Victim, part: Part = "worker", *, which: int = 0) -> None:
        self.worker = worker
        self.part = part
        self.which = which
        self.stopped: dict[int, int] = {}  # pid → start time of the process, because pids are reused

    def begin(self) -> Detail:
        # Look twice: a process may have been forked between the first look and the signal.
        for _ in range(2):
            pids = anatomy(self.worker).part(self.part, self.which)
            for pid in _signal([pid for pid in pids if pid not in self.stopped], signal.SIGSTOP):
                if (process := process_info.find(pid)) is not None:
                    self.stopped[pid] = process.started
            if self.part != "worker":
                break
        wait_until(self._all_stand, "the stopped processes to stand still", interval=0.001)
        return {"worker": self.worker.name, "part": self.part, "pids": list(self.stopped)}

    def end(self) -> Detail:
        ours, self.stopped = self.stopped, {}
        same = [pid for pid, started in ours.items() if (now := process_info.find(pid)) and now.started == started]
        return {"worker": self.worker.name, "part": self.part, "pids": _signal(same, signal.SIGCONT)}

    def _all_stand(self) -> bool:
        # Another fault may have killed some meanwhile.
        return all(process_info.state(pid) in ("T", "t", "Z", "X", None) for pid in self.stopped)


class Deploy(Fault):
    """SIGTERM as in a deploy; at the end the old worker is gone and a new one works in its place."""

    name = "deploy"
    summary = "SIGTERM tells a worker to finish and stop, and a new one takes its place."

    def __init__(self, worker: Victim, *, replace: Replace | None = None, patience: float = 60.0) -> None:
        self.worker = worker
        self._replace = replace
        self._patience = patience
        self._told = False

    def begin(self) -> Detail:
        self._told = bool(_signal([pid for pid in [anatomy(self.worker).supervisor] if pid], signal.SIGTERM))
        return {"worker": self.worker.name, "pids": [self.worker.supervisor] if self._told else []}

    def end(self) -> Detail:
        told, self._told = self._told, False
        if not told:
            return {}
        # A process stopped by another fault would resume only after this fault has ended.
        _signal(anatomy(self.worker).everybody, signal.SIGCONT)
        supervisor = self.worker.supervisor
        wait_until(lambda: not process_info.is_alive(supervisor), "the worker to end", timeout=self._patience)
        if self._replace is not None:
            self._replace(self.worker)
        return {"worker": self.worker.name, "replaced": self._replace is not None}
