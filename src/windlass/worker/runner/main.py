"""The runner's process, forked by the forkserver. It obeys its supervisor on the control socket:

    from the supervisor   {"child": slot, "pid": n} + its socket and prefetch · {"gone": ending of a child, "pid": n}
                          {"cancel": queue, "id": id} · {"stop_attempt": [queue, fence]} · {"stop_queue": queue}
                          {"retire": slot} · {"drain": seconds}
    to the supervisor     {"holder_unknown": queue} · {"suspended": true} + {queue: why}
                          {"child": slot} · {"kill": slot, "why": text}

If the supervisor dies, no process renews the leases: the runner releases all jobs at once and ends. If the supervisor
is alive but silent (stopped, for example) until other workers may start the same jobs, the runner exits immediately.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from windlass.app import Windlass
from windlass.values.boot_clock import awake
from windlass.worker.executors.child import flush_output
from windlass.worker.executors.processes import Gone, NewChild, ProcessExecutor
from windlass.worker.ipc.frames import FdStream, close_all
from windlass.worker.ipc.prefetch import Prefetch
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.logs import LogOptions, set_up_process
from windlass.worker.runner.runner import Runner
from windlass.worker.settings import Settings

log = logging.getLogger("windlass.worker")

SUPERVISOR_CHECK_EVERY_S = 0.03  # a poll of shared memory: cheap, and the exit must come before the leases end
SUPERVISOR_KILL_GRACE_S = 0.06  # a healthy supervisor looks every 0.05 s and kills us first, with a better log line


def begin(app: Windlass, arguments: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """Run a new runner; the forkserver calls this."""
    settings = msgspec.convert(arguments["settings"], Settings)
    set_up_process(msgspec.convert(arguments["logs"], LogOptions))
    # Ctrl-C and SIGTERM are for the supervisor, which sends "drain" or SIGKILL to the runner.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Not asyncio.run: it waits for every task, and a job that ignores cancellation would keep this process alive.
    loop = (_loop_factory() or asyncio.new_event_loop)()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(
        _run(app, settings, arguments["holder"], SlotTable.attach(fds["slot_table"]), fds["control"])
    )
    app.close()
    flush_output()
    os._exit(0)


def _loop_factory() -> Any:
    """Return uvloop's factory if it is installed: it cuts the cost of an empty job by a third."""
    try:
        import uvloop  # type: ignore[import-not-found, unused-ignore]  # an extra: there or not
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(app: Windlass, settings: Settings, holder: str, slot_table: SlotTable, control_fd: int) -> None:
    control = FdStream(socket.socket(fileno=control_fd))
    source = ChildRequests(control)
    runner = Runner(
        app,
        settings,
        holder,
        slot_table,
        source,
        lambda queue: control.post({"holder_unknown": queue}),
        lambda queues: control.post({"suspended": True}, msgspec.json.encode(queues)),
    )
    working = asyncio.create_task(runner.run())
    controlling = asyncio.create_task(_handle_control(control, runner, source))
    waiting = asyncio.create_task(_until_leases_expire(slot_table))
    await asyncio.wait([working, controlling, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        if controlling.done() and (error := controlling.exception()) is not None:
            raise error
        source.end_children()
        if waiting.done():
            log.error("The supervisor is silent and the leases are about to end; runner %s exits", holder)
            flush_output()
            os._exit(1)
        log.error("The supervisor died; runner %s releases all jobs and exits", holder)
        await runner.drain(0)
        await working
        await runner.release_running()
        flush_output()
        os._exit(1)  # at once: other workers may start these jobs from now on
    await working


async def _until_leases_expire(slot_table: SlotTable) -> None:
    """Wait until the leases may end. A healthy supervisor kills this process before that."""
    while not slot_table.safe_until or awake() < slot_table.safe_until + SUPERVISOR_KILL_GRACE_S:  # noqa: ASYNC110
        await asyncio.sleep(SUPERVISOR_CHECK_EVERY_S)  # shared memory sends no event, so poll


async def _handle_control(control: FdStream, runner: Runner, source: ChildRequests) -> None:
    draining: asyncio.Task[None] | None = None
    processes = runner.executors["process"]
    assert isinstance(processes, ProcessExecutor)
    while (frame := await control.receive()) is not None:
        header, _, fds = frame
        if "child" in header:
            source.on_child(header["child"], header["pid"], fds)
        elif "gone" in header:
            source.on_child_exit(header["pid"], msgspec.convert(header["gone"], Gone))
        elif "cancel" in header:
            runner.cancel(header["cancel"], header["id"])
        elif "stop_attempt" in header:
            runner.stop_attempt(*header["stop_attempt"])
        elif "retire" in header:
            processes.retire(header["retire"])
        elif "stop_queue" in header:
            runner.stop_jobs(header["stop_queue"])
        elif "drain" in header and draining is None:
            draining = asyncio.create_task(runner.drain(header["drain"]))
        elif "drain" in header:
            runner.shorten_drain(header["drain"])


class ChildRequests:
    """Gets children from the supervisor, over the control socket."""

    def __init__(self, control: FdStream) -> None:
        self._control = control
        self._wanted: dict[int, asyncio.Future[NewChild]] = {}
        self._endings: dict[int, asyncio.Future[Gone]] = {}

    async def child(self, slot: int) -> NewChild:
        wanted: asyncio.Future[NewChild] = asyncio.get_running_loop().create_future()
        self._wanted[slot] = wanted
        self._control.post({"child": slot})
        return await wanted

    def on_child(self, slot: int, pid: int, fds: list[int]) -> None:
        """Pass a child from the supervisor to the slot that waits for it."""
        wanted = self._wanted.pop(slot, None)
        if wanted is None or wanted.done():
            close_all(fds)  # the slot no longer waits; without its socket the child ends
            return
        self._endings[pid] = asyncio.get_running_loop().create_future()
        wanted.set_result(NewChild(pid, socket.socket(fileno=fds[0]), Prefetch.from_fds(fds[1:])))

    def on_child_exit(self, pid: int, gone: Gone) -> None:
        """Record how a child ended."""
        ending = self._endings.get(pid)
        if ending is not None and not ending.done():
            ending.set_result(gone)

    async def ending(self, pid: int) -> Gone:
        try:
            return await self._endings[pid]
        finally:
            self._endings.pop(pid, None)

    def forget(self, pid: int) -> None:
        self._endings.pop(pid, None)

    def end_children(self) -> None:
        """Kill all children, because the supervisor no longer reports their end.

        The forkserver dies with the supervisor and kills them too, but not if the supervisor is only silent. Each child
        leads a process group of its own.
        """
        for pid, ending in self._endings.items():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if not ending.done():
                ending.set_result(Gone(why="shutdown"))

    def kill(self, slot: int, why: str) -> None:
        try:
            self._control.post({"kill": slot, "why": why})
        except OSError:
            pass  # the supervisor is gone, and the forkserver kills all children
