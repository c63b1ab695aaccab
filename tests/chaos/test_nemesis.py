"""Each fault does what it says to the real target, and its end repairs the damage. Equal seeds give equal plans."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
from chaos.clock import ServerClock
from chaos.nemesis.clock import DAY, HOUR, JumpClock
from chaos.nemesis.disk import FailingFsync, FailingWrite, FullDisk, SlowDisk, SmallDisk, StalledFsync, tracers
from chaos.nemesis.fault import Detail, Fault
from chaos.nemesis.mix import KINDS, Nemesis, Step, Targets, plan, possible
from chaos.nemesis.network import Namespace, Partition, lacking_namespaces
from chaos.nemesis.processes import Anatomy, Deploy, Kill, Part, Stop, Victim, anatomy
from chaos.nemesis.proxying import Disconnect, LineDown, Lossy, LossyProxy, Rates
from chaos.nemesis.server import (
    Backup,
    FlushAll,
    FlushScripts,
    FreezeServer,
    FullMemory,
    KillClients,
    KillServer,
    RestoreBackup,
    RewriteLog,
    StallServer,
    bring_back,
)

from tests.support.proxy import FaultProxy
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.workers import Worker, Workshop, wait_dead
from windlass.worker import process_info

STALL = 0.4  # seconds


def needs(*faults: type[Fault]) -> pytest.MarkDecorator:
    reasons = [reason for fault in faults if (reason := fault.available()) is not None]
    return pytest.mark.skipif(bool(reasons), reason="; ".join(reasons))


def set_once(server: Server, value: bytes = b"x") -> float:
    """Write once; returns how long it took."""
    began = time.monotonic()
    server.command("SET", "key", value)
    return time.monotonic() - began


def writes_quickly(server: Server, held_up: float = STALL) -> bool:
    """Wait until a write takes less time than the disk's trouble held each of them up."""
    return wait_until(lambda: set_once(server) < held_up, "a quick write")


# -- processes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with Server() as server, Workshop(server, tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def worker(shop: Workshop) -> Worker:
    """A worker with a child; the next test reuses it if it is alive."""
    living = [worker for worker in shop.workers if worker.process.poll() is None]
    worker = living[-1] if living else shop.start("running", processes=1, threads=1, concurrency=2)
    run_one(shop)
    return worker


def run_one(shop: Workshop) -> None:
    shop.send("process_wait", 0.0, queue="processes")
    shop.wait_empty("processes")


def states(pids: list[int]) -> set[str | None]:
    return {process_info.state(pid) for pid in pids}


def test_the_processes_of_a_worker_are_told_apart(worker: Worker) -> None:
    found = anatomy(worker)
    assert (found.supervisor, found.forkserver) == (worker.supervisor, worker.forkserver)
    assert found.runner is not None
    assert len(found.children) == 1
    assert sorted(found.everybody) == sorted(worker.processes())


@pytest.mark.parametrize("part", ["runner", "child", "worker"])
def test_what_is_stopped_stands_still_and_goes_on(shop: Workshop, worker: Worker, part: Part) -> None:
    stop = Stop(worker, part)
    with stop:
        pids = anatomy(worker).part(part)
        assert len(pids) == (len(worker.processes()) if part == "worker" else 1)
        assert states(pids) == {"T"}
        assert "T" not in states([pid for pid in worker.processes() if pid not in pids])
    assert "T" not in states(worker.processes())
    run_one(shop)


@pytest.mark.parametrize("part", ["child", "runner"])
def test_a_killed_child_or_runner_is_dead_and_its_worker_goes_on(shop: Workshop, worker: Worker, part: Part) -> None:
    (expected,) = anatomy(worker).part(part)
    with Kill(worker, part) as kill:
        wait_dead(expected)
        assert kill.end() == {}, "nothing is to be mended from outside"
    assert worker.process.poll() is None
    run_one(shop)
    assert expected not in worker.processes()


