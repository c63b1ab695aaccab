"""Prefetched jobs: each runs once, and when a child dies, it is known which job it had started."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from tests.support.conditions import until
from tests.support.internals import end_stream, only_child_of, prefetched_plans, replace_prefetch, set_typical_duration
from tests.support.workers import Workshop
from windlass import Windlass
from windlass.tasks.envelope import write_envelope
from windlass.values.job import Lease
from windlass.values.outcome import Completed, Crashed, Outcome, Released, Retried
from windlass.worker import attempt
from windlass.worker.attempt import Plan
from windlass.worker.executors import child, processes
from windlass.worker.executors.base import Attempt, Stop, key_of
from windlass.worker.executors.processes import MAX_PREFETCHED, Gone, NewChild, ProcessExecutor
from windlass.worker.ipc import prefetch
from windlass.worker.ipc.prefetch import MAX_JOB_BYTES, Prefetch
from windlass.worker.ipc.slot_table import SlotTable

PATIENCE = 10.0

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has the prefetch")


# -- the prefetch itself -------------------------------------------------------------------------------------


def test_a_job_that_was_taken_back_is_gone_from_the_prefetch() -> None:
    inlet, outlet = prefetch.new_pair()
    with prefetch.open_outlet(outlet.dup().detach()) as childs:
        mine = Prefetch(inlet, outlet)
        assert all(mine.put(number, job) for number, job in enumerate((b"one", b"", b"three"), 1))
        assert (prefetch.take(childs), prefetch.take(childs)) == (b"one", b"")
        assert mine.withdraw() == {3}
        assert mine.withdraw() == set()
        assert mine.put(4, b"four")
        assert prefetch.take(childs) == b"four"
        mine.close()
        assert prefetch.take(childs) is None, "nothing more will come"


@pytest.mark.parametrize("seconds", [None, 0.05, 5.0, 0.0])
def test_setdefaulttimeout_does_not_change_the_prefetch(seconds: float | None) -> None:
    inlet, outlet = prefetch.new_pair()
    socket.setdefaulttimeout(seconds)
    try:
        mine = Prefetch.from_fds([inlet.detach(), outlet.dup().detach()])
        childs = prefetch.open_outlet(outlet.detach())
    finally:
        socket.setdefaulttimeout(None)
    assert mine is not None
    taken: list[bytes | None] = []
    thread = threading.Thread(target=lambda: taken.append(prefetch.take(childs)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive(), "it waits for as long as it takes"
    assert mine.put(1, b"job")
    thread.join(PATIENCE)
    assert taken == [b"job"]
    assert mine.withdraw() == set()  # and the loop does not wait for ever
    mine.close()
    childs.close()


def test_a_full_prefetch_refuses_jobs_and_keeps_its_own() -> None:
    inlet, outlet = prefetch.new_pair()
    mine = Prefetch(inlet, outlet)
    job = b"x" * MAX_JOB_BYTES
    count = 0
    while mine.put(count, job):
        count += 1
    assert count > 0
    with outlet.dup() as childs:
        assert prefetch.take(childs) == job
    assert mine.withdraw() == set(range(1, count))
    mine.close()


def test_each_job_is_taken_by_the_child_or_the_runner() -> None:
    inlet, outlet = prefetch.new_pair()
    childs, mine = prefetch.open_outlet(outlet.dup().detach()), Prefetch(inlet, outlet)
    taken: list[int] = []

    def take_all() -> None:
        while (job := prefetch.take(childs)) is not None:
            taken.append(int(job))

    thread = threading.Thread(target=take_all)
    thread.start()
    back: list[int] = []
    put: list[int] = []
    for number in range(20_000):
        if mine.put(number, str(number).encode()):
            put.append(number)
        if number % 7 == 0:
            back += mine.withdraw()
    back += mine.withdraw()
    mine.close()
    thread.join(PATIENCE)
    childs.close()
    assert sorted(taken + back) == put
    assert taken == sorted(taken)
    assert taken, "both had some"
    assert back


# -- the executor, with children that are threads --------------------------------------------------------


class Died(BaseException):
    """Raised by a job to make its child die."""


class Bench:
    """An executor whose children are threads. `deeds` says what they do for each job, by default nothing."""

    def __init__(self, slots: int, max_jobs: int | None = None) -> None:
        self.app = Windlass("unix:///nowhere")
        self.app.task(queue="q", run="process", max_stalls=0)(_short)
        self.slot_table = table = SlotTable.create(slots)
        self.executor = ProcessExecutor(range(slots), table, self, self._finished, source=self, max_jobs=max_jobs)
        set_typical_duration(self.executor, 0.0)  # jobs are known to be short
        self.deeds: dict[str, Any] = {}
        self.performed: list[tuple[int, str]] = []
        self.outcomes: dict[str, Outcome | None] = {}
        self.killed: list[tuple[int, str]] = []
        self.may_serve = threading.Event()
        self.may_serve.set()
        self.ended = asyncio.Event()  # the endings of children are known
        self.ended.set()
        self.prefetch: type[Prefetch] | None = Prefetch
        self._threads: list[threading.Thread] = []
        self._pids = 100

    def _finished(self, one: Attempt, outcome: Outcome | None) -> None:
        self.outcomes[one.plan.lease.id] = outcome

    def progress(self, lease: Lease, value: float) -> None: ...

    def submit(self, *ids: str, data: str = "") -> None:
        for id in ids:
            payload = write_envelope("_short", msgspec.json.encode([data]))
            plan = attempt.plan(self.app, Lease("q", id, payload, fence=int(id) + 1))
            assert isinstance(plan, Plan)
            self.executor.submit(plan)

    async def child(self, slot: int) -> NewChild:
        ours, theirs = socket.socketpair()
        inlet, outlet = prefetch.new_pair()
        self._pids += 1
        childs = prefetch.open_outlet(outlet.dup().detach())
        thread = threading.Thread(target=self._serve, args=(self._pids, theirs, childs))
        self._threads.append(thread)
        thread.start()
        return NewChild(self._pids, ours, self.prefetch(inlet, outlet) if self.prefetch else None)

    def _serve(self, pid: int, sock: socket.socket, jobs: socket.socket) -> None:
        def run_job(app: object, header: Any, body: bytes, link: Any) -> Any:
            id = msgspec.msgpack.decode(body)["id"]
            self.performed.append((pid, id))
            try:
                said = self.deeds.get(id, bool)()
            except Died:
                sock.close()
                said = None
            return said or {"end": "done"}, b""

        with sock, jobs:
            self.may_serve.wait(PATIENCE)
            child.serve(sock, self.app, run_job, prefetch=jobs if self.prefetch else None)

    async def ending(self, pid: int) -> Gone:
        await self.ended.wait()
        return Gone(code=9)

    def forget(self, pid: int) -> None: ...

    def kill(self, slot: int, why: str) -> None:
        self.killed.append((slot, why))

    def ready(self) -> list[str]:
        return [plan.lease.id for plan in prefetched_plans(self.executor)]

    def runs(self) -> Counter[str]:
        return Counter(id for _, id in self.performed)

    async def all_ended(self, *ids: str) -> None:
        await until(lambda: set(ids) <= set(self.outcomes), PATIENCE)

    def close(self) -> None:
        self.may_serve.set()
        for deed in self.deeds.values():
            if isinstance(deed, Held):
                deed.go_on.set()
        self.executor.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def _short(data: str) -> None: ...


@pytest.fixture
async def benches() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(slots: int, **options: Any) -> Bench:
        made.append(Bench(slots, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


class Held:
    """A job that waits in its child until the test lets it go on."""

    def __init__(self, answer: dict[str, str] | None = None) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.answer = answer

    def __call__(self) -> dict[str, str] | None:
        self.begun.set()
        self.go_on.wait(3 * PATIENCE)
        return self.answer


def ids(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


async def test_short_jobs_are_prefetched_and_run_once_in_order(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    first = bench.deeds["0"] = Held()
    every = ids(*range(100))
    bench.submit(*every)
    await until(first.begun.is_set)
    assert bench.ready() == ids(*range(1, MAX_PREFETCHED + 1))
    assert bench.executor.waiting == 99
    first.go_on.set()
    await bench.all_ended(*every)
    assert [id for _, id in bench.performed] == every
    assert all(isinstance(bench.outcomes[id], Completed) for id in every)
    assert bench.executor.idle


async def test_long_jobs_are_not_prefetched(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    set_typical_duration(bench.executor, 0.1)
    first = bench.deeds["0"] = Held()
    bench.submit(*ids(0, 1, 2))
    await until(first.begun.is_set)
    assert bench.ready() == []
    first.go_on.set()
    await bench.all_ended(*ids(0, 1, 2))


async def test_jobs_prefetched_behind_a_long_job_go_to_another_child(
    benches: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches(2)
    first = bench.deeds["0"] = Held()
    every = ids(*range(40))
    bench.submit(*every)
    await until(first.begun.is_set)
    await until(lambda: len(bench.outcomes) + len(bench.ready()) >= 39)
    monkeypatch.setattr(processes, "WITHDRAW_AFTER_S", 0.0)  # now it is
    assert "0" not in bench.outcomes
    assert bench.executor.withdraw_stuck() == []
    await bench.all_ended(*every[1:])
    first.go_on.set()
    await bench.all_ended("0")
    assert set(bench.runs().values()) == {1}


async def test_a_cancelled_prefetched_job_never_starts(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    first = bench.deeds["0"] = Held()
    bench.submit(*ids(0, 1, 2, 3))
    await until(first.begun.is_set)
    assert "2" in bench.ready()
    given_up = bench.executor.withdraw("q", "2")
    assert given_up is not None
    assert bench.executor.running_keys("q", "2") == []
    first.go_on.set()
    await bench.all_ended(*ids(0, 1, 3))
    assert bench.runs() == Counter(ids(0, 1, 3))


async def test_a_job_that_the_child_took_unnoticed_is_stopped(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    first, second = bench.deeds["0"], bench.deeds["1"] = Held(), Held()
    bench.submit(*ids(0, 1, 2))
    await until(first.begun.is_set)
    first.go_on.set()
    assert second.begun.wait(PATIENCE), "while this loop stands still"
    assert bench.executor.withdraw("q", "1") is None
    (key,) = bench.executor.running_keys("q", "1")
    assert key == ("q", 2)
    assert bench.executor.stop(key, Stop.CANCELLED)
    assert not bench.executor.stop(("q", 99), Stop.CANCELLED)
    await until(lambda: bench.killed)
    assert bench.killed == [(0, "cancelled")]
    assert bench.executor.running[key].stop is Stop.CANCELLED
    second.go_on.set()
    await bench.all_ended(*ids(0, 1, 2))
    assert set(bench.runs().values()) == {1}


async def test_when_a_child_dies_only_its_started_job_is_charged(benches: Callable[..., Bench]) -> None:
    bench = benches(1)

    def die() -> None:
        raise Died

    first = bench.deeds["0"] = Held()
    bench.deeds["1"] = die
    every = ids(*range(30))
    bench.submit(*every)
    await until(first.begun.is_set)
    assert bench.ready()[0] == "1"
    first.go_on.set()
    await bench.all_ended(*every)
    assert isinstance(bench.outcomes["1"], Crashed)
    assert all(isinstance(bench.outcomes[id], Completed) for id in every if id != "1")
    assert set(bench.runs().values()) == {1}
    assert len({pid for pid, _ in bench.performed}) == 2


async def test_a_child_that_dies_before_taking_a_job_charges_none(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    bench.submit("0")
    await bench.all_ended("0")
    its = only_child_of(bench.executor)
    bench.performed.clear()
    # The child takes no job from now on, as if it had just been killed.
    other_inlet, other_outlet = prefetch.new_pair()
    prefetch_of_its = replace_prefetch(its, Prefetch(other_inlet, other_outlet))
    bench.submit(*ids(1, 2, 3))
    await until(lambda: bench.ready() == ids(2, 3))
    end_stream(its)
    await bench.all_ended(*ids(1, 2, 3))
    assert isinstance(bench.outcomes["1"], Released)
    assert bench.runs() == Counter(ids(2, 3))
    prefetch_of_its.close()


async def test_a_child_that_dies_before_its_first_answer_charges_the_job(benches: Callable[..., Bench]) -> None:
    """Otherwise a job that kills every child would come back without end."""
    bench = benches(1)
    bench.may_serve.clear()
    bench.submit(*ids(0, 1, 2))
    await until(lambda: bench.ready() == ids(1, 2))
    its = only_child_of(bench.executor)
    end_stream(its)
    await bench.all_ended("0")
    assert isinstance(bench.outcomes["0"], Crashed)
    bench.may_serve.set()
    await bench.all_ended(*ids(1, 2))
    assert bench.runs() == Counter(ids(1, 2))


async def test_other_jobs_do_not_wait_for_the_ending_of_a_child(benches: Callable[..., Bench]) -> None:
    bench = benches(2)
    bench.ended.clear()

    def die() -> None:
        raise Died

    bench.deeds["0"] = die
    every = ids(*range(20))
    bench.submit(*every)
    await bench.all_ended(*every[1:])
    assert "0" not in bench.outcomes
    bench.ended.set()
    await bench.all_ended("0")
    assert isinstance(bench.outcomes["0"], Crashed)
    assert set(bench.runs().values()) == {1}


async def test_withdrawn_jobs_never_started_and_running_ones_go_on(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    second = bench.deeds["1"] = Held()
    bench.submit(*ids(0, 1, 2, 3))
    await until(second.begun.is_set)
    assert [plan.lease.id for plan in bench.executor.withdraw_standby()] == ids(2, 3)
    second.go_on.set()
    await bench.all_ended(*ids(0, 1))
    assert bench.runs() == Counter(ids(0, 1))
    assert bench.executor.idle


async def test_a_stopped_child_keeps_only_one_job(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    bench.may_serve.clear()
    bench.submit(*ids(0, 1, 2, 3))
    await until(lambda: bench.ready() == ids(1, 2, 3))
    assert [plan.lease.id for plan in bench.executor.withdraw_standby()] == ids(1, 2, 3)
    assert bench.executor.waiting == 0
    bench.may_serve.set()
    await bench.all_ended("0")
    assert bench.runs() == Counter(["0"]), "it was taken back with the others, and sent again"
    assert bench.executor.idle


async def test_a_child_may_take_a_job_while_others_are_taken_back(
    benches: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = benches(1)
    raised = {"end": "raised", "type": "Oops", "message": "it is mine", "traceback": 'File "deep"'}
    second = bench.deeds["1"] = Held(raised)

    class Interrupted(Prefetch):
        def __init__(self, inlet: socket.socket, outlet: socket.socket) -> None:
            super().__init__(inlet, outlet)
            self.outlet = outlet

        def withdraw(self) -> set[int]:
            (first,) = (int.from_bytes(self.outlet.recv(4), "big"),)
            bench.may_serve.set()
            assert second.begun.wait(PATIENCE)
            return {first} | super().withdraw()

    bench.prefetch = Interrupted
    bench.may_serve.clear()
    bench.submit(*ids(0, 1, 2, 3))
    await until(lambda: bench.ready() == ids(1, 2, 3))
    assert [plan.lease.id for plan in bench.executor.withdraw_standby()] == ids(2, 3)
    bench.prefetch = Prefetch
    assert bench.executor.running_keys("q", "1") == [("q", 2)]
    second.go_on.set()
    await bench.all_ended(*ids(0, 1))
    assert [id for _, id in bench.performed] == ids(1, 0), "that one had no chance to be the first"
    assert isinstance(bench.outcomes["0"], Completed)
    assert isinstance(bench.outcomes["1"], Retried)
    assert "it is mine" in bench.outcomes["1"].message
    assert 'File "deep"' in caplog.text, "the traceback of a bug in the child"
    assert bench.executor.idle


async def test_without_a_prefetch_each_job_is_sent_to_an_idle_child(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    bench.prefetch = None
    first = bench.deeds["0"] = Held()
    every = ids(*range(10))
    bench.submit(*every)
    await until(first.begun.is_set)
    assert bench.ready() == []
    assert [plan.lease.id for plan in bench.executor.withdraw_standby()] == every[1:]
    bench.submit(*every[1:])
    first.go_on.set()
    await bench.all_ended(*every)
    assert [id for _, id in bench.performed] == every


async def test_jobs_are_taken_back_repeatedly_while_others_run(benches: Callable[..., Bench]) -> None:
    bench = benches(3)
    every = ids(*range(400))
    bench.submit(*every)
    while not bench.executor.idle:
        for plan in bench.executor.withdraw_standby():
            bench.executor.submit(plan)
        await asyncio.sleep(0)
    assert bench.runs() == Counter(every)
    assert all(isinstance(bench.outcomes[id], Completed) for id in every)


async def test_a_large_job_is_sent_on_the_socket(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    first = bench.deeds["0"] = Held()
    bench.submit("0")
    bench.submit("1", data="x" * 10 * MAX_JOB_BYTES)
    bench.submit("2")
    await until(first.begun.is_set)
    assert bench.ready() == []
    first.go_on.set()
    await bench.all_ended(*ids(0, 1, 2))
    assert [id for _, id in bench.performed] == ids(0, 1, 2)


async def test_a_child_ends_after_max_jobs(benches: Callable[..., Bench]) -> None:
    bench = benches(1, max_jobs=5)
    every = ids(*range(20))
    bench.submit(*every)
    await bench.all_ended(*every)
    assert Counter(pid for pid, _ in bench.performed) == {101: 5, 102: 5, 103: 5, 104: 5}
    assert set(bench.runs().values()) == {1}


async def test_a_retiring_child_leaves_its_prefetched_jobs_to_the_next(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    first = bench.deeds["0"] = Held()
    every = ids(*range(10))
    bench.submit(*every)
    await until(first.begun.is_set)
    bench.executor.retire(0)
    assert bench.ready() == []
    first.go_on.set()
    await bench.all_ended(*every)
    by_child: dict[int, list[str]] = defaultdict(list)
    for pid, id in bench.performed:
        by_child[pid].append(id)
    first_child, second_child = by_child.values()
    assert (first_child, second_child) == (["0"], every[1:])


async def test_the_slot_table_shows_what_runs(benches: Callable[..., Bench]) -> None:
    bench = benches(1)
    late = bench.deeds["5"] = Held()
    bench.submit(*ids(*range(10)))
    await until(late.begun.is_set)
    await until(lambda: [entry.fence for entry in bench.slot_table.running()] == [6])
    assert list(bench.executor.running) == [("q", 6)]
    late.go_on.set()
    await bench.all_ended(*ids(*range(10)))
    assert key_of(Lease("q", "5", b"", fence=6)) not in bench.executor.running


# -- with a real worker ------------------------------------------------------------------------------------


def test_only_the_job_that_kills_its_child_is_charged(shop: Workshop) -> None:
    calls = [shop.call("brief", number % 150 == 149, queue="brief") for number in range(600)]
    sent = shop.send_many(calls)
    shop.start("brief", queues={"brief": 1}, processes=2)
    shop.wait_empty("brief")
    ran = shop.journal.all("ran")
    assert Counter(entry.id for entry in ran) == Counter(sent)
    assert {entry.attempt for entry in ran} == {1}
    dead = shop.queue("brief").jobs("dead").jobs
    assert {record.id for record in dead} == set(sent[149::150])
    assert all("exit code 3" in (record.message or "") for record in dead)
    assert len({entry.pid for entry in ran}) <= 2 + len(dead)
