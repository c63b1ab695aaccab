"""Partial faults: one of two queues, parcels or workers fails, and the other is not affected."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.faces import FACES, Blocking
from tests.support.proxy import DROP_REPLY, HANG, FaultProxy, always
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import JOURNAL, Entry, Journal, Worker, Workshop, pass_time
from windlass import Windlass
from windlass.errors import OutcomeUnknown, ServerUnreachable
from windlass.storage.native import scripts
from windlass.storage.native.keys import queue_key
from windlass.tasks.envelope import write_envelope
from windlass.values.job import Status
from windlass.values.schedule import ScheduleRecord
from windlass.worker.settings import Settings


def calls_on(queue: str, *only: Any) -> Callable[[list[bytes]], bool]:
    """Match script calls on one queue, optionally only of some scripts."""
    shas = {script.sha.encode() for script in only}
    key = queue_key(queue, "state").encode()
    return lambda request: request[0] == b"EVALSHA" and request[3] == key and (not shas or request[1] in shas)


@pytest.fixture
def proxied(server: Server, tmp_path: Path) -> Iterator[tuple[FaultProxy, Workshop]]:
    """Workers connect through a proxy, the test directly."""
    with FaultProxy(server.address) as proxy, Workshop(server, tmp_path, url=proxy.url) as shop:
        yield proxy, shop
        proxy.faults = None


# -- one queue is out of reach -------------------------------------------------------------------


def test_a_waiting_job_does_not_start_after_its_lease_is_lost(
    proxied: tuple[FaultProxy, Workshop], tmp_path: Path
) -> None:
    proxy, shop = proxied
    gate, open_gate = tmp_path / "gate", tmp_path / "open"
    open_gate.touch()
    shop.start("waiting", queues={"first": 1, "second": 1}, lease=1.5, concurrency=1)
    # Jobs so short that some are leased ahead, and then one that keeps the only slot.
    shop.send_many(shop.call("wait_for", str(open_gate), queue="first") for _ in range(150))
    shop.journal.wait(150, "end")
    calls = [shop.call("wait_for", str(gate if n == 0 else open_gate), queue="first") for n in range(6)]
    blocker, *behind = shop.send_many(calls)
    shop.journal.wait(1, "start", id=blocker)
    wait_until(lambda: shop.queue("first").counts().running > 1, "some to be fetched ahead")
    proxy.faults = always(HANG, only=calls_on("first"))
    shop.journal.wait(1, "stopped", id=blocker)
    other = shop.send("wait_for", str(open_gate), queue="second")
    shop.journal.wait(1, "end", id=other)
    assert not set(behind) & set(shop.journal.ids("start")), "begun without a lease"
    gate.touch()
    proxy.faults = None
    shop.wait_empty("first", "second")
    ends = Counter(shop.journal.ids("end"))
    assert {ends[id] for id in (blocker, *behind, other)} == {1}
    starts = Counter(shop.journal.ids("start"))
    assert {starts[id] for id in (*behind, other)} == {1}


def test_a_lease_with_a_lost_reply_is_returned_by_its_living_worker(
    proxied: tuple[FaultProxy, Workshop],
) -> None:
    """Its holder goes on beating, so no sweep would ever take the job back."""
    proxy, shop = proxied
    worker = shop.start("faults", queues={"loops": 1, "threads": 1}, lease=2.0)
    wait_until(lambda: shop.server.command("ZCARD", queue_key("loops", "idle")), "it to be idle")
    proxy.faults = always(DROP_REPLY, only=calls_on("loops", scripts.TURN))
    lost = shop.send("loop_wait", 0.0, queue="loops")
    shop.wait_state("loops", lost, "running")
    wait_until(lambda: worker.log.count("its reply was lost") >= 2, "the worker to give up on it")
    quick = shop.send("thread_wait", 0.0, queue="threads")
    shop.journal.wait(1, "end", id=quick)
    assert not shop.journal.all("start", id=lost)
    proxy.faults = None
    shop.journal.wait(1, "end", id=lost)
    shop.wait_empty("loops", "threads")
    assert Counter(shop.journal.ids("start")) == Counter([lost, quick])
    assert {entry.attempt for entry in shop.journal.all("start")} == {1}
    assert "Runner " not in worker.log


@pytest.mark.usefixtures("client")
def test_a_queue_in_doubt_does_not_hold_up_the_others(server: Server) -> None:
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=0.2, call_timeout=0.5) as app:
        doubtful, sound = app.queue("doubtful"), app.queue("sound")
        assert not doubtful.beat("w", 60, register=True)
        doubtful.enqueue(b"x", id="first")
        doubtful.enqueue(b"x", id="second")
        proxy.faults = always(DROP_REPLY, only=calls_on("doubtful"))
        with pytest.raises(OutcomeUnknown):
            doubtful.lease(60, holder="w")
        # Other calls neither wait for that reply nor receive it.
        assert sound.enqueue(b"y", id="y").status is Status.ADDED
        lease = sound.lease(60)
        assert lease is not None
        assert (lease.id, lease.data) == ("y", b"y")
        assert sound.complete(lease)
        assert sound.counts().waiting == 0
        proxy.faults = None
        # The next call on this queue returns the job whose lease reply was lost, and it is done once.
        assert doubtful.enqueue(b"x", id="third").status is Status.ADDED
        counts = doubtful.counts()
        assert (counts.ready, counts.running) == (3, 0)
        again = doubtful.lease_many(3, 60, holder="w")
        assert [(each.id, each.failures, each.stalls) for each in again] == [
            ("first", 0, 0), ("second", 0, 0), ("third", 0, 0),
        ]  # fmt: skip
        assert doubtful.complete_many(again) == [True, True, True]
        doubtful.purge()
        sound.purge()


@pytest.mark.parametrize("face", FACES, ids=["blocking", "awaitable"])
@pytest.mark.usefixtures("client")
def test_a_call_behind_one_in_doubt_is_not_sent(server: Server, face: type[Blocking]) -> None:
    with FaultProxy(server.address) as proxy, Windlass(proxy.url, retry_for=0.2, call_timeout=0.5) as app:
        queue: Any = face(app.queue("doubtful"))
        queue.enqueue(b"x", id="job")
        proxy.faults = always(DROP_REPLY, only=calls_on("doubtful"))
        with pytest.raises(OutcomeUnknown):
            queue.lease(60)
        with pytest.raises(ServerUnreachable, match="nothing was sent: the outcome of an earlier call"):
            queue.enqueue(b"x", id="behind")
        proxy.faults = None
        assert queue.get("behind") is None
        assert queue.enqueue(b"x", id="behind").status is Status.ADDED
        assert [lease.id for lease in queue.lease_many(3)] == ["job", "behind"]
        queue.purge()
        queue.close()


# -- one parcel cannot be delivered --------------------------------------------------------------


@pytest.mark.parametrize("count", [5, 150], ids=["a few", "more than one look finds"])
def test_a_damaged_queue_keeps_no_parcel_from_another(shop: Workshop, count: int) -> None:
    worker = shop.start("parcels", queues={"senders": 1, "whole": 1, "damaged": 1})
    with shop.server.client() as client:
        wait_until(lambda: client.zcard(queue_key("damaged", "idle")), "the worker to know the queue")
        client.set(queue_key("damaged", "ready"), "something else")
        parents = [shop.send("parent", {"damaged": count, "whole": 3}, queue="senders") for _ in range(2)]
        arrived = shop.journal.wait(6, "child")
        assert {entry.more["queue"] for entry in arrived} == {"whole"}
        wait_until(lambda: worker.log.count("Cannot forward the outbox") >= 1, "a try")
        assert shop.queue("senders").counts().outbox == 2 * count
        client.delete(queue_key("damaged", "ready"))
    shop.journal.wait(6 + 2 * count, "child")
    shop.wait_empty("senders", "whole", "damaged")
    got = Counter(
        (entry.more["queue"], entry.more["parent"], entry.more["number"]) for entry in shop.journal.all("child")
    )
    sent = {
        (queue, parent, n)
        for queue, most in (("damaged", count), ("whole", 3))
        for parent in parents
        for n in range(most)
    }
    assert got == Counter(sent)
    assert sorted(shop.journal.ids("parent")) == sorted(parents)


# -- a part of the code is gone ------------------------------------------------------------------

CODE = """
from __future__ import annotations
from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()

