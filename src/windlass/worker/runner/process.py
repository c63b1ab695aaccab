"""The runner as a process of its own, forked by the forkserver: what its supervisor says on the control socket, it
does.

    from the supervisor   {"child": slot, "pid": n} + its socket and prefetch · {"gone": ending of a child, "pid": n}
                      {"cancel": queue, "id": id} · {"drop": [queue, fence]} · {"retire": slot} · {"lose": queue}
                      {"drain": seconds}
    to the supervisor     {"lost": queue} · {"suspended": {queue: why}} · {"child": slot} · {"kill": slot, "why": text}

When the supervisor is gone nobody keeps the leases alive: all is given back, at once, and the runner ends. When it is
there but silent (it was stopped, say) so long that others may begin what runs here, the runner ends on the spot.
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
from windlass.values.machine import awake
from windlass.worker.executors.child import flush_output
from windlass.worker.executors.processes import Gone, NewChild, ProcessExecutor
from windlass.worker.ipc.frames import FdStream, close_all
from windlass.worker.ipc.prefetch import Prefetch
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.logs import set_up_logs
from windlass.worker.runner.runner import Runner
from windlass.worker.settings import Settings

log = logging.getLogger("windlass.worker")

LOOK_AT_SUPERVISOR = 0.03  # seconds between two looks at how long leases are safe
AFTER_THE_SUPERVISOR = 0.06  # seconds for which we wait for it to end us


def begin(app: Windlass, arguments: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """What the forkserver calls in a new runner."""
    settings = msgspec.convert(arguments["settings"], Settings)
    set_up_logs(settings.log_format, settings.log_level)
    # Ctrl-C and SIGTERM are for the supervisor; a runner that is to end is told so, or killed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Not asyncio.run: that waits for every task, and a job that will not stop would keep this process for ever.
    loop = (_loop_factory() or asyncio.new_event_loop)()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(
        _live(app, settings, arguments["holder"], SlotTable.attach(fds["slot_table"]), fds["control"])
    )
    app.close()
    flush_output()
    os._exit(0)


def _loop_factory() -> Any:
    """uvloop where it is installed: it takes a third off the cost of a job that does nothing."""
    try:
        import uvloop  # type: ignore[import-not-found, unused-ignore]  # an extra: there or not
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _live(app: Windlass, settings: Settings, holder: str, slot_table: SlotTable, control_fd: int) -> None:
    control = FdStream(socket.socket(fileno=control_fd))
    source = SupervisorSource(control)
    runner = Runner(
        app,
        settings,
        holder,
        slot_table,
        source,
        lambda queue: control.post({"lost": queue}),
        lambda queues: control.post({"suspended": queues}),
    )
    working = asyncio.create_task(runner.run())
    obeying = asyncio.create_task(_obey(control, runner, source))
    waiting = asyncio.create_task(_while_kept(slot_table))
    await asyncio.wait([working, obeying, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        if obeying.done() and (error := obeying.exception()) is not None:
            raise error
        source.supervisor_is_gone()
        if waiting.done():
            log.error("the supervisor is silent, and the leases are as good as lost: ending")
            flush_output()
            os._exit(1)
        log.error("the supervisor is gone: giving everything back")
        await runner.drain(0)
        await working
        await runner.give_back_running()
        flush_output()
        os._exit(1)  # at once: what still runs here may begin elsewhere now
    await working


async def _while_kept(slot_table: SlotTable) -> None:
    """Wait for as long as the leases are safe. A supervisor that works ends us before this does."""
    while not slot_table.safe_until or awake() < slot_table.safe_until + AFTER_THE_SUPERVISOR:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_AT_SUPERVISOR)  # it is in shared memory: nobody calls


async def _obey(control: FdStream, runner: Runner, source: SupervisorSource) -> None:
    draining: asyncio.Task[None] | None = None
    processes = runner.executors["process"]
    assert isinstance(processes, ProcessExecutor)
    while (frame := await control.receive()) is not None:
        header, _, fds = frame
        if "child" in header:
            source.arrived(header["child"], header["pid"], fds)
        elif "gone" in header:
            source.left(header["pid"], msgspec.convert(header["gone"], Gone))
        elif "cancel" in header:
            runner.cancel(header["cancel"], header["id"])
        elif "drop" in header:
            runner.drop(*header["drop"])
        elif "retire" in header:
            processes.retire(header["retire"])
        elif "lose" in header:
            runner.lose(header["lose"])
        elif "drain" in header and draining is None:
            draining = asyncio.create_task(runner.drain(header["drain"]))
        elif "drain" in header:
            runner.shorten(header["drain"])


class SupervisorSource:
    """Children, by way of the supervisor."""

    def __init__(self, control: FdStream) -> None:
        self._control = control
        self._wanted: dict[int, asyncio.Future[NewChild]] = {}
        self._endings: dict[int, asyncio.Future[Gone]] = {}

    async def child(self, slot: int) -> NewChild:
        wanted: asyncio.Future[NewChild] = asyncio.get_running_loop().create_future()
        self._wanted[slot] = wanted
        self._control.post({"child": slot})
        return await wanted

    def arrived(self, slot: int, pid: int, fds: list[int]) -> None:
        """The supervisor brings a child."""
        wanted = self._wanted.pop(slot, None)
        if wanted is None or wanted.done():
            close_all(fds)  # nobody waits for it any more: without its socket it ends
            return
        self._endings[pid] = asyncio.get_running_loop().create_future()
        wanted.set_result(NewChild(pid, socket.socket(fileno=fds[0]), Prefetch.from_fds(fds[1:])))

    def left(self, pid: int, gone: Gone) -> None:
        """The supervisor says how a child ended."""
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

    def supervisor_is_gone(self) -> None:
        """Nobody will tell how children end. They do: with the supervisor the forkserver goes, and with it all
        children.

        Where the supervisor is only silent, the forkserver is there, and we end them; each leads a group of its own.
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
            pass  # the supervisor is gone, and the forkserver ends all children