@pytest.mark.parametrize("part", ["supervisor", "worker"])
def test_a_killed_worker_is_dead_and_replaced(shop: Workshop, worker: Worker, part: Part) -> None:
    everybody = worker.processes()
    replaced: list[Victim] = []
    kill = Kill(worker, part, replace=replaced.append)
    hit = kill.begin()["pids"]
    assert sorted(hit) == (sorted(everybody) if part == "worker" else [worker.supervisor])
    worker.process.wait(LIMIT_S)
    kill.end()
    kill.end()
    assert replaced == [worker], "once"
    worker.wait_gone()


def test_a_worker_that_is_deployed_anew_ends_in_order(worker: Worker) -> None:
    replaced: list[Victim] = []
    deploy = Deploy(worker, replace=replaced.append)
    assert deploy.begin()["pids"] == [worker.supervisor]
    assert worker.process.wait(LIMIT_S) == 0
    deploy.end()
    assert replaced == [worker]


def test_a_worker_that_was_stopped_as_well_is_deployed_anew(worker: Worker) -> None:
    deploy, stop = Deploy(worker, patience=LIMIT_S), Stop(worker)
    stop.begin()
    deploy.begin()
    deploy.end()
    assert worker.process.wait(LIMIT_S) == 0
    assert stop.end()["pids"] == []


def test_a_pid_that_was_given_out_again_is_not_woken(worker: Worker) -> None:
    """A stopped pid that was reused by a new process must not be resumed."""
    stop = Stop(worker, "runner")
    stop.begin()
    (pid,) = stop.stopped
    try:
        stop.stopped[pid] -= 1  # a process that was started at another time
        assert stop.end()["pids"] == []
        assert process_info.state(pid) == "T"
    finally:
        worker.signal_all(signal.SIGCONT)


# -- network -------------------------------------------------------------------------------------------

# Sends a PING for each line it reads, over one connection, and prints the result within the given time.
_PINGER = """
import socket, sys
wire = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)
for line in sys.stdin:
    wire.settimeout(float(line))
    try:
        wire.sendall(b"PING\\r\\n")
        print(wire.recv(100).decode().strip(), flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    if (reason := lacking_namespaces()) is not None:
        pytest.skip(reason)
    with Namespace("guest") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def reachable(namespace: Namespace) -> Iterator[Server]:
    """A server that also listens on the link."""
    with Server(tcp=True, config={"bind": f"127.0.0.1 {namespace.host}", "protected-mode": "no"}) as server:
        yield server


def test_a_cut_link_swallows_everything_and_resets_nothing(namespace: Namespace, reachable: Server) -> None:
    command = [sys.executable, "-c", _PINGER, namespace.host, str(reachable.port)]
    pinger = namespace.run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert pinger.stdin is not None
    assert pinger.stdout is not None

    def ping(within: float) -> str:
        assert pinger.stdin is not None
        assert pinger.stdout is not None
        pinger.stdin.write(f"{within}\n".encode())
        pinger.stdin.flush()
        return pinger.stdout.readline().decode().strip()

    with pinger:
        try:
            assert ping(5) == "+PONG"
            with Partition(namespace):
                assert ping(0.5) == "TimeoutError"
                new = [
                    sys.executable,
                    "-c",
                    "import socket,sys; socket.create_connection((sys.argv[1], 1), timeout=0.3)",
                ]
                refused = namespace.run([*new, namespace.host], stderr=subprocess.PIPE)
                assert b"TimeoutError" in refused.communicate(timeout=10)[1], "a new connection is not refused either"
            assert ping(10) == "+PONG", "what was lost is sent again"
        finally:
            pinger.kill()


def test_what_runs_in_a_namespace_sees_nothing_but_its_link(namespace: Namespace) -> None:
    with namespace.run(["ip", "-brief", "link"], stdout=subprocess.PIPE) as listing:
        names = {line.split()[0].partition("@")[0] for line in listing.communicate()[0].decode().splitlines()}
    assert names == {"lo", namespace.guest_end}


def test_a_closed_namespace_leaves_no_link_behind(namespace: Namespace) -> None:
    with Namespace("short") as other:
        ends = [Path(f"/sys/class/net/{each.host_end}") for each in (other, namespace)]
        assert [end.exists() for end in ends] == [True, True]
    assert [end.exists() for end in ends] == [False, True]


# -- a lossy line --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that keeps its data through every fault."""
    with Server(appendonly=True, appendfsync="always") as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as proxy:
        yield proxy