@app.task(queue="{queue}")
async def say(job: Job = current()) -> None:
    note("said", job, queue=job.queue, version="{queue}")

@app.task(queue="stays")
async def stay(job: Job = current()) -> None:
    note("stayed", job, queue=job.queue, version="{queue}")
"""


def test_new_code_adds_and_removes_queues(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    program = folder / "renamed_app.py"
    program.write_text(CODE.format(queue="old"))
    journal = Journal(tmp_path / "journal")
    settings = Settings(name="watcher", queues={}, watch=True, grace=5.0, lease=2.0)
    environment = {"WINDLASS_URL": server.url, JOURNAL: str(journal.path)}
    with Windlass(server.url) as app:
        worker = Worker("renamed_app:app", settings, environment, tmp_path / "log", folder=folder)
        try:
            for name, task in (("old", "say"), ("stays", "stay")):
                app.queue(name).enqueue(write_envelope(task))
            journal.wait(1, "said")
            journal.wait(1, "stayed")
            # Of another length: Python takes a file of the same second and length for the one that it compiled.
            program.write_text(CODE.format(queue="brand-new"))
            app.queue("brand-new").enqueue(write_envelope("say"))
            assert journal.wait(2, "said")[1].more == {"queue": "brand-new", "version": "brand-new"}
            wait_until(lambda: app.queue("old").counts().holders == 0, "the old runner to be gone")
            left = app.queue("old").enqueue(write_envelope("say")).id
            app.queue("stays").enqueue(write_envelope("stay"))
            assert journal.wait(2, "stayed")[1].more["version"] == "brand-new"
            pass_time(1.2)  # more than MIN_POLL_S
            assert app.queue("old").counts().ready == 1
            assert left not in journal.ids("said")
            assert app.queue("old").counts().holders == 0

            def told() -> bool:
                (record,) = app.workers()
                return set(record.queues) == {"brand-new", "stays"}

            wait_until(told, "the worker's record to change")
            assert "Runner " not in worker.log
            assert worker.stop() == 0
        finally:
            worker.kill_everything()
            print(worker.log)  # shown when the test fails
            for name in ("old", "stays", "brand-new"):
                app.queue(name).purge()


# -- a worker goes while its scheduled job runs --------------------------------------------------


def overlapping(journal: Journal) -> list[tuple[Entry, Entry]]:
    """Return attempts at one schedule's job that began before the previous one had ended."""
    over = {entry.run: entry for what in ("end", "stopped") for entry in journal.all(what)}
    found = []
    for name in ("skipping", "waiting"):
        for first, second in pairwise(journal.all("start", id=name)):
            if first.run not in over or over[first.run].at > second.at:
                found.append((first, second))
    return found


