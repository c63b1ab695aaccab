"""The forkserver: forked processes start clean, and leave nothing running when they end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.conditions import until
from tests.support.waiting import LIMIT_S
from tests.worker import sample_app
from windlass.embedded import EmbeddedServer
from windlass.worker import process_info
from windlass.worker.app_loading import AppNotLoadable
from windlass.worker.ipc.frames import MAX_HEADER_BYTES, FrameStream
from windlass.worker.ipc.slot_table import SlotTable
from windlass.worker.supervisor.forkserver import ForkedProcess, ForkRefused, ForkServer, ForkServerGone
from windlass.worker.supervisor.forkserver_process import GC_THRESHOLD

ROOT = Path(__file__).parent.parent.parent
SAMPLE = "tests.worker.sample_app:app"
RUN_JOB = "tests.worker.sample_app:run_job"

pytestmark = pytest.mark.skipif(not process_info.HAS_PROC, reason="these tests look into /proc")


class Child:
    """A child with its socket and its output, as a supervisor and a runner hold them."""

    forked: ForkedProcess
    stream: FrameStream
    output: int

    def __init__(
        self, forkserver: ForkServer, *, slot_table: int | None = None, reading: bool = True, role: str = "child"
    ) -> None:
        self._forkserver = forkserver
        self._slot_table = slot_table
        self._reading = reading
        self._role = role
        self._printed = bytearray()
        self._drained = asyncio.Event()

    async def __aenter__(self) -> Self:
        ours, theirs = socket.socketpair()
        self.output, write = os.pipe()
        fds = {"frames": theirs.fileno(), "output": write}
        if self._slot_table is not None:
            fds["slot_table"] = self._slot_table
        arguments = {"run_job": RUN_JOB, "entry": "windlass.worker.executors.child:begin"}
        with theirs:
            try:
                self.forked = await self._forkserver.fork(self._role, arguments, fds)
            finally:
                os.close(write)
        self.stream = FrameStream(ours)
        if self._reading:
            os.set_blocking(self.output, False)
            asyncio.get_running_loop().add_reader(self.output, self._read)
        return self

    def _read(self) -> None:
        data = os.read(self.output, 65_536)
        self._printed += data
        if not data:
            asyncio.get_running_loop().remove_reader(self.output)
            self._drained.set()

    async def ask(self, header: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        await self.stream.send(header, body)
        answer = await asyncio.wait_for(self.stream.receive(), 20)
        assert answer is not None, f"the child is gone: {bytes(self._printed)!r}"
        return answer

    async def hear(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.stream.receive(), 20)
        assert frame is not None, f"the child is gone: {bytes(self._printed)!r}"
        return frame[0]

    async def printed(self) -> bytes:
        await asyncio.wait_for(self._drained.wait(), LIMIT_S)
        return bytes(self._printed)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self.forked.signal(signal.SIGKILL)
        await asyncio.wait_for(asyncio.shield(self.forked.exited), LIMIT_S)
        if self.output >= 0:
            asyncio.get_running_loop().remove_reader(self.output)
            os.close(self.output)


@pytest.fixture
async def forkserver() -> AsyncIterator[ForkServer]:
    async with await ForkServer.open(SAMPLE) as forkserver:
        yield forkserver
    assert not process_info.is_alive(forkserver.pid)


def none_alive(pids: Iterable[int]) -> bool:
    return not any(process_info.is_alive(pid) for pid in pids)


# -- the app -------------------------------------------------------------------------------------


async def test_facts_and_arguments_grow_with_the_app() -> None:
    """An app may have any number of queues: both are larger here than the header of a frame may be."""
    async with await ForkServer.open(SAMPLE, facts="tests.worker.sample_app:many_facts") as forkserver:
        many = forkserver.facts["many"]
        assert sum(map(len, many)) > MAX_HEADER_BYTES
        arguments = {"entry": "windlass.worker.executors.child:begin", "run_job": RUN_JOB, "many": many}
        forked = await forkserver.fork("runner", arguments)
        assert (await asyncio.wait_for(asyncio.shield(forked.exited), LIMIT_S)).code == 70, "it lacks its descriptor"


@pytest.mark.parametrize(
    ("facts", "why"),
    [("too_many_facts", "is too large: the limits are"), ("unreadable_facts", "Encoding objects of type object")],
)
async def test_facts_that_cannot_be_sent_are_not_blamed_on_the_app(facts: str, why: str) -> None:
    with pytest.raises(AppNotLoadable) as refused:
        await ForkServer.open(SAMPLE, facts=f"tests.worker.sample_app:{facts}")
    assert why in str(refused.value)
    assert "os._exit" not in str(refused.value)


async def test_facts() -> None:
    async with await ForkServer.open(SAMPLE, facts="tests.worker.sample_app:facts") as forkserver:
        facts = forkserver.facts
        assert (facts["module"], facts["attribute"], facts["pid"]) == ("tests.worker.sample_app", "app", forkserver.pid)
        assert facts["python"] == sys.version.split()[0]
        assert facts["rss"] > 10_000_000
        assert facts["threads"] == []
        assert facts["shown"] == repr(sample_app.app)
    assert forkserver.gone.result().code == 0


BROKEN = {
    "no colon": ("jobs", "", "'jobs' does not name an app: write module:attribute"),
    "a file": (
        "shop/jobs.py:app",
        "",
        "'shop/jobs.py:app' does not name an app: write module:attribute, such as shop.jobs:app",
    ),
    "no module": ("jobz:app", "", "No module named 'jobz'"),
    "other name": ("jobs:ap", "import windlass\nfirst = second = windlass.Windlass()", "jobs:first or jobs:second"),
    "no app": ("jobs:app", "x = 1", "'app' does not exist .* put `app = windlass.Windlass"),
    "not an app": ("jobs:app", "app = 42", "'app' has type int, not Windlass"),
    "raises": ("jobs:app", "def f():\n    1/0\nf()", "line 2, in f\n.*\n.*ZeroDivisionError"),
    "exits": ("jobs:app", "raise SystemExit(5)", "SystemExit: 5"),
    "a windlass error": ("jobs:app", "import windlass\napp = windlass.Windlass('')", "line 2.*\n.*\n.*URL is empty"),
    "dies": ("jobs:app", "import os\nos._exit(9)", "ended with exit code 9 and no error message"),
    "is killed": ("jobs:app", "import os\nos.kill(os.getpid(), 11)", "ended with SIGSEGV and no error message"),
}


@pytest.mark.parametrize(("name", "text", "message"), BROKEN.values(), ids=BROKEN)
async def test_an_app_that_cannot_be_loaded(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "jobs.py").write_text(text)
    with pytest.raises(AppNotLoadable, match=f"(?s){message}") as caught:
        await ForkServer.open(name, folder=tmp_path)
    assert "forkserver.py" not in str(caught.value)


async def test_an_app_that_cannot_be_loaded_sets_the_exit_code(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    arguments = [str(theirs.fileno()), str(os.getpid()), "jobz:app", ""]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "windlass.worker.supervisor.forkserver_process",
        *arguments,
        pass_fds=(theirs.fileno(),),
        cwd=tmp_path,
    )
    assert await process.wait() == 3
    ours.close()
    theirs.close()


async def test_a_cancelled_open_kills_the_import(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(999)")
    opening = asyncio.create_task(ForkServer.open("jobs:app", folder=tmp_path))
    pidfile = tmp_path / "pid"
    await until(lambda: pidfile.exists() and bool(pidfile.read_text()))
    opening.cancel()
    await asyncio.wait([opening])
    assert none_alive([int(pidfile.read_text())])


# -- forked processes ----------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["child", "runner"])
async def test_a_fork_has_only_what_was_handed_to_it(forkserver: ForkServer, role: str) -> None:
    slot_table = SlotTable.create(1)
    async with Child(forkserver, slot_table=slot_table.fd, role=role) as one, Child(forkserver) as other:
        about, _ = await one.ask({"run": "about"})
        fds = about["fds"]
        assert fds.pop("0") == "/dev/null"
        assert fds.pop("1") == fds.pop("2")
        kinds = [path.partition(":")[0] for path in fds.values()]
        assert kinds.count("socket") == 1
        assert set(kinds) == {"socket", "/memfd"}
        assert about["pid"] == about["session"] == about["group"] == one.forked.pid
        assert about["parent"] == forkserver.pid
        assert about["role"] == role
        assert about["sigterm"]
        assert about["sigint"]
        assert about["blocked"] == []
        assert (await other.ask({"run": "about"}))[0]["random"] != about["random"]
    slot_table.close()


async def test_descriptors_left_open_by_the_app_lead_to_dev_null(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(
        f"import socket, sys, windlass\nsys.path.append({str(ROOT)!r})\n"
        "connection, other_end = socket.socketpair()\n"
        "log = open('log', 'a')\n"
        "app = windlass.Windlass('redis://127.0.0.1:1')\n"
    )
    async with await ForkServer.open("leaky:app", folder=tmp_path) as forkserver, Child(forkserver) as one:
        assert (await one.ask({"run": "socket"}))[0] == {"leads_to": "/dev/null", "reused": False}
    assert (tmp_path / "log").read_text() == "from a child\n"


@pytest.mark.parametrize(("chosen", "then"), [("", GC_THRESHOLD), ("gc.set_threshold(123, 4, 5)", 123)])
async def test_the_gc_threshold_is_raised_unless_the_app_sets_it(tmp_path: Path, chosen: str, then: int) -> None:
    (tmp_path / "collects.py").write_text(
        f"import gc\nfrom windlass import Windlass\n{chosen}\napp = Windlass()\n"
        "def facts(app): return {'threshold': gc.get_threshold()[0]}\n"
    )
    async with await ForkServer.open("collects:app", folder=tmp_path, facts="collects:facts") as forkserver:
        assert forkserver.facts["threshold"] == then


async def test_requests_that_must_not_be_forked(forkserver: ForkServer) -> None:
    for role, arguments, message in (
        ("parent", {}, "no role 'parent'"),
        ("runner", {"entry": "os:system"}, "must be a function of Windlass"),
        ("runner", {"entry": "windlass.worker.nowhere:run"}, "no function"),
        ("child", {"run_job": "tests.worker.sample_app:nothing"}, "no function"),
    ):
        with pytest.raises(ForkRefused, match=message):
            await forkserver.fork(role, arguments)
    async with Child(forkserver) as one:
        assert (await one.ask({"run": "echo"}))[0] == {"end": "done"}


# -- endings -------------------------------------------------------------------------------------


async def test_every_ending_is_reported(forkserver: ForkServer) -> None:
    for job, code, number in (
        ({"run": "exit", "code": 0}, 0, None),
        ({"run": "exit", "code": 9}, 9, None),
        ({"run": "crash"}, None, signal.SIGSEGV),
        (None, None, signal.SIGTERM),
    ):
        async with Child(forkserver) as one:
            await one.ask({"run": "echo"})
            if job:
                await one.stream.send(job)
            else:
                one.forked.signal(signal.SIGTERM)
            ending = await asyncio.wait_for(asyncio.shield(one.forked.exited), LIMIT_S)
            assert (ending.code, ending.signal) == (code, number)
            assert ending.rss_kb is not None
            assert ending.rss_kb > 5_000


async def test_a_signal_right_after_the_fork_is_not_lost(forkserver: ForkServer) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL) * 20:
        async with Child(forkserver) as one:
            one.forked.signal(number)
            ending = await asyncio.wait_for(asyncio.shield(one.forked.exited), LIMIT_S)
            assert ending.signal == number


async def test_a_child_that_ignores_sigterm_dies_with_all_its_processes(forkserver: ForkServer) -> None:
    neighbour = Child(forkserver)
    await neighbour.__aenter__()
    daemon = (await neighbour.ask({"run": "daemon", "with": "setsid"}))[0]["pid"]
    for _ in range(50):
        async with Child(forkserver) as one:
            await one.stream.send({"run": "hang"})
            pids = (await one.hear())["pids"]
            assert all(process_info.is_alive(pid) for pid in pids)
            one.forked.signal(signal.SIGTERM, group=False)
            one.forked.signal(signal.SIGKILL)
            ending = await asyncio.wait_for(asyncio.shield(one.forked.exited), LIMIT_S)
            assert ending.signal == signal.SIGKILL
            await until(partial(none_alive, pids))
    assert process_info.is_alive(daemon), "a process of a living neighbour is no orphan"
    await until(lambda: set(process_info.children(forkserver.pid) or ()) == {neighbour.forked.pid, daemon})
    await neighbour.__aexit__(None, None, None)
    await until(lambda: process_info.children(forkserver.pid) == [])


async def test_processes_in_the_session_of_a_living_child_are_kept(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        daemon = (await one.ask({"run": "daemon", "with": "env -i"}))[0]["pid"]
        async with Child(forkserver):
            pass
        assert process_info.is_alive(daemon)
    await until(lambda: none_alive([daemon]))


async def test_orphans_of_orphans_are_killed(forkserver: ForkServer) -> None:
    async with Child(forkserver) as one:
        script = """setsid sh -c 'setsid sleep 999 & setsid sleep 999 & exec "$0" "$@"'"""
        outer = (await one.ask({"run": "daemon", "with": script}))[0]["pid"]
        await until(lambda: len(process_info.children(outer) or ()) == 2)
        family = [outer, *(process_info.children(outer) or ())]
        await until(lambda: len({os.getsid(pid) for pid in family}) == 3)
    await until(lambda: none_alive(family) and process_info.children(forkserver.pid) == [])


async def test_processes_of_the_import_live_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        f"import subprocess, sys, windlass\nsys.path.append({str(ROOT)!r})\n"
        "helper = subprocess.Popen(['sleep', '999'], start_new_session=True)\n"
        "app = windlass.Windlass('redis://127.0.0.1:1')\n"
    )
    async with await ForkServer.open("jobs:app", folder=tmp_path) as forkserver:
        (helper,) = process_info.children(forkserver.pid) or [0]
        async with Child(forkserver) as one:
            await one.ask({"run": "echo"})
        assert process_info.children(forkserver.pid) == [helper]
        assert process_info.is_alive(helper)
    assert none_alive([helper])


async def test_the_embedded_server_is_spared(forkserver: ForkServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with Child(forkserver) as one:
        header, _ = await one.ask({"run": "embedded", "home": str(home)})
    try:
        await until(lambda: none_alive([header["other"]]))
        await forkserver.close()
        assert process_info.is_alive(header["embedded"])
        assert EmbeddedServer(home).status().state == "running"
    finally:
        EmbeddedServer(home).stop()


async def test_closing_ends_all() -> None:
    forkserver = await ForkServer.open(SAMPLE)
    quiet, stubborn = Child(forkserver), Child(forkserver)
    await quiet.__aenter__()
    await stubborn.__aenter__()
    await stubborn.stream.send({"run": "hang"})
    pids = (await stubborn.hear())["pids"]
    began = time.monotonic()
    ending = await forkserver.close()
    assert ending.code == 0
    assert time.monotonic() - began > 1.9, "the stubborn one has two seconds"
    assert quiet.forked.exited.result().signal == signal.SIGTERM
    assert stubborn.forked.exited.result().signal == signal.SIGKILL
    assert none_alive([*pids, quiet.forked.pid, stubborn.forked.pid])
    with pytest.raises(ForkServerGone):
        await forkserver.fork("child", {"run_job": RUN_JOB})
    await forkserver.close()
    await quiet.__aexit__(None, None, None)
    await stubborn.__aexit__(None, None, None)


async def test_a_killed_forkserver_takes_all_with_it() -> None:
    forkserver = await ForkServer.open(SAMPLE)
    children = [Child(forkserver) for _ in range(3)]
    for one in children:
        await one.__aenter__()
    await children[0].stream.send({"run": "hang"})
    pids = (await children[0].hear())["pids"]
    os.kill(forkserver.pid, signal.SIGKILL)
    ending = await asyncio.wait_for(asyncio.shield(forkserver.gone), LIMIT_S)
    assert ending.signal == signal.SIGKILL
    await until(lambda: none_alive([*pids, *(one.forked.pid for one in children)]))
    for one in children:
        assert one.forked.exited.result().signal == signal.SIGKILL
        await one.__aexit__(None, None, None)


SUPERVISOR = """
import asyncio, sys
from tests.worker.test_forkserver import Child, SAMPLE
from windlass.worker.supervisor.forkserver import ForkServer
async def keep():
    forkserver = await ForkServer.open(SAMPLE)
    one = Child(forkserver)
    await one.__aenter__()
    await one.stream.send({"run": "hang"})
    pids = (await one.hear())["pids"]
    print(forkserver.pid, one.forked.pid, *pids, flush=True)
    await asyncio.Event().wait()