def test_each_kind_of_loss_is_met_as_often_as_it_is_likely(server: Server) -> None:
    kinds = ("delay", "drop_request", "drop_reply", "cut_request", "cut_reply", "half_close")
    rates = Rates(**dict.fromkeys(kinds, 0.1), seconds=0.001)
    tries = 300
    with LossyProxy(server.address, rates, seed=1) as lossy:
        server.command("SET", "count", 0)
        answers = 0
        for _ in range(tries):
            with socket.create_connection(("127.0.0.1", lossy.port or 0), timeout=5) as wire:
                wire.sendall(b"INCR count\r\n")
                answers += wire.makefile("rb").readline().endswith(b"\n")
        counts = dict(lossy.counts)
    assert sum(counts.values()) == tries
    for kind in kinds:
        assert 10 <= counts[kind] <= 60, counts
    assert answers == counts["forward"] + counts["delay"]
    done = tries - counts["drop_request"] - counts["cut_request"]
    assert int(server.command("GET", "count")) == done, "on which side of the server's work it happened"


def test_a_line_is_lossy_only_for_a_while(proxy: FaultProxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port or 0), timeout=5) as wire:
        lossy = Lossy(proxy, Rates(half_close=1.0), seed=1)
        with lossy:
            wire.sendall(b"SET half 1\r\n")
            assert wire.recv(100) == b"", "the reading half is closed"
            wire.sendall(b"SET half 2\r\n")  # and the writing half is not
            wait_until(lambda: proxy.requests == 2, "the second request to be forwarded")
    with socket.create_connection(("127.0.0.1", proxy.port or 0), timeout=5) as wire:
        wire.sendall(b"GET half\r\n")
        assert wire.recv(100) == b"$1\r\n2\r\n"
    assert lossy.end()["met"]["half_close"] == 2


def test_all_connections_are_cut_at_once_and_new_ones_pass(proxy: FaultProxy) -> None:
    address = ("127.0.0.1", proxy.port or 0)
    with socket.create_connection(address, timeout=5) as first, socket.create_connection(address, timeout=5) as second:
        for wire in (first, second):
            wire.sendall(b"PING\r\n")
            assert wire.recv(100) == b"+PONG\r\n"
        with Disconnect(proxy):
            assert (first.recv(100), second.recv(100)) == (b"", b"")
            with socket.create_connection(address, timeout=5) as third:
                third.sendall(b"PING\r\n")
                assert third.recv(100) == b"+PONG\r\n"


def test_a_line_that_is_down_refuses_and_comes_back(proxy: FaultProxy) -> None:
    line = LineDown(proxy)
    with line, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port or 0), timeout=5)
    line.end()  # harmless
    with socket.create_connection(("127.0.0.1", proxy.port or 0), timeout=5) as wire:
        wire.sendall(b"PING\r\n")
        assert wire.recv(100) == b"+PONG\r\n"


# -- disk ----------------------------------------------------------------------------------------------


@needs(StalledFsync)
def test_a_stalled_fsync_holds_up_every_write(server: Server) -> None:
    with StalledFsync(server, STALL):
        assert set_once(server) >= STALL
    assert writes_quickly(server)


@needs(StalledFsync)
def test_a_stalled_fsync_holds_up_nobody_who_reads(server: Server) -> None:
    with StalledFsync(server, 5 * LIMIT_S):  # an answer that waited for an fsync would not come within this test
        assert server.command("PING") == b"PONG"


@needs(SlowDisk)
def test_a_slow_disk_makes_every_write_slower(server: Server) -> None:
    with SlowDisk(server, milliseconds=60):
        assert set_once(server) >= 0.12, "once for the write and once for the fsync"
    assert writes_quickly(server, 0.12)


def test_a_server_whose_threads_end_while_they_are_looked_at_is_no_trouble() -> None:
    """A failing write can end a server before all of its threads have been inspected."""
    code = "import threading\nprint(flush=True)\nwhile True: threading.Thread(target=int).start()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for _ in range(300):
                assert set(tracers(process.pid)) == {0}
        finally:
            process.kill()
    assert tracers(process.pid) == []