def test_overlap_is_respected_when_the_scheduled_job_changes_workers(shop: Workshop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    names = ("skipping", "waiting")

    def start() -> Worker:
        return shop.start("overlapping", lease=2.0, grace=0.3, environment={"WINDLASS_TEST_GATE": str(gate)})

    def schedule(name: str) -> ScheduleRecord:
        record = shop.app.schedules.get("turns", name)
        assert record is not None
        return record

    def wait_for_ticks() -> None:
        """Until one of each was dropped: behind the job of `waiting` one more waits then."""
        before = [schedule(name).dropped for name in names]
        wait_until(
            lambda: all(schedule(name).dropped > count for name, count in zip(names, before, strict=True)),
            "a tick of each to be dropped",
        )
        assert shop.queue("turns").counts().blocked == 1

    def wait_for_attempt(number: int) -> None:
        for name in names:
            attempts = shop.journal.wait(number, "start", id=name)
            assert len({attempt.fence for attempt in attempts}) == number
            assert attempts[-1].attempt == 1, "given back, not charged"

    first = start()
    wait_for_attempt(1)
    wait_for_ticks()
    second = start()
    assert first.stop() == 0
    wait_for_attempt(2)
    wait_for_ticks()
    third = start()
    second.signal(signal.SIGKILL)
    second.wait_gone()
    wait_for_attempt(3)
    wait_for_ticks()
    assert len(shop.journal.all("start")) == 3 * len(names), "ticks began nothing beside what runs"
    gate.touch()
    for name in names:
        shop.journal.wait(2, "end", id=name)
    assert all(shop.app.schedules.pause("turns", name) for name in names)
    shop.wait_empty("turns")
    assert not overlapping(shop.journal)
    assert Counter(shop.journal.ids("stopped")) == dict.fromkeys(names, 2)
    assert all(schedule(name).missed == 0 for name in names)
    assert schedule("skipping").fired == len(shop.journal.all("end", id="skipping"))
    # Twice it was given back with one behind it, and the two became one.
    assert schedule("waiting").fired == len(shop.journal.all("end", id="waiting")) + 2
    assert third.stop() == 0
