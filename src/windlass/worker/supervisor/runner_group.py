"""A runner group: one runner with its children, under one holder name. The supervisor starts and ends groups."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Coroutine
from contextlib import ExitStack
from time import monotonic
from typing import Any

import msgspec

from windlass.values.boot_clock import awake
from windlass.worker import process_info
from windlass.worker.app_facts import AppFacts
from windlass.worker.executors.processes import Gone
from windlass.worker.ipc.frames import FdStream, FrameError
from windlass.worker.ipc.prefetch import new_pair
from windlass.worker.ipc.slot_table import Running, SlotTable, now_ms
from windlass.worker.logs import LogOptions, OutputLines
from windlass.worker.output import CapturedOutput
from windlass.worker.settings import Settings
from windlass.worker.supervisor.forkserver import Ending, ForkedProcess, ForkRefused, ForkServer, ForkServerGone

log = logging.getLogger("windlass.supervisor")

LAG_WARNING_S = 5.0  # shorter blocks of the event loop are common, and a warning for each would be noise
SHUTDOWN_KILL_GRACE_S = 0.2  # from SIGTERM to SIGKILL at the end of a shutdown, when the jobs' grace is over
RUNNER_ENTRY = "windlass.worker.runner.main:begin"
CHILD_RUN_JOB = "windlass.worker.executors.processes:run_job"


class ChildProcess:
    """A child, as the supervisor sees it."""

    def __init__(self, slot: int, forked: ForkedProcess, output: CapturedOutput) -> None:
        self.slot = slot
        self.forked = forked
        self.output = output
        self.why = ""
        self.fence = 0  # of the job because of which it was killed
        self.rss: int | None = None


class RunnerGroup:
    """A runner, its slot table and its children."""

    def __init__(self, forkserver: ForkServer, facts: AppFacts, settings: Settings, holder: str) -> None:
        self.forkserver = forkserver
        self.facts = facts
        self.settings = settings
        self.holder = holder
        self.slot_table = SlotTable.create(settings.entries)
        self._log_options = LogOptions(
            settings.log_format, settings.log_level, secrets.token_hex(8), settings.full_tracebacks
        )
        self._output_lines = OutputLines(self._log_options, raw=settings.raw_output)
        self.output = self._capture()
        self.children: dict[int, ChildProcess] = {}
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # ended, and its jobs returned
        self.leaving = False
        self.why = ""  # why the supervisor kills the runner, if it does
        self.overdue: frozenset[int] = frozenset()
        self.blocked = False
        self.lag_logged = False
        self.lost_on: set[str] = set()  # queues whose leases could not be kept
        self.started_at = monotonic()
        self.renewed_at = dict.fromkeys(settings.queues, awake())  # when each queue's leases were last renewed
        self.beating: set[str] = set()  # queues with a heartbeat under way
        self.unregistered = set(settings.queues)  # queues on which the holder is not registered yet
        self.rss: int | None = None
        self.suspended: dict[str, str] = {}  # queues that the runner has suspended, with the reasons
        self._of_children = settings.child_slots
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Fork the runner."""
        near, far = socket.socketpair()
        arguments = {
            "entry": RUNNER_ENTRY,
            "settings": msgspec.to_builtins(self.settings),
            "logs": msgspec.to_builtins(self._log_options),
            "holder": self.holder,
        }
        fds = {"control": far.fileno(), "slot_table": self.slot_table.fd, "output": self.output.writer}
        with far:
            self.runner = await self.forkserver.fork("runner", arguments, fds)
        self.output.close_writer()
        self.control = FdStream(near)
        self._spawn(self._listen())

    def _capture(self) -> CapturedOutput:
        return CapturedOutput(self._output_lines.shown, self._output_lines.without_mark)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- requests of the runner ----------------------------------------------------------------------

    async def _listen(self) -> None:
        try:
            while (frame := await self.control.receive()) is not None:
                header, body, _ = frame
                if "holder_unknown" in header and header["holder_unknown"] not in self.unregistered:
                    self.kill("it lost its leases")
                elif "child" in header:
                    self._spawn(self._fork_child(header["child"]))
                elif "suspended" in header:
                    self.suspended = msgspec.json.decode(body, type=dict[str, str])
                elif "kill" in header:
                    self.end_child(header["kill"], header["why"])
        except FrameError as error:
            self.kill(f"its control socket sent an invalid frame ({error})")

    async def _fork_child(self, slot: int) -> None:
        output = self._capture()
        with ExitStack() as copies:  # both sides get copies of their own, so ours are closed
            try:
                near, far, *prefetch = (copies.enter_context(end) for end in (*socket.socketpair(), *new_pair()))
                fds = {"frames": far.fileno(), "output": output.writer}
                arguments = {"run_job": CHILD_RUN_JOB, "logs": msgspec.to_builtins(self._log_options)}
                if prefetch:
                    fds["prefetch"] = prefetch[1].fileno()
                forked = await self.forkserver.fork("child", arguments, fds)
                output.close_writer()
                child = self.children[slot] = ChildProcess(slot, forked, output)
                forked.exited.add_done_callback(lambda ending: self._on_child_exit(child, ending.result()))
            except (ForkServerGone, ForkRefused, OSError) as error:
                log.error("Runner %s: cannot fork a child for slot %d: %s", self.holder, slot, error)
                self.kill("it needs a child process that could not be forked")
                return
            try:
                ends = [end.fileno() for end in (near, *prefetch)]
                await self.control.send({"child": slot, "pid": forked.pid}, fds=ends)
            except OSError:
                pass  # the runner has died; without its socket the child ends

    def _on_child_exit(self, child: ChildProcess, ending: Ending) -> None:
        if self.children.get(child.slot) is child:
            del self.children[child.slot]
        child.output.drain()
        rss = (ending.rss_kb or 0) * 1024 or child.rss
        gone = Gone(ending.code, ending.signal, child.why, child.fence, rss, child.output.last)
        try:
            self.control.post({"gone": msgspec.to_builtins(gone), "pid": child.forked.pid})
        except OSError:
            pass  # the runner is gone too

    # -- requests of the supervisor ----------------------------------------------------------------------

    def drain(self, grace: float) -> None:
        """Let the runner finish its jobs within `grace` seconds, and end."""
        self.leaving = True
        self._post({"drain": grace})

    def cancel(self, queue: str, id: str, fences: set[int]) -> None:
        """Stop a cancelled job. Children are ended from here, because the runner may be busy."""
        ended = 0
        for entry in self.slot_table.running():
            if entry.fence in fences and entry.slot in self._of_children:
                self.end_child(entry.slot, "cancelled", entry.fence)
                ended += 1
        if not ended or ended < len(fences):
            self._post({"cancel": queue, "id": id})

    def stop_attempt(self, queue: str, fence: int) -> None:
        """Stop one attempt that has lost its job, in a child or in the runner."""
        for entry in self.slot_table.running():
            if entry.fence == fence and entry.slot in self._of_children:
                self.end_child(entry.slot, "cancelled", fence)
                return
        self._post({"stop_attempt": [queue, fence]})

    def end_child(self, slot: int, why: str, fence: int = 0) -> None:
        """End the child of a slot, with SIGTERM first. `fence` is that of the job that caused it, if any."""
        child = self.children.get(slot)
        if child is None or child.why:
            return
        child.why, child.fence = why, fence
        child.forked.signal(signal.SIGTERM)
        # At the end of a shutdown the job had its grace already, and is about to be returned to the queue.
        kill_grace = SHUTDOWN_KILL_GRACE_S if why == "shutdown" else self.settings.kill_grace
        asyncio.get_running_loop().call_later(kill_grace, child.forked.signal, signal.SIGKILL)

    def enforce(self) -> None:
        """Enforce timeouts: end a child alone, but kill the whole runner for a coroutine that does not stop."""
        now = now_ms()
        kill_grace = round(self.settings.kill_grace * 1000)
        late = set()
        for entry in self.slot_table.overdue(now):
            if entry.slot in self._of_children:
                self.end_child(entry.slot, "timeout", entry.fence)
            elif now - entry.deadline > kill_grace:
                late.add(entry.fence)
        if not late or self.why:
            return
        if self.loop_lag() * 1000 > kill_grace and len(self.suspects()) > 1:
            # No job could stop in time, and we do not know which one blocks the loop.
            self.blocked = True
            self.kill("one of its jobs blocks the event loop")
        else:
            self.overdue = frozenset(late)
            self.kill(f"{len(late)} of its jobs did not stop after their timeout")

    def loop_lag(self) -> float:
        """Return for how many seconds the runner's event loop has not run."""
        return max(0, now_ms() - self.slot_table.loop_alive_at) / 1000 if self.slot_table.loop_alive_at else 0.0

    def watch_lag(self) -> None:
        """Warn once if the runner's event loop is blocked: no lease is lost, but all coroutines wait."""
        lag = self.loop_lag()
        if lag < LAG_WARNING_S or self.runner.exited.done():  # a dead runner may wait long for its jobs' reclaim
            self.lag_logged = False
        elif not self.lag_logged and not self.leaving:
            self.lag_logged = True
            if self.suspects():
                log.warning('A job has blocked the event loop for %.1f s; declare its task with run="process"', lag)
            else:
                text = "Runner %s has not run for %.1f s, without any job of its own: the machine may be overloaded"
                log.warning(text, self.holder, lag)

    def stop_jobs(self, queue: str) -> None:
        """Make the runner stop the jobs of one queue, whose leases could not be renewed."""
        self._post({"stop_queue": queue})

    def measure_memory(self) -> None:
        """Measure the memory of runner and children, and retire children above max_rss."""
        self.rss = process_info.rss(self.runner.pid)
        for child in list(self.children.values()):
            child.rss = process_info.rss(child.forked.pid)
            if self.settings.max_rss and child.rss and child.rss > self.settings.max_rss:
                self._post({"retire": child.slot})

    def suspects(self) -> list[Running]:
        """Return the jobs that run in the runner itself: if it dies, one of them may have killed it."""
        return [entry for entry in self.slot_table.running() if entry.slot not in self._of_children]

    def kill(self, why: str) -> None:
        """Kill the runner. The supervisor returns its jobs to their queues."""
        self.why = self.why or why
        self.runner.signal(signal.SIGKILL)

    def kill_children(self) -> None:
        """Kill the children of a runner that is gone, and close its control socket."""
        for child in list(self.children.values()):
            child.why = child.why or "shutdown"
            child.forked.signal(signal.SIGKILL)
        self.output.drain()
        self.control.close()

    async def children_gone(self) -> None:
        """Wait until all children of this group have ended."""
        pending = [child.forked.exited for child in self.children.values()]
        if pending:
            await asyncio.wait(pending, timeout=5)

    def discard(self) -> None:
        """Close the resources of a group that was never started."""
        self.output.close_writer()
        self.output.close()
        self.slot_table.close()

    def _post(self, header: dict[str, object]) -> None:
        try:
            self.control.post(header)
        except OSError:
            pass