def test_a_server_that_ends_while_it_is_asked_how_it_is_is_started_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that exits after a failed write may be alive when the fault ends, and dead when it should answer."""
    ask, dying = server.info, server.pid

    def ask_as_it_ends(section: str) -> dict[str, str]:
        if server.alive and server.pid == dying:
            os.kill(dying, signal.SIGKILL)
        return ask(section)

    monkeypatch.setattr(server, "info", ask_as_it_ends)
    assert bring_back(server) == {"started": server.pid, "had_ended_with": -signal.SIGKILL}
    assert server.pid != dying
    assert server.command("PING") == b"PONG"


@needs(FailingFsync, FailingWrite)
@pytest.mark.parametrize("fault", [FailingFsync, FailingWrite])
def test_under_always_a_server_whose_disk_fails_ends_and_is_started_again(
    server: Server, fault: type[FailingFsync]
) -> None:
    server.command("SET", "kept", "yes")
    with fault(server):
        with pytest.raises(redis.ConnectionError):
            server.command("SET", "lost", "1")
        wait_until(lambda: not server.alive, "the server to end")
    assert server.command("GET", "kept") == b"yes"
    set_once(server)


@needs(FailingFsync, FailingWrite)
@pytest.mark.parametrize("fault", [FailingFsync, FailingWrite])
def test_under_everysec_a_server_whose_disk_fails_refuses_writes_until_it_is_mended(fault: type[FailingFsync]) -> None:
    with Server(appendonly=True) as server:
        with fault(server):

            def refused() -> bool:
                try:
                    set_once(server)
                except redis.ResponseError as error:
                    return "MISCONF" in str(error)
                return False

            wait_until(refused, "writes to be refused")
        set_once(server)


@needs(FullDisk)
def test_a_full_disk_ends_the_server_and_room_brings_it_back() -> None:
    with SmallDisk(2) as disk, Server(appendonly=True, appendfsync="always", config={"dir": str(disk.path)}) as server:
        server.command("SET", "kept", "yes")
        with FullDisk(server, disk):
            with pytest.raises(redis.ConnectionError):
                set_once(server, bytes(10_000))
            wait_until(lambda: not server.alive, "the server to end")
        assert server.command("GET", "kept") == b"yes"
        set_once(server, bytes(10_000))
        folder = disk.path
    assert not folder.exists()


# -- server --------------------------------------------------------------------------------------------


def test_a_killed_server_is_back_with_its_data(server: Server) -> None:
    server.command("SET", "kept", "yes")
    before = server.pid
    kill = KillServer(server)
    assert kill.begin() == {"pids": [before]}
    assert not server.alive
    assert kill.end()["pid"] == server.pid != before
    assert server.command("GET", "kept") == b"yes"


@pytest.mark.parametrize("fault", [FreezeServer, StallServer])
def test_a_server_that_stands_still_does_what_was_sent_when_it_goes_on(server: Server, fault: Any) -> None:
    server.command("SET", "count", 0)
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(server.socket_path))
        with fault(server):
            wire.sendall(b"INCR count\r\n")
            wire.settimeout(0.2)
            with pytest.raises(TimeoutError):
                wire.recv(100)
        wire.settimeout(5)
        assert wire.recv(100) == b":1\r\n"


def test_scripts_are_forgotten_again_and_again(server: Server) -> None:
    with FlushScripts(server, every=0.01) as flushing:
        sha = server.command("SCRIPT", "LOAD", "return 1")
        wait_until(lambda: server.command("SCRIPT", "EXISTS", sha) == [0], "the script to be forgotten")
        so_far = flushing.times
        wait_until(lambda: flushing.times > so_far + 2, "more flushes")
    sha = server.command("SCRIPT", "LOAD", "return 1")
    assert server.command("EVALSHA", sha, 0) == 1


def test_the_log_is_written_anew_again_and_again(server: Server) -> None:
    def rewrites() -> int:
        return int(server.info("stats")["total_forks"])

    before = rewrites()
    with RewriteLog(server, every=0.02):
        wait_until(lambda: rewrites() >= before + 2, "two rewrites")
    wait_until(lambda: server.info("persistence")["aof_rewrite_in_progress"] == "0", "the last rewrite to end")
    assert server.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def test_every_connection_is_closed_by_the_server(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(server.socket_path))
        wire.settimeout(5)
        wire.sendall(b"PING\r\n")
        assert wire.recv(100) == b"+PONG\r\n"
        with KillClients(server, every=0.05):
            assert wire.recv(100) == b""
    assert server.command("PING") == b"PONG"


def test_a_full_memory_refuses_what_needs_room_until_there_is_some(server: Server) -> None:
    with FullMemory(server):
        with pytest.raises(redis.OutOfMemoryError):
            set_once(server)
        server.command("DEL", "key")
    set_once(server)
    assert server.command("CONFIG", "GET", "maxmemory")[1] == b"0"


def test_a_restored_backup_brings_the_old_value_back(server: Server) -> None:
    with Backup(server) as backup:
        with pytest.raises(RuntimeError, match="no backup yet"):
            RestoreBackup(backup).begin()
        server.command("SET", "state", "old")
        backup.take()
        server.command("SET", "state", "new")
        server.command("BGREWRITEAOF")
        with RestoreBackup(backup):
            assert server.command("GET", "state") == b"old"
        server.command("SET", "state", "newer")
        server.kill()
        server.start()
        assert server.command("GET", "state") == b"newer", "the restored log is written on"
        percentage = server.command("CONFIG", "GET", "auto-aof-rewrite-percentage")[1]
        assert percentage == b"100"


def test_nothing_is_left_after_a_flush(server: Server) -> None:
    server.command("SET", "some", "thing")
    with FlushAll(server):
        assert server.command("DBSIZE") == 0


# -- clock ---------------------------------------------------------------------------------------------


@needs(JumpClock)
@pytest.mark.parametrize("seconds", [HOUR, -HOUR, DAY, -DAY])
def test_a_clock_jumps_and_is_put_right(clocked: tuple[ServerClock, Server], seconds: float) -> None:
    clock, server = clocked

    def off() -> float:
        return int(server.command("TIME")[0]) - time.time()

    with JumpClock(clock, seconds):
        assert abs(off() - seconds) < LIMIT_S
    assert abs(off()) < LIMIT_S


@pytest.fixture(scope="module")
def clocked() -> Iterator[tuple[ServerClock, Server]]:
    with ServerClock() as clock, Server(env=clock.environment()) as server:
        yield clock, server


# -- the mix -------------------------------------------------------------------------------------------


def test_every_fault_says_what_it_does_and_whether_it_can() -> None:
    for kind in KINDS.values():
        assert kind.fault.name
        assert kind.fault.summary.endswith(".")
        assert kind.fault.summary.count(".") == 1, "in one sentence"
        assert kind.fault.available() is None or kind.fault.available()


def test_equal_seeds_give_equal_plans_and_others_do_not() -> None:
    assert plan(7, 300, KINDS, lease=2) == plan(7, 300, reversed(list(KINDS)), lease=2)
    assert plan(7, 300, KINDS, lease=2) != plan(8, 300, KINDS, lease=2)
    assert eval(repr(plan(7, 300, KINDS)), {"Step": Step}) == plan(7, 300, KINDS), "what is printed is all of it"  # noqa: S307


def test_a_quarter_of_the_time_is_calm_and_packages_are_small() -> None:
    for seed in range(5):
        # Of these each goes on for as long as its package does.
        steps = plan(seed, 3600, ["flush scripts", "kill clients", "rewrite log", "lossy line"])
        packages: dict[tuple[float, float], int] = Counter((step.at, step.duration) for step in steps)
        assert set(packages.values()) == {1, 2, 3}
        *whole, last = sorted(packages)
        assert all(10 <= length <= 30 for _, length in whole)
        for (at, length), (following, _) in pairwise([*whole, last]):
            assert following - (at + length) == pytest.approx(length / 3, abs=0.01)
        assert sum(last) <= 3600


def test_what_cannot_go_together_is_kept_apart() -> None:
    for seed in range(20):
        steps = [step for step in plan(seed, 3600, KINDS, lease=2) if KINDS[step.fault].alone]
        assert len({step.fault for step in steps}) > 5
        for step, following in pairwise(steps):
            if step.fault != following.fault:
                assert following.at - (step.at + step.duration) > 3, "the calm between two packages"


def test_what_cannot_be_hit_is_not_planned(server: Server) -> None:
    can, cannot = possible(Targets(server=server))
    assert {"kill server", "flush scripts"} <= set(can)
    assert cannot["kill worker"] == "no workers in this run"
    assert cannot["flush all"] == "loses data"
    assert set(can) | set(cannot) == set(KINDS)
    assert "flush all" in possible(Targets(server=server), losing=True)[0]


class Log:
    """The events of a nemesis."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, Detail]] = []

    def __call__(self, what: str, name: str, detail: Detail) -> None:
        self.lines.append((what, name, detail))

    def of(self, what: str) -> list[str]:
        return [name for said, name, _ in self.lines if said == what]


