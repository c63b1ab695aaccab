"""The forkserver's process: imports the app, then forks on request, signals, reaps, and ends what is left behind.

**What a dead child leaves behind.** Its process group is killed before it is reaped, for until then the number cannot
belong to another. What left the group is re-parented to the forkserver, a subreaper: whatever is the forkserver's
child and
was not forked by it is somebody's orphan. It is killed unless it belongs to an forked that lives (by its session, or
by the mark in its environment), was started by the import of the app, or is an embedded server.

**The embedded server is spared.** A job may be the one that starts it, and it is meant to stay for other programs. What
tells it apart is that it has its home's lock open: `embedded/launch.py` hands the lock to it alone, in every other
process it is closed to exec and to forks. Its name proves nothing (`WINDLASS_SERVER_BIN` may be anything, and a job may
run a server of its own that must go), and its environment is gone: servers write their title over it.
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

from windlass.errors import InvalidOption, WindlassError
from windlass.worker import process_info
from windlass.worker.app_loading import explain, load_app
from windlass.worker.executors import child
from windlass.worker.ipc import frames
from windlass.worker.ipc.frames import FrameError, Header
from windlass.worker.supervisor.forkserver import GRACE, LAST_WAIT

Entry = Callable[[Any, dict[str, Any], dict[str, int]], None]

ROLE_VARIABLE = "WINDLASS_ROLE"
FORKED_MARK = "WINDLASS_FORKED"  # in the environment of all that one forked runs

EXIT_NOT_LOADABLE = 3
EXIT_UNCAUGHT = 70

YOUNG_OBJECTS = 10_000  # between two collections: a thousand jobs that wait are twice that, looked at again and again

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# The forkserver does not heed SIGTERM: a service manager may send it to all processes at once, and then it is the
# supervisor
# that ends things in order. So the supervisor's death is told by another signal.
_SUPERVISOR_DIED = signal.SIGUSR1
_SIGNALS = (signal.SIGCHLD, _SUPERVISOR_DIED, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> NoReturn:
    """The process, started by `forkserver.py` with: CONTROL-FD SUPERVISOR-PID MODULE:ATTRIBUTE FACTS-NAME."""
    fd, supervisor, name, facts_name = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    control.set_inheritable(False)
    # An import may hang, or have changed how it takes signals. Once it is done the supervisor's end is taken in order.
    _die_with_parent(int(supervisor), signal.SIGKILL)
    _reset_signals()
    child.take_over_output()
    try:
        app, facts = _load(name, facts_name)
    except BaseException as error:
        _give_up(control, error)
    service = _Service(control, app, int(supervisor))
    try:
        service.report({"ready": facts})
        service.run()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = EXIT_UNCAUGHT
    # Not through the interpreter's end: what the app registered for it is for processes that ran jobs.
    child.flush_output()
    os._exit(code)


def _load(name: str, facts_name: str) -> tuple[object, dict[str, Any]]:
    began = time.monotonic()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])  # the app may choose otherwise
    app = load_app(name)
    # Imported ahead, so that all forks share it.
    extra = child.find_function(facts_name)(app) if facts_name else {}
    module, _, attribute = name.partition(":")
    facts = {
        "module": module,
        "attribute": attribute,
        "pid": os.getpid(),
        "python": sys.version.split()[0],
        "import_seconds": round(time.monotonic() - began, 3),
        # A fork has only the thread that forked, and whatever the others had locked stays locked in it.
        "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
    }
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page of what was imported
    return app, facts | {"rss": process_info.rss(os.getpid())} | extra


def _give_up(control: socket.socket, error: BaseException) -> NoReturn:
    text = str(error) if isinstance(error, WindlassError) else f"the app cannot be described:\n{explain(error)}"
    try:
        frames.send(control, {"error": text})
    except OSError:
        pass
    child.flush_output()
    os._exit(EXIT_NOT_LOADABLE)


class _Service:
    """Forks, signals, reaps and reports, one thing after another: there is no second thread that a fork could lose."""

    def __init__(self, control: socket.socket, app: object, supervisor: int) -> None:
        self._pid = os.getpid()
        self._control = control
        self._app = app
        self._living: dict[int, str] = {}  # forked, each with its mark
        self._marks = itertools.count(1)
        self._import_started = set(process_info.children(self._pid) or ())
        self._beyond_us: set[int] = set()
        self._collected: dict[int, tuple[int, int]] = {}
        self._told_to_end = False
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._wakeup, wakeup_end = socket.socketpair()
        self._wakeup_end = wakeup_end
        self._wakeup.setblocking(False)
        wakeup_end.setblocking(False)
        signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            heeded = number in (signal.SIGCHLD, _SUPERVISOR_DIED)
            signal.signal(number, self._on_signal if heeded else signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # Not SIGKILL: with the supervisor's death the work of ending what jobs have started only begins.
        _die_with_parent(supervisor, _SUPERVISOR_DIED)
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._told_to_end |= number == _SUPERVISOR_DIED

    def run(self) -> None:
        """Serve the supervisor until it closes the control socket or is gone; then end everything."""
        supervisor_there = True
        while supervisor_there and not self._told_to_end:
            asked = self._wait(None)
            self._reap()
            if asked:
                supervisor_there = self._serve_one()
        self._end_everything()

    def report(self, header: Header) -> None:
        """Tell the supervisor. If it is gone that is seen when its next request is waited for."""
        try:
            frames.send(self._control, header)
        except OSError:
            pass

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a request or a signal; True if there is a request."""
        ready = [key.fileobj for key, _ in self._selector.select(timeout)]
        if self._wakeup in ready:
            self._wakeup.recv(4096)
        return self._control in ready

    def _serve_one(self) -> bool:
        try:
            frame = frames.receive_with_fds(self._control)
        except (OSError, FrameError):
            frame = None  # there is no supervisor that we could understand
        if frame is None:
            return False
        header, _, fds = frame
        if "fork" in header:
            self._fork(header, dict(zip(header["names"], fds, strict=True)))
        elif "signal" in header:
            self._signal(header["pid"], header["signal"], header["group"])
        return True

    # -- ending

    def _signal(self, pid: int, number: int, group: bool) -> None:
        """Only what is not reaped yet: its number, and its group's, is still its own."""
        if pid not in self._living:
            return
        try:
            if group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            # It was forked a moment ago and has no group yet; or it is dead, and nothing happens.
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        except PermissionError:
            pass  # all of it has become another user's

    def _reap(self) -> bool:
        """Bury the dead and end their orphans, then report: what is told to have ended has nothing left running."""
        reports = []
        buried = 0
        while (pid := self._next_dead()) is not None:
            buried += 1
            if pid in self._living:
                reports.append(self._bury(pid))
            else:
                os.waitpid(pid, 0)
                self._import_started.discard(pid)
                self._beyond_us.discard(pid)
        if buried:
            self._end_orphans()
        for report in reports:
            self.report(report)
        return bool(buried)

    def _next_dead(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._collect_one()
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return dead.si_pid if dead else None

    def _collect_one(self) -> int | None:
        """On macOS nobody can be looked at before he is reaped: there the group is killed just afterwards."""
        for pid in self._living:
            reaped, status, usage = os.wait4(pid, os.WNOHANG)
            if reaped:
                self._collected[pid] = (status, usage.ru_maxrss // 1024)  # counted in bytes there
                return pid
        return None

    def _bury(self, pid: int) -> Header:
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
        spared = self._living.keys() | self._beyond_us | (set() if all_of_them else self._import_started)
        for pid in process_info.children(self._pid) or ():
            process = process_info.look(pid) if pid not in spared else None
            if process and not process.is_zombie and not self._belongs_to_the_living(process):
                self._end_orphan(process)

    def _belongs_to_the_living(self, process: process_info.Process) -> bool:
        if process.session in self._living:
            return True
        marks = {f"{FORKED_MARK}={mark}".encode() for mark in self._living.values()}
        return not marks.isdisjoint(process_info.environment(process.pid) or ())

    def _end_orphan(self, process: process_info.Process) -> None:
        if process_info.is_embedded_server(process.pid):
            return
        try:
            # A child of ours that is not reaped: the number is its own. Its children will come to us.
            os.kill(process.pid, signal.SIGKILL)
            if process.group not in self._living and process.group != os.getpgrp():
                os.killpg(process.group, signal.SIGKILL)
        except ProcessLookupError:
            pass
        except PermissionError:
            self._beyond_us.add(process.pid)  # it has become another user's

    def _end_everything(self) -> None:
        for pid in list(self._living):
            self._signal(pid, signal.SIGTERM, True)
            self._signal(pid, signal.SIGCONT, True)  # one that is stopped could not end
        self._selector.unregister(self._control)
        self._reap_until(lambda: not self._living, GRACE)
        for pid in list(self._living):
            self._signal(pid, signal.SIGKILL, True)
        self._end_orphans(all_of_them=True)
        self._reap_until(self._is_alone, LAST_WAIT)

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
        others = set(process_info.children(self._pid) or ()) - self._beyond_us
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
        # A signal for the new process must find its own handlers, not ours: until it has them it waits.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._become(request, fds, entry, mark)
            self._living[pid] = mark
        finally:
            if os.getpid() == self._pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid

    def _become(self, request: Header, fds: dict[str, int], entry: Entry, mark: str) -> NoReturn:
        """In the new process: be what was asked for, and never come back."""
        code = EXIT_UNCAUGHT
        try:
            os.setsid()
            _die_with_parent(self._pid, signal.SIGKILL)
            _use_output(fds.pop("output", None))
            self._leave()
            _keep_only(set(fds.values()))
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

    def _leave(self) -> None:
        """Undo what makes a process the forkserver."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_end.close()
        self._control.close()
        self._living.clear()


def _entry(role: str, arguments: dict[str, Any]) -> Entry:
    """The function of a role. It is found before the fork, so that what it imports is imported once."""
    if role == "child":
        child.find_function(arguments["perform"])
        return child.begin
    if role != "runner":
        raise InvalidOption(f"there is no role {role!r}: fork a 'child' or a 'runner'")
    name = str(arguments["entry"])
    if not name.startswith("windlass."):
        raise InvalidOption(f"a runner's entry must be a function of Windlass, not {name!r}")
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


def _keep_only(handed: set[int]) -> None:
    """Let go of every descriptor that the app's import left open, such as a connection to a server.

    The objects that it belongs to live on in this process, so its number must not become another's: a forgotten
    connection that is freed later would close the new owner's. It leads to nothing from now on. Files that are open
    for appending stay, or the app's log would lose its lines in silence.
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
            os.fstat(int(name))  # the one that read the folder is closed by now
        except OSError:
            continue
        found.add(int(name))
    return found


def _is_log(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode) and bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND)


def _reseed() -> None:
    # Python's own generator reseeds itself after a fork; numpy's is the same in all forks.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _reset_signals() -> None:
    """Whatever the supervisor ignores or blocks is not meant for jobs; an ignored SIGCHLD would lose every ending."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in _SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _die_with_parent(parent: int, number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it died before it was asked for: the signal would never come
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if _libc is not None and _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


# Found before any fork. Other systems have no such thing; there the end of a socket must do.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


if __name__ == "__main__":
    main()
