"""The forkserver's process: imports the app, forks on request, signals, reaps, and kills leftover processes.

**Leftovers of a dead child.** Its process group is killed before the child is reaped, because until then no other
process can get the number. Processes that left the group are re-parented to the forkserver, which is a subreaper. So
a child of the forkserver that it did not fork is an orphan. An orphan is killed unless it belongs to a living forked
process (by its session, or by the mark in its environment), was started by the import of the app, or is an embedded
server.

**The embedded server is spared.** A job may start it, and it stays for other programs. It is recognised by the open
lock of its home: `embedded/launch.py` passes the lock to the server only. Its name proves nothing, because
`WINDLASS_SERVER_BIN` may be anything and a job may run a server of its own, which must go. Its environment is gone,
because servers overwrite it with their title.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import itertools
import os
import selectors
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import msgspec

from windlass.errors import InvalidOption, WindlassError
from windlass.worker import process_info
from windlass.worker.app_loading import explain, load_app
from windlass.worker.executors import child
from windlass.worker.ipc import frames
from windlass.worker.ipc.frames import FrameError, Header
from windlass.worker.supervisor.forkserver import KILLED_WAIT_S, TERM_GRACE_S

Entry = Callable[[Any, dict[str, Any], dict[str, int]], None]

ROLE_VARIABLE = "WINDLASS_ROLE"
FORKED_MARK = "WINDLASS_FORKED"  # in the environment of a forked process and of all that it starts

EXIT_NOT_LOADABLE = 3
EXIT_UNHANDLED = 70  # EX_SOFTWARE of sysexits.h

GC_THRESHOLD = 10_000  # new objects between two collections: a thousand waiting jobs hold twice as many

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The forkserver ignores SIGTERM: a service manager may send it to all processes at once, and then the supervisor stops
# them in order. So another signal tells it of the supervisor's death.
_SUPERVISOR_DIED = signal.SIGUSR1
_SIGNALS = (signal.SIGCHLD, _SUPERVISOR_DIED, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> NoReturn:
    """The process, started by `forkserver.py` with: CONTROL-FD SUPERVISOR-PID MODULE:ATTRIBUTE FACTS-NAME."""
    fd, supervisor, name, facts_name = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    control.set_inheritable(False)
    # SIGKILL during the import, which may hang or change signal handlers. Later the supervisor's death is handled.
    _die_with_parent(int(supervisor), signal.SIGKILL)
    _reset_signals()
    child.take_over_output()
    try:
        app, facts = _load(name, facts_name)
        service = _Service(control, app, int(supervisor))
        service.report({"ready": True}, msgspec.json.encode(facts))
    except BaseException as error:
        _give_up(control, error)
    try:
        service.run()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = EXIT_UNHANDLED
    # os._exit skips the app's atexit functions, which are meant for processes that ran jobs.
    child.flush_output()
    os._exit(code)


def _load(name: str, facts_name: str) -> tuple[object, dict[str, Any]]:
    began = time.monotonic()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])  # before the import, so that the app may change it
    app = load_app(name)
    # Imported before any fork, so that all forks share it.
    extra = child.find_function(facts_name)(app) if facts_name else {}
    module, _, attribute = name.partition(":")
    facts = {
        "module": module,
        "attribute": attribute,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "import_seconds": round(time.monotonic() - began, 3),
        # A fork has only the forking thread, and locks held by other threads stay locked in it.
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
    }
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every shared page
    return app, facts | {"rss": process_info.rss(os.getpid())} | extra


def _give_up(control: socket.socket, error: BaseException) -> NoReturn:
    text = str(error) if isinstance(error, WindlassError) else f"the app was imported, but failed:\n{explain(error)}"
    try:
        frames.send(control, {"error": text})
    except OSError:
        pass
    child.flush_output()
    os._exit(EXIT_NOT_LOADABLE)


class _Service:
    """Forks, signals, reaps and reports in one thread, because a fork would lose any other thread."""

    def __init__(self, control: socket.socket, app: object, supervisor: int) -> None:
        self._pid = os.getpid()
        self._control = control
        self._app = app
        self._living: dict[int, str] = {}  # forked processes by pid, each with its mark
        self._marks = itertools.count(1)
        self._import_started = set(process_info.children(self._pid) or ())
        self._unkillable: set[int] = set()
        self._collected: dict[int, tuple[int, int]] = {}
        self._supervisor_died = False
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._wakeup, wakeup_end = socket.socketpair()
        self._wakeup_end = wakeup_end
        self._wakeup.setblocking(False)
        wakeup_end.setblocking(False)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            is_handled = number in (signal.SIGCHLD, _SUPERVISOR_DIED)
            signal.signal(number, self._on_signal if is_handled else signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # Not SIGKILL: after the supervisor's death, this process must still end what the jobs have started.
        _die_with_parent(supervisor, _SUPERVISOR_DIED)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._supervisor_died |= number == _SUPERVISOR_DIED

    def run(self) -> None:
        """Serve the supervisor until it closes the control socket or dies; then end every process."""
        supervisor_there = True
        while supervisor_there and not self._supervisor_died:
            asked = self._wait(None)
            self._reap()
            if asked:
                supervisor_there = self._serve_one()
        self._end_everything()

    def report(self, header: Header, body: bytes = b"") -> None:
        """Send a frame to the supervisor. If it is gone, the next wait for a request notices that."""
        try:
            frames.send(self._control, header, body)
        except OSError:
            pass

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a request or a signal. Returns True if there is a request."""
        ready = [key.fileobj for key, _ in self._selector.select(timeout)]
        if self._wakeup in ready:
            self._wakeup.recv(4096)
        return self._control in ready

    def _serve_one(self) -> bool:
        try:
            frame = frames.receive_with_fds(self._control)
        except (OSError, FrameError):
            frame = None  # the supervisor is gone, or its frames are corrupt
        if frame is None:
            return False
        header, body, fds = frame
        if "fork" in header:
            self._fork(header | {"arguments": msgspec.json.decode(body)}, dict(zip(header["names"], fds, strict=True)))
        elif "signal" in header:
            self._signal(header["pid"], header["signal"], header["group"])
        return True

    # -- ending

    def _signal(self, pid: int, number: int, group: bool) -> None:
        """Signal a forked process that is not reaped yet: until then its pid and its group cannot be reused."""
        if pid not in self._living:
            return
        try:
            if group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            # The process was just forked and has no group yet, or it is dead and the signal has no effect.
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        except PermissionError:
            pass  # the processes have changed to another user

    def _reap(self) -> bool:
        """Reap dead processes, kill their orphans, and then report: a reported process has left nothing running."""
        reports = []
        reaped_any = False
        while (pid := self._next_dead()) is not None:
            reaped_any = True
            if pid in self._living:
                reports.append(self._reap_one(pid))
            else:
                os.waitpid(pid, 0)
                self._import_started.discard(pid)
                self._unkillable.discard(pid)
        if reaped_any:
            self._end_orphans()
        for report in reports:
            self.report(report)
        return reaped_any

    def _next_dead(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._collect_one()
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return dead.si_pid if dead else None

    def _collect_one(self) -> int | None:
        """Reap one process. macOS has no WNOWAIT, so there the group is killed right after the reaping."""
        for pid in self._living:
            reaped, status, usage = os.wait4(pid, os.WNOHANG)
            if reaped:
                self._collected[pid] = (status, usage.ru_maxrss // 1024)  # macOS counts bytes
                return pid
        return None

    def _reap_one(self, pid: int) -> Header:
        self._signal(pid, signal.SIGKILL, True)
        if pid in self._collected:
            status, rss_kb = self._collected.pop(pid)
        else:
            _, status, usage = os.wait4(pid, 0)
            rss_kb = usage.ru_maxrss
        del self._living[pid]
        code = os.waitstatus_to_exitcode(status)
        return {
            "exited": pid,
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "rss_kb": rss_kb,
        }

    def _end_orphans(self, all_of_them: bool = False) -> None:
        spared = self._living.keys() | self._unkillable | (set() if all_of_them else self._import_started)
        for pid in process_info.children(self._pid) or ():
            process = process_info.find(pid) if pid not in spared else None
            if process and not process.is_zombie and not self._belongs_to_living(process):
                self._end_orphan(process)

    def _belongs_to_living(self, process: process_info.Process) -> bool:
        if process.session in self._living:
            return True
        marks = {f"{FORKED_MARK}={mark}".encode() for mark in self._living.values()}
        return not marks.isdisjoint(process_info.environment(process.pid) or ())

    def _end_orphan(self, process: process_info.Process) -> None:
        if process_info.is_embedded_server(process.pid):
            return
        try:
            # It is our unreaped child, so its pid cannot be reused. Its own children will be re-parented to us.
            os.kill(process.pid, signal.SIGKILL)
            if process.group not in self._living and process.group != os.getpgrp():
                os.killpg(process.group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            self._unkillable.add(process.pid)  # it has changed to another user

    def _end_everything(self) -> None:
        for pid in list(self._living):
            self._signal(pid, signal.SIGTERM, True)
            self._signal(pid, signal.SIGCONT, True)  # a stopped process could not react to SIGTERM
        self._selector.unregister(self._control)
        self._reap_until(lambda: not self._living, TERM_GRACE_S)
        for pid in list(self._living):
            self._signal(pid, signal.SIGKILL, True)
        self._end_orphans(all_of_them=True)
        self._reap_until(self._is_alone, KILLED_WAIT_S)

    def _reap_until(self, reached: Callable[[], bool], patience: float) -> None:
        until = time.monotonic() + patience
        self._reap()
        while not reached() and (left := until - time.monotonic()) > 0:
            self._wait(left)
            self._reap()

    def _is_alone(self) -> bool:
        if self._living:
            return False
        self._end_orphans(all_of_them=True)
        others = set(process_info.children(self._pid) or ()) - self._unkillable
        return all(process_info.is_embedded_server(pid) for pid in others)

    # -- forking

    def _fork(self, request: Header, fds: dict[str, int]) -> None:
        try:
            entry = _entry(request["fork"], request["arguments"])
            pid = self._fork_process(request, fds, entry)
        except Exception as error:
            self.report({"refused": f"{type(error).__name__}: {error}", "id": request["id"]})
        else:
            self.report({"forked": pid, "id": request["id"]})
        finally:
            frames.close_all(list(fds.values()))

    def _fork_process(self, request: Header, fds: dict[str, int], entry: Entry) -> int:
        mark = f"{self._pid}.{next(self._marks)}"
        child.flush_output()
        # Signals for the new process stay blocked until it has replaced our handlers with its own.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._run_forked(request, fds, entry, mark)
            self._living[pid] = mark
        finally:
            if os.getpid() == self._pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def _run_forked(self, request: Header, fds: dict[str, int], entry: Entry, mark: str) -> NoReturn:
        """Run the requested entry in the new process, and exit."""
        code = EXIT_UNHANDLED
        try:
            os.setsid()
            _die_with_parent(self._pid, signal.SIGKILL)
            _use_output(fds.pop("output", None))
            self._undo_forkserver()
            _redirect_other_fds(set(fds.values()))
            os.environ.update({ROLE_VARIABLE: request["fork"], FORKED_MARK: mark})
            _reseed()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            entry(self._app, request["arguments"], fds)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                child.flush_output()
            finally:
                os._exit(code & 0xFF)

    def _undo_forkserver(self) -> None:
        """Undo the forkserver's setup in a forked process."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_end.close()
        self._control.close()
        self._living.clear()


def _entry(role: str, arguments: dict[str, Any]) -> Entry:
    """Find the entry function of a role before the fork, so that all forks share its imports."""
    if role == "child":
        child.find_function(arguments["run_job"])
        return child.begin
    if role != "runner":
        raise InvalidOption(f"no role {role!r}: fork a 'child' or a 'runner'")
    name = str(arguments["entry"])
    if not name.startswith("windlass."):
        raise InvalidOption(f"a runner's entry must be a function of Windlass, and {name!r} is not")
    entry: Entry = child.find_function(name)
    return entry


def _use_output(output: int | None) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if output is not None:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)


def _redirect_other_fds(handed: set[int]) -> None:
    """Redirect to /dev/null every descriptor that the app's import left open, such as a connection to a server.

    They are not closed, because the Python objects that own them live on: when such an object is freed, it would close
    a new descriptor that got the same number. Files open for appending stay, or the app's log would lose lines.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _open_descriptors() - handed - {0, 1, 2, nothing}:
        if not _is_log(fd):
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


def _open_descriptors() -> set[int]:
    folder = "/proc/self/fd" if process_info.HAS_PROC else "/dev/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            os.fstat(int(name))  # fails for the descriptor of the listing itself
        except OSError:
            continue
        found.add(int(name))
    return found


def _is_log(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode) and bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


def _reseed() -> None:
    # Python's generator reseeds itself after a fork; numpy's would give the same numbers in all forks.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _reset_signals() -> None:
    """Reset signals that the supervisor ignores or blocks. An ignored SIGCHLD would lose the exit codes of children."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _die_with_parent(parent: int, number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent died before prctl, so the kernel will not send the signal
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if _libc is not None and _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


# Loaded before any fork. Other systems have no prctl; there a closed socket tells of the parent's death.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


if __name__ == "__main__":
    main()