def test_a_plan_is_carried_out_and_told(server: Server) -> None:
    log = Log()
    steps = [
        Step(0.0, "flush scripts", {"every": 0.01, "who": 0}, 0.4),
        Step(0.1, "kill server", {"who": 0}, 0.1),
        Step(0.3, "full memory", {"who": 0}, 0.1),
    ]
    before = server.pid
    began = time.monotonic()
    with Nemesis(steps, Targets(server=server), log) as nemesis:
        assert nemesis.wait(LIMIT_S)
    assert not nemesis.errors
    assert log.of("fault_begin") == ["flush scripts", "kill server", "full memory"]
    assert sorted(log.of("fault_end")) == sorted(log.of("fault_begin"))
    assert nemesis.begun == {"flush scripts": 1, "kill server": 1, "full memory": 1}
    (killed,) = [detail for what, name, detail in log.lines if (what, name) == ("fault_begin", "kill server")]
    assert killed["pids"] == [before]
    assert began + 0.1 <= killed["at"] <= killed["done"]
    set_once(server)


def test_a_nemesis_that_is_stopped_in_the_middle_ends_every_fault(server: Server) -> None:
    log = Log()
    steps = [
        Step(0.0, "full memory", {"who": 0}, 60.0),
        Step(0.0, "freeze server", {"who": 0}, 60.0),
        Step(50.0, "kill server", {"who": 0}, 1.0),
    ]
    nemesis = Nemesis(steps, Targets(server=server), log)
    with nemesis:
        wait_until(lambda: len(log.of("fault_begin")) == 2, "both faults")
        with pytest.raises(redis.TimeoutError):
            server.command("PING", timeout=0.2)
    assert log.of("fault_end") == ["freeze server", "full memory"]
    set_once(server)


