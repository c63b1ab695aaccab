"""A group: one runner with its children, under one holder name. The supervisor hires groups, watches them, lets them
go."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Coroutine
from contextlib import ExitStack
from time import monotonic
from typing import Any

import msgspec

from windlass.values.machine import awake
from windlass.worker import process_info
from windlass.worker.app_facts import AppFacts
from windlass.worker.executors.processes import Gone
from windlass.worker.ipc.frames import FdStream, FrameError
from windlass.worker.ipc.prefetch import new_pair
from windlass.worker.ipc.slot_table import Running, SlotTable, now_ms
from windlass.worker.output import Output
from windlass.worker.settings import Settings
from windlass.worker.supervisor.forkserver import Ending, ForkedProcess, ForkRefused, ForkServer, ForkServerGone

log = logging.getLogger("windlass.supervisor")

LAST_PATIENCE = 0.2
RUNNER_ENTRY = "windlass.worker.runner.process:begin"
CHILD_PERFORM = "windlass.worker.executors.processes:perform"


class GroupChild:
    """One child, as its supervisor sees it."""

    def __init__(self, slot: int, forked: ForkedProcess, output: Output) -> None:
        self.slot = slot
        self.forked = forked
        self.output = output
        self.why = ""
        self.fence = 0  # of the job that it was killed for
        self.rss: int | None = None


class RunnerGroup:
    """A runner, its slot_table and its children."""

    def __init__(self, forkserver: ForkServer, facts: AppFacts, settings: Settings, holder: str) -> None:
        self.forkserver = forkserver
        self.facts = facts
        self.settings = settings
        self.holder = holder
        self.slot_table = SlotTable.create(settings.entries)
        self.output = Output()
        self.children: dict[int, GroupChild] = {}
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # and its jobs given back
        self.leaving = False
        self.why = ""  # set when the supervisor itself ends the runner
        self.culprits: frozenset[int] = frozenset()
        self.blocked = False
        self.lagged = False
        self.lost_on: set[str] = set()  # queues whose leases could not be kept
        self.hired_at = monotonic()
        self.kept_at = dict.fromkeys(settings.queues, awake())  # when its leases were last known to be safe
        self.beating: set[str] = set()  # queues with a heartbeat on its way
        self.unregistered = set(settings.queues)  # queues that do not know it yet
        self.rss: int | None = None
        self.suspended: dict[str, str] = {}  # queues from which its runner takes no jobs, with the reasons
        self._of_children = settings.child_slots
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Fork the runner."""
        ours, theirs = socket.socketpair()
        arguments = {"entry": RUNNER_ENTRY, "settings": msgspec.to_builtins(self.settings), "holder": self.holder}
        fds = {"control": theirs.fileno(), "slot_table": self.slot_table.fd, "output": self.output.end}
        with theirs:
            self.runner = await self.forkserver.fork("runner", arguments, fds)
        self.output.handed_over()
        self.control = FdStream(ours)
        self._spawn(self._listen())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what the runner asks for --------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            while (frame := await self.control.receive()) is not None:
                header = frame[0]
                if "lost" in header and header["lost"] not in self.unregistered:
                    self.kill("its leases were lost")
                elif "child" in header:
                    self._spawn(self._fork_child(header["child"]))
                elif "suspended" in header:
                    self.suspended = header["suspended"]
                elif "kill" in header:
                    self.end_child(header["kill"], header["why"])
        except FrameError as error:
            log.error("the runner cannot be understood (%s) and is ended", error)
            self.kill("misunderstood")

    async def _fork_child(self, slot: int) -> None:
        output = Output()
        with ExitStack() as copies:  # closed here when both sides have their own
            try:
                ours, theirs, *prefetch = (copies.enter_context(end) for end in (*socket.socketpair(), *new_pair()))
                fds = {"frames": theirs.fileno(), "output": output.end}
                if prefetch:
                    fds["prefetch"] = prefetch[1].fileno()
                forked = await self.forkserver.fork("child", {"perform": CHILD_PERFORM}, fds)
                output.handed_over()
                child = self.children[slot] = GroupChild(slot, forked, output)
                forked.exited.add_done_callback(lambda ending: self._child_left(child, ending.result()))
            except (ForkServerGone, ForkRefused, OSError) as error:
                log.error("no child for slot %d: %s", slot, error)
                self.kill("no child could be forked")
                return
            try:
                ends = [end.fileno() for end in (ours, *prefetch)]
                await self.control.send({"child": slot, "pid": forked.pid}, fds=ends)
            except OSError:
                pass  # the runner has died meanwhile, by itself: without its socket the child ends

    def _child_left(self, child: GroupChild, ending: Ending) -> None:
        if self.children.get(child.slot) is child:
            del self.children[child.slot]
        child.output.drain()
        rss = (ending.rss_kb or 0) * 1024 or child.rss
        gone = Gone(ending.code, ending.signal, child.why, child.fence, rss, child.output.last)
        try:
            self.control.post({"gone": msgspec.to_builtins(gone), "pid": child.forked.pid})
        except OSError:
            pass  # the runner is gone, too

    # -- what the supervisor asks for --------------------------------------------------------------------

    def drain(self, grace: float) -> None:
        """Let the runner finish what it has, and end."""
        self.leaving = True
        self._post({"drain": grace})

    def cancel(self, queue: str, id: str, fences: set[int]) -> None:
        """A running job was cancelled. A child is ended from here: its runner may be busy."""
        ended = 0
        for entry in self.slot_table.running():
            if entry.fence in fences and entry.slot in self._of_children:
                self.end_child(entry.slot, "cancelled", entry.fence)
                ended += 1
        if not ended or ended < len(fences):
            self._post({"cancel": queue, "id": id})

    def drop(self, queue: str, fence: int) -> None:
        """One attempt has lost its job to another: it is stopped, whoever runs it."""
        for entry in self.slot_table.running():
            if entry.fence == fence and entry.slot in self._of_children:
                self.end_child(entry.slot, "cancelled", fence)
                return
        self._post({"drop": [queue, fence]})

    def end_child(self, slot: int, why: str, fence: int = 0) -> None:
        """Ask the child of a slot to end, for the sake of one job or at all, and see to it that it does."""
        child = self.children.get(slot)
        if child is None or child.why:
            return
        child.why, child.fence = why, fence
        child.forked.signal(signal.SIGTERM)
        # At the end of a shutdown its time is over already, and its job is about to be given back.
        patience = LAST_PATIENCE if why == "shutdown" else self.settings.kill_grace
        asyncio.get_running_loop().call_later(patience, child.forked.signal, signal.SIGKILL)

    def enforce(self) -> None:
        """End what is over its time: a child by itself, a coroutine that will not stop with its whole runner."""
        now = now_ms()
        patience = round(self.settings.kill_grace * 1000)
        stubborn = set()
        for entry in self.slot_table.overdue(now):
            if entry.slot in self._of_children:
                self.end_child(entry.slot, "timeout", entry.fence)
            elif now - entry.deadline > patience:
                stubborn.add(entry.fence)
        if not stubborn or self.why:
            return
        if self.loop_lag() * 1000 > patience and len(self.suspects()) > 1:
            # Then no job could have stopped in time, and it is not known which of them blocks the loop.
            self.blocked = True
            self.kill("its event loop is blocked by one of its jobs")
        else:
            self.culprits = frozenset(stubborn)
            self.kill(f"{len(stubborn)} of its jobs went on after their time was over")

    def loop_lag(self) -> float:
        """For how many seconds the runner's event loop has not turned."""
        return max(0, now_ms() - self.slot_table.ticked) / 1000 if self.slot_table.ticked else 0.0

    def lose(self, queue: str) -> None:
        """The leases of one queue could not be kept alive, though others could."""
        self._post({"lose": queue})

    def weigh(self) -> None:
        """Look how much memory everybody has."""
        self.rss = process_info.rss(self.runner.pid)
        for child in list(self.children.values()):
            child.rss = process_info.rss(child.forked.pid)
            if self.settings.max_rss and child.rss and child.rss > self.settings.max_rss:
                self._post({"retire": child.slot})

    def suspects(self) -> list[Running]:
        """What ran in the runner itself: when that dies, one of these may have done it."""
        return [entry for entry in self.slot_table.running() if entry.slot not in self._of_children]

    def kill(self, why: str) -> None:
        """End the runner at once; the supervisor hands its jobs back."""
        self.why = self.why or why
        self.runner.signal(signal.SIGKILL)

    def end(self) -> None:
        """The runner is gone: its children go too."""
        for child in list(self.children.values()):
            child.why = child.why or "shutdown"
            child.forked.signal(signal.SIGKILL)
        self.output.drain()
        self.control.close()

    async def children_gone(self) -> None:
        """Wait until no child of this group runs any more."""
        pending = [child.forked.exited for child in self.children.values()]
        if pending:
            await asyncio.wait(pending, timeout=5)

    def discard(self) -> None:
        """It was never hired after all."""
        self.output.handed_over()
        self.output.close()
        self.slot_table.close()

    def _post(self, header: dict[str, object]) -> None:
        try:
            self.control.post(header)
        except OSError:
            pass
