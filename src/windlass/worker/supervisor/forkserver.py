"""The forkserver: a process that imports the user's app once and forks runners and children from it on request.
`ForkServer` is the supervisor's handle on it; `forkserver_process.py` is the process.

    supervisor ── control socket ── forkserver (app imported, one thread, runs no job)
      │                            ├─ fork ─ runner          each in a session of its own, killed by the kernel
      │                            ├─ fork ─ child           if the forkserver dies
      │                            └─ fork ─ child ─ whatever a job started
      └ the control socket ends ⇒ the forkserver ends all of them, and itself

On the control socket, from the supervisor:
    {"fork": role, "id": n, "arguments": {…}, "names": [name of each descriptor]}   + the descriptors
    {"signal": number, "pid": n, "group": bool}
and from the forkserver:
    {"ready": facts} or {"error": text}         once
    {"forked": pid, "id": n} or {"refused": why, "id": n}
    {"exited": pid, "code": n or null, "signal": n or null, "rss_kb": peak}
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import msgspec

from windlass.errors import WindlassError
from windlass.worker import process_info
from windlass.worker.app_loading import AppNotLoadable
from windlass.worker.ipc.frames import FdStream, FrameError, Header

FORKSERVER_MARK = "WINDLASS_FORKSERVER"  # in the environment of all that comes from one forkserver
GRACE = 2.0  # from SIGTERM to SIGKILL when the supervisor is gone
LAST_WAIT = 5.0  # for what was killed and hangs in the kernel
PROCESS = "windlass.worker.supervisor.forkserver_process"


class ForkServerGone(WindlassError):
    """The forkserver has ended: open a new one. What it had forked has ended with it."""


class ForkRefused(WindlassError):
    """The forkserver could not fork, or was asked for something that it must not run."""


class Ending(msgspec.Struct, frozen=True):
    """How a process ended: an exit code or a signal, and the most memory that it had."""

    code: int | None
    signal: int | None
    rss_kb: int | None = None

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


class ForkedProcess:
    """A runner or child that the forkserver forked."""

    def __init__(self, forkserver: ForkServer, pid: int) -> None:
        self.pid = pid
        self.exited: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._forkserver = forkserver

    def __repr__(self) -> str:
        how = f"ended by {self.exited.result()}" if self.exited.done() else "running"
        return f"<ForkedProcess {self.pid}, {how}>"

    def signal(self, number: int, group: bool = True) -> None:
        """Signal it, with all of its process group or alone. Without effect once it has ended."""
        if not self.exited.done():
            self._forkserver._post({"signal": int(number), "pid": self.pid, "group": group})


class ForkServer:
    """The supervisor's handle on its forkserver. `gone` is done when the forkserver has ended, and all its forked
    with it."""

    def __init__(self, process: subprocess.Popen[bytes], stream: FdStream, mark: str) -> None:
        self.pid = process.pid
        self.facts: dict[str, Any] = {}
        self.gone: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._process = process
        self._stream = stream
        self._mark = mark
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._forked: dict[int, ForkedProcess] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        app: str,
        *,
        facts: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> Self:
        """Start a forkserver and wait until it has imported `module:attribute`; raises `AppNotLoadable`.

        `facts` names a function `package.module:function` that is called there with the app and whose dict is added
        to the forkserver's facts. `folder` is where the app is looked for and run, by default where we are. `output` is
        the descriptor for what the import prints, by default our own.
        """
        ours, theirs = socket.socketpair()
        mark = secrets.token_hex(8)
        command = [str(theirs.fileno()), str(os.getpid()), app, facts or ""]
        variables = {**(os.environ if environment is None else environment), FORKSERVER_MARK: mark}
        with theirs:
            try:
                process = _start(command, theirs.fileno(), folder, variables, output)
            except BaseException:
                ours.close()
                raise
        forkserver = cls(process, FdStream(ours), mark)
        try:
            forkserver.facts = await forkserver._hear_first()
        except BaseException:
            process.kill()
            forkserver._stream.close()
            process.wait()
            raise
        forkserver._listening = asyncio.create_task(forkserver._listen())
        return forkserver

    async def fork(
        self, role: str, arguments: Mapping[str, Any] | None = None, fds: Mapping[str, int] | None = None
    ) -> ForkedProcess:
        """Fork a "child" or a "runner". Among `fds` "output" becomes its stdout and stderr, the others are handed to
        its entry under their names; a child needs "frames". Our own copies stay open: close them afterwards.

        A child's arguments name the function `perform`, a runner's its `entry`, which is called with
        (app, arguments, fds) and must be one of Windlass's own.
        """
        names = dict(fds or {})
        number = next(self._ids)
        request = {"fork": role, "id": number, "arguments": dict(arguments or {}), "names": list(names)}
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        if self._listening is None or self._listening.done():
            raise self._goodbye()
        self._asked[number] = answer
        try:
            await self._stream.send(request, fds=list(names.values()))
            return await answer
        except OSError:
            raise self._goodbye() from None
        finally:
            self._asked.pop(number, None)

    async def close(self) -> Ending:
        """End all forked and the forkserver: SIGTERM, SIGKILL after two seconds; wait until they are gone."""
        self._stream.finish()
        await asyncio.wait([self.gone], timeout=GRACE + 2 * LAST_WAIT)
        if not self.gone.done():
            self._process.kill()  # stopped or stuck; what it leaves is ended by its mark
        return await asyncio.shield(self.gone)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _post(self, header: Header) -> None:
        try:
            self._stream.post(header)
        except OSError:
            pass  # the forkserver is gone, and so is whom the signal was for

    async def _hear_first(self) -> dict[str, Any]:
        frame = await self._stream.receive()
        header: Header = frame[0] if frame else {}
        if "ready" in header:
            facts: dict[str, Any] = header["ready"]
            return facts
        if "error" in header:
            raise AppNotLoadable(header["error"])
        ending = await _ended(self._process)
        raise AppNotLoadable(
            f"the process that was importing the app ended without a word, by {ending}: does the app's module "
            "call os._exit, crash, or need more memory than there is?"
        )

    async def _listen(self) -> None:
        try:
            while (frame := await self._stream.receive()) is not None:
                self._hear(frame[0])
        except FrameError:
            self._process.kill()  # it cannot be understood any more; its end is in order for all others
        ending = await _ended(self._process)
        if ending.code != 0:
            await asyncio.to_thread(_end_marked, f"{FORKSERVER_MARK}={self._mark}".encode())
        self._bury(ending)

    def _hear(self, header: Header) -> None:
        if "exited" in header:
            ending = Ending(header["code"], header["signal"], header["rss_kb"])
            _settle(self._forked.pop(header["exited"]).exited, ending)
            return
        answer = self._asked.get(header["id"])
        if "forked" in header:
            forked = self._forked[header["forked"]] = ForkedProcess(self, header["forked"])
            if answer is None or answer.done():  # who asked has given up, and would never end it
                forked.signal(signal.SIGKILL)
            else:
                answer.set_result(forked)
        elif answer is not None and not answer.done():
            answer.set_exception(ForkRefused(header["refused"]))

    def _bury(self, ending: Ending) -> None:
        self._stream.close()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(self._goodbye())
        # The kernel has killed them together with the forkserver.
        for forked in self._forked.values():
            _settle(forked.exited, Ending(None, signal.SIGKILL))
        self._forked.clear()
        _settle(self.gone, ending)

    def _goodbye(self) -> ForkServerGone:
        return ForkServerGone(f"the forkserver (process {self.pid}) has ended: open a new one")


def _start(
    command: list[str],
    control: int,
    folder: str | os.PathLike[str] | None,
    variables: dict[str, str],
    output: int | None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: the app's folder is added when the app is imported, so nothing in it can hide what we import.
        [sys.executable, "-P", "-m", PROCESS, *command],
        pass_fds=(control,),
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C is meant for the supervisor, which ends things in order
    )


def _settle(future: asyncio.Future[Ending], ending: Ending) -> None:
    if not future.done():
        future.set_result(ending)


async def _ended(process: subprocess.Popen[bytes]) -> Ending:
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or it has been reaped by a `waitpid(-1)` of ours
        await asyncio.to_thread(process.wait)
    else:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(fd, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(fd)
            os.close(fd)
    code = process.wait()
    return Ending(code, None) if code >= 0 else Ending(None, -code)


def _end_marked(mark: bytes) -> None:
    """End what a forkserver left that was killed and could not do it itself, as far as it can be known.

    The mark is in the environment of every process that came from it, unless a job started one with a new one.
    """
    for _ in range(20):
        living = [process.pid for process in process_info.everybody() if not process.is_zombie and process.pid > 1]
        ended = [pid for pid in living if _end_if_marked(pid, mark)]
        if not ended:
            return
        time.sleep(0.005)  # the dying may have forked while we looked


def _end_if_marked(pid: int, mark: bytes) -> bool:
    try:
        fd = os.pidfd_open(pid)  # whatever we learn from here on is of the process that the signal goes to
    except OSError:
        return False
    try:
        if mark not in (process_info.environment(pid) or ()) or process_info.is_embedded_server(pid):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