def test_a_fault_that_fails_does_not_keep_others_from_being_healed(server: Server) -> None:
    def out_of_reach() -> list[Victim]:
        raise LookupError("no list of workers")

    log = Log()
    steps = [
        Step(0.0, "freeze server", {"who": 0}, 60.0),
        Step(0.0, "kill runner", {"who": 0}, 0.1),
        Step(0.1, "restore backup", {"who": 0}, 0.0),
    ]
    with Backup(server) as backup:
        with Nemesis(steps, Targets(server=server, workers=out_of_reach, backup=backup), log) as nemesis:
            wait_until(lambda: len(nemesis.errors) == 2, "both errors")
        assert log.of("fault_error") == ["kill runner", "restore backup"]
    assert "freeze server" in log.of("fault_end")
    set_once(server)


def test_a_worker_is_hit_by_the_plan(shop: Workshop, worker: Worker) -> None:
    log = Log()
    before: Anatomy = anatomy(worker)
    steps = [Step(0.0, "kill runner", {"who": 5}, 0.0)]
    with Nemesis(steps, Targets(server=shop.server, workers=lambda: [worker]), log) as nemesis:
        assert nemesis.wait(LIMIT_S)
    ((_, _, detail),) = [line for line in log.lines if line[0] == "fault_begin"]
    assert detail["pids"] == [before.runner]
    run_one(shop)
    assert anatomy(worker).runner not in (None, before.runner)
