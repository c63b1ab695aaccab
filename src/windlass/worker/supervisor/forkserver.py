"""The forkserver: a process that imports the user's app once and forks runners and children from it on request.
`ForkServer` is the supervisor's handle on it; `forkserver_process.py` is the process.

    supervisor ── control socket ── forkserver (app imported, one thread, runs no job)
      │                            ├─ fork ─ runner          each in a session of its own, killed by the kernel
      │                            ├─ fork ─ child           if the forkserver dies
      │                            └─ fork ─ child ─ processes that a job started
      └ the control socket closes ⇒ the forkserver ends all of them, and itself

On the control socket, from the supervisor:
    {"fork": role, "id": n, "names": [name of each descriptor]}   + the arguments as JSON, and the descriptors
    {"signal": number, "pid": n, "group": bool}
and from the forkserver:
    {"ready": true} + the facts as JSON, or {"error": text}         once
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

FORKSERVER_MARK = "WINDLASS_FORKSERVER"  # in the environment of every process that comes from one forkserver
TERM_GRACE_S = 2.0  # from SIGTERM to SIGKILL when the supervisor is gone: its jobs may start elsewhere soon
KILLED_WAIT_S = 5.0  # for killed processes that hang in the kernel, for example on a slow disk
PROCESS_MODULE = "windlass.worker.supervisor.forkserver_process"


class ForkServerGone(WindlassError):
    """The forkserver has ended, and with it every process that it forked: open a new one."""


class ForkRefused(WindlassError):
    """The forkserver could not fork, or the request is not allowed."""


class Ending(msgspec.Struct, frozen=True):
    """How a process ended: an exit code or a signal, and its peak memory."""

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
        """Signal the process, alone or with its process group. Has no effect once the process has ended."""
        if not self.exited.done():
            self._forkserver._post({"signal": int(number), "pid": self.pid, "group": group})


class ForkServer:
    """The supervisor's handle on its forkserver.

    `gone` resolves when the forkserver has ended together with every process that it forked.
    """

    def __init__(self, process: subprocess.Popen[bytes], stream: FdStream, mark: str) -> None:
        self.pid = process.pid
        self.facts: dict[str, Any] = {}
        self.gone: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._process = process
        self._stream = stream
        self._mark = mark
        self._ids = itertools.count(1)
        self._requests: dict[int, asyncio.Future[ForkedProcess]] = {}
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

        `facts` names a function `package.module:function`. The forkserver calls it with the app and adds the returned
        dict to its facts. `folder` is the folder of the app, by default the current one. `output` is the descriptor
        for the output of the import, by default ours.
        """
        near, far = socket.socketpair()
        mark = secrets.token_hex(8)
        command = [str(far.fileno()), str(os.getpid()), app, facts or ""]
        variables = {**(os.environ if environment is None else environment), FORKSERVER_MARK: mark}
        with far:
            try:
                process = _start(command, far.fileno(), folder, variables, output)
            except BaseException:
                near.close()
                raise
        forkserver = cls(process, FdStream(near), mark)
        try:
            forkserver.facts = await forkserver._receive_facts()
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
        """Fork a "child" or a "runner".

        In `fds`, "output" becomes stdout and stderr; the process's entry gets the others under their names. A child
        needs "frames". Our copies stay open, so the caller must close them.

        A child's arguments name the function `run_job`. A runner's name its `entry`, a function of Windlass that is
        called with (app, arguments, fds).
        """
        names = dict(fds or {})
        number = next(self._ids)
        request = {"fork": role, "id": number, "names": list(names)}
        body = msgspec.json.encode(arguments or {})
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        if self._listening is None or self._listening.done():
            raise self._gone_error()
        self._requests[number] = answer
        try:
            await self._stream.send(request, body, fds=list(names.values()))
            return await answer
        except OSError:
            raise self._gone_error() from None
        finally:
            self._requests.pop(number, None)

    async def close(self) -> Ending:
        """End the forkserver and every forked process (SIGTERM, then SIGKILL), and wait until they are gone."""
        self._stream.finish()
        await asyncio.wait([self.gone], timeout=TERM_GRACE_S + 2 * KILLED_WAIT_S)
        if not self.gone.done():
            self._process.kill()  # the forkserver is stopped or stuck; its processes are found by their mark
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
            pass  # the forkserver is gone, and the process with it

    async def _receive_facts(self) -> dict[str, Any]:
        frame = await self._stream.receive()
        header: Header = frame[0] if frame else {}
        if "ready" in header:
            assert frame is not None
            return msgspec.json.decode(frame[1], type=dict[str, Any])
        if "error" in header:
            raise AppNotLoadable(header["error"])
        ending = await _wait_ended(self._process)
        raise AppNotLoadable(
            f"the process that imported the app ended with {ending} and no error message: check whether the app's "
            "module calls os._exit, crashes, or needs too much memory"
        )

    async def _listen(self) -> None:
        try:
            while (frame := await self._stream.receive()) is not None:
                self._handle(frame[0])
        except FrameError:
            self._process.kill()  # its frames are corrupt; a dead forkserver is a case that the supervisor handles
        ending = await _wait_ended(self._process)
        if ending.code != 0:
            await asyncio.to_thread(_end_marked, f"{FORKSERVER_MARK}={self._mark}".encode())
        self._on_gone(ending)

    def _handle(self, header: Header) -> None:
        if "exited" in header:
            ending = Ending(header["code"], header["signal"], header["rss_kb"])
            _resolve(self._forked.pop(header["exited"]).exited, ending)
            return
        answer = self._requests.get(header["id"])
        if "forked" in header:
            forked = self._forked[header["forked"]] = ForkedProcess(self, header["forked"])
            if answer is None or answer.done():  # the caller was cancelled and would never end this process
                forked.signal(signal.SIGKILL)
            else:
                answer.set_result(forked)
        elif answer is not None and not answer.done():
            answer.set_exception(ForkRefused(header["refused"]))

    def _on_gone(self, ending: Ending) -> None:
        self._stream.close()
        for answer in self._requests.values():
            if not answer.done():
                answer.set_exception(self._gone_error())
        # The kernel killed them together with the forkserver.
        for forked in self._forked.values():
            _resolve(forked.exited, Ending(None, signal.SIGKILL))
        self._forked.clear()
        _resolve(self.gone, ending)

    def _gone_error(self) -> ForkServerGone:
        return ForkServerGone(f"the forkserver (process {self.pid}) has ended: open a new one")