asyncio.run(keep())
"""


async def test_a_killed_supervisor_takes_all_with_it() -> None:
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert supervisor.stdout is not None
    pids = [int(pid) for pid in (await supervisor.stdout.readline()).split()]
    assert len(pids) == 5
    assert not none_alive(pids)
    supervisor.kill()
    await supervisor.wait()
    await until(lambda: none_alive(pids))


async def test_the_forkserver_ignores_signals_for_the_supervisor(forkserver: ForkServer) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(forkserver.pid, number)
    async with Child(forkserver) as one:
        assert (await one.ask({"run": "echo"}))[0] == {"end": "done"}


async def test_many_at_once_leave_no_zombie_and_no_descriptor(forkserver: ForkServer) -> None:
    async def live() -> None:
        async with Child(forkserver) as one:
            await one.ask({"run": "echo"})

    await live()
    ours, theirs = process_info.open_files(os.getpid()) or {}, process_info.open_files(forkserver.pid)
    await asyncio.gather(*(live() for _ in range(40)))
    assert process_info.children(forkserver.pid) == []
    assert len(process_info.open_files(os.getpid()) or {}) <= len(ours)
    assert process_info.open_files(forkserver.pid) == theirs


async def test_a_cancelled_fork_leaves_no_child(forkserver: ForkServer) -> None:
    forking = asyncio.create_task(forkserver.fork("child", {"run_job": RUN_JOB}))
    await asyncio.sleep(0)
    forking.cancel()
    await asyncio.wait([forking])
    async with Child(forkserver) as one:
        await one.ask({"run": "echo"})
        await until(lambda: process_info.children(forkserver.pid) == [one.forked.pid])


def test_process_info_reads_this_process() -> None:
    own = os.getpid()
    process = process_info.find(own)
    assert process is not None
    assert (process.parent, process.group, process.session) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert process_info.state(own) == "R"
    assert (process_info.rss(own) or 0) > 10_000_000
    nobody = 2**22 + 1
    assert (process_info.find(nobody), process_info.rss(nobody), process_info.state(nobody)) == (None, None, None)
    assert process_info.is_alive(nobody) is False


def test_a_zombie_is_not_alive() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert process_info.state(pid) == "Z"
    assert process_info.is_alive(pid) is False
    assert pid in (process_info.children(os.getpid()) or ())
    os.waitpid(pid, 0)