def _start(
    command: list[str],
    control: int,
    folder: str | os.PathLike[str] | None,
    variables: dict[str, str],
    output: int | None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        # -P: keeps the app's folder off the path until the app is imported, so it cannot shadow our imports.
        [sys.executable, "-P", "-m", PROCESS_MODULE, *command],
        pass_fds=(control,),
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C must reach only the supervisor, which stops the others in order
    )


def _resolve(future: asyncio.Future[Ending], ending: Ending) -> None:
    if not future.done():
        future.set_result(ending)


async def _wait_ended(process: subprocess.Popen[bytes]) -> Ending:
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or a `waitpid(-1)` in this process has reaped it
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
    """Kill the processes of a forkserver that was killed itself, as far as the mark shows them.

    The mark is in the environment of every process that came from the forkserver, except those that a job started with
    a new environment.
    """
    for _ in range(20):
        living = [process.pid for process in process_info.all_processes() if not process.is_zombie and process.pid > 1]
        ended = [pid for pid in living if _end_if_marked(pid, mark)]
        if not ended:
            return
        time.sleep(0.005)  # a killed process may have forked meanwhile


def _end_if_marked(pid: int, mark: bytes) -> bool:
    try:
        fd = os.pidfd_open(pid)  # pins the process: the checks below and the signal are about the same one
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
