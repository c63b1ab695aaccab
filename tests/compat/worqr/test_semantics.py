"""Tasks as Worqr knows them: raw bytes, first in first out, each to one worker, announced to peers of any make."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1

import pytest
import redis

from tests.compat.worqr.conftest import NAME, Later
from tests.compat.worqr.peer import Peer
from tests.contract.leasing import drain, take
from tests.support.internals import perform
from tests.support.waiting import wait_until
from windlass import Lease, Queue, State, Windlass
from windlass.errors import InvalidOption, UnsupportedByLayout
from windlass.storage.compat.worqr.layout import name_of
from windlass.storage.port import LeaseRequest


@pytest.mark.speaks("worqr", "W6")
def test_any_bytes_are_stored_as_given(client: redis.Redis, queue: Queue) -> None:
    tasks = [bytes([byte]) for byte in range(256)] + [b"", b"\0" * 1000, bytes(range(256)) * 4000, "é".encode()]
    queue.enqueue_many(tasks)
    assert client.lrange("worqr:queues:tubes", 0, -1) == tasks[::-1]
    leases = queue.lease_many(1000)
    assert [lease.data for lease in leases] == tasks
    assert all(queue.release(lease) for lease in reversed(leases))
    assert client.lrange("worqr:queues:tubes", 0, -1) == tasks[::-1]


@pytest.mark.speaks("worqr", "W8")
def test_first_in_first_out_whoever_pushes(queue: Queue, peer: Peer) -> None:
    for n in range(10):
        if n % 3:
            queue.enqueue(b"%d" % n)
        else:
            peer.enqueue(NAME, b"%d" % n)
    got = [take(queue).data if n % 2 else (peer.dequeue(NAME) or ("", b""))[1] for n in range(10)]
    assert got == [b"%d" % n for n in range(10)]


@pytest.mark.speaks("worqr", "W5", "W2")
def test_each_task_goes_to_one_worker(queue: Queue) -> None:
    tasks = [b"%d" % n for n in range(400)]
    queue.enqueue_many(tasks)

    def work(number: int) -> list[bytes]:
        got: list[bytes] = []
        while leases := queue.lease_many(7, holder=f"w{number}"):
            got += [lease.data for lease in leases]
        return got

    with ThreadPoolExecutor(8) as pool:
        got = Counter(task for part in pool.map(work, range(8)) for task in part)
    assert got == Counter(tasks)
    assert queue.counts().running == 400
    assert queue.lease() is None


@pytest.mark.speaks("worqr", "W5")
def test_equal_tasks_are_tasks_of_their_own(queue: Queue) -> None:
    queue.enqueue_many([b"same"] * 3)
    first, second = queue.lease_many(2, holder="w1")
    assert first.id == second.id == "same"
    assert first.fence < second.fence
    assert queue.complete_many([first, first]) == [True, False], "one is finished once"
    assert queue.counts().running == 1
    assert queue.complete(second)
    assert drain(queue) == ["same"]


@pytest.mark.speaks("worqr", "W7")
def test_an_idle_worker_hears_of_a_peers_task(
    client: redis.Redis, queue: Queue, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.queue.LEASE_WAIT_POLL_S", 60.0)  # so that only an announcement can wake it
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.lease(wait=60)))
    waiter.start()
    wait_until(lambda: client.pubsub_numsub("worqr_tubes_work")[0][1] == 1, "a worker that listens")
    peer.enqueue(NAME, b"news")
    waiter.join(20)
    assert [lease and lease.data for lease in got] == [b"news"]


@pytest.mark.speaks("worqr", "W7")
def test_a_lost_announcement_only_delays(client: redis.Redis, queue: Queue) -> None:
    got: list[Lease | None] = []
    waiter = threading.Thread(target=lambda: got.append(queue.lease(wait=60)))
    waiter.start()
    wait_until(lambda: client.pubsub_numsub("worqr_tubes_work")[0][1] == 1, "a worker that listens")
    client.lpush("worqr:queues:tubes", b"silent")
    waiter.join(20)
    assert [lease and lease.data for lease in got] == [b"silent"]


@pytest.mark.speaks("worqr", "W7")
def test_who_waits_asks_about_once_a_second(client: redis.Redis, queue: Queue) -> None:
    queue.lease()
    before = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    assert queue.lease(wait=1.5) is None
    calls = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert calls <= 6


@pytest.mark.speaks("worqr", "W9", "W3")
def test_tasks_that_are_stopped_in_one_call_keep_their_order(queue: Queue) -> None:
    queue.enqueue_many([b"%d" % n for n in range(6)])
    leases = queue.lease_many(4, holder="w1")
    for lease in reversed(leases):
        assert queue.release(lease)
    assert [lease.data for lease in queue.lease_many(10)] == [b"%d" % n for n in range(6)]


def test_a_task_is_called_what_it_says(queue: Queue) -> None:
    tasks = {
        b"resize 1": "resize 1",
        "łódź".encode(): "łódź",
        b"x" * 512: "x" * 512,
        **{task: "sha1:" + sha1(task).hexdigest() for task in (b"x" * 513, b"\xff", b"")},
    }
    queue.enqueue_many(tasks)
    assert {job.data: job.id for job in queue.jobs(State.READY).jobs} == tasks
    for task, id in tasks.items():
        job = queue.get(id)
        assert job is not None
        assert (job.state, job.data) == (State.READY, task)
    leases = queue.lease_many(10, holder="w1")
    assert {lease.data: lease.id for lease in leases} == tasks
    assert {job.data: job.id for job in queue.jobs(State.RUNNING).jobs} == tasks
    for lease in leases:
        job = queue.get(lease.id)
        assert job is not None
        assert (job.state, job.data, job.holder, job.fence) == (State.RUNNING, lease.data, "w1", lease.fence)
    assert queue.get("nothing") is None
    assert queue.get(f"sha1:{'0' * 40}") is None


def test_python_and_the_server_agree_on_what_a_task_is_called(queue: Queue) -> None:
    chance = random.Random(4)
    edges = ["\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    tasks = [edge.encode() for edge in edges]
    tasks += [b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80"]
    leads = bytes([0x41, 0x80, 0xBF, 0xC2, 0xDF, 0xE0, 0xA0, 0xED, 0x9F, 0xEF, 0xF0, 0x90, 0xF4, 0x8F, 0xF5])
    tasks += [bytes(chance.choices(leads, k=chance.randint(1, 6))) for _ in range(900)]
    queue.enqueue_many(tasks)
    leases = queue.lease_many(1000)
    assert [lease.data for lease in leases] == tasks
    assert [lease.id for lease in leases] == [name_of(task) for task in tasks]
    assert {len(lease.id) == 45 for lease in leases} == {True, False}, "of both kinds"


def test_what_runs_is_listed_in_its_order_whoever_runs_it(queue: Queue, peer: Peer) -> None:
    queue.enqueue_many([b"%d" % n for n in range(5)])
    assert peer.dequeue(NAME)
    queue.lease_many(3, holder="w1")
    jobs = queue.jobs(State.RUNNING).jobs
    assert [(job.data, job.holder) for job in jobs] == [(b"1", "w1"), (b"2", "w1"), (b"3", "w1"), (b"0", None)]
    page = queue.jobs(State.RUNNING, limit=3)
    assert page.jobs == jobs[:3]
    assert queue.jobs(State.RUNNING, limit=3, cursor=page.cursor).jobs == jobs[3:]
    assert (queue.counts().ready, queue.counts().running) == (1, 4)


def test_a_long_queue_is_listed_from_the_front(queue: Queue) -> None:
    queue.enqueue_many([b"%d" % n for n in range(25)])
    assert [job.data for job in queue.all_jobs(State.READY)] == [b"%d" % n for n in range(25)]
    first = queue.jobs(State.READY, limit=10)
    assert [job.data for job in first.jobs] == [b"%d" % n for n in range(10)]
    last = queue.jobs(State.READY, limit=20, cursor=queue.jobs(State.READY, limit=20).cursor)
    assert [job.data for job in last.jobs] == [b"%d" % n for n in range(20, 25)]
    assert queue.jobs(State.DEAD).jobs == ()


def test_fences_rise_and_a_lost_lease_settles_nothing(queue: Queue, later: Later) -> None:
    queue.enqueue(b"T0")
    first = take(queue, seconds=10)
    later(11)
    second = take(queue)
    assert second.fence > first.fence
    assert not queue.complete(first)
    assert not queue.extend(first, 10)
    assert queue.complete(second)


def test_a_deep_clean_mends_the_list_of_processes(client: redis.Redis, queue: Queue, app: Windlass) -> None:
    longer = app.queue(f"{NAME}_2", layout="worqr")  # its processes begin with the same letters
    for each in (queue, longer):
        each.enqueue(b"T0")
        take(each)
    listed = client.smembers("worqr:workingProcesses:tubes")
    client.delete("worqr:workingProcesses:tubes")
    client.sadd("worqr:workingProcesses:tubes", "tubes_phantom")
    assert queue.audit(repair=True).repaired == 2
    assert client.smembers("worqr:workingProcesses:tubes") == listed
    assert queue.audit(repair=True).repaired == 0
    longer.purge()


@pytest.mark.parametrize("layout_queue", ["a/b", "a:b", "a_b", "a*b[c]"])
def test_names_of_queues_are_taken_as_they_are(client: redis.Redis, app: Windlass, layout_queue: str) -> None:
    queue = app.queue(layout_queue, layout="worqr")
    queue.enqueue(b"T0")
    assert client.keys("worqr:queues:*") == [f"worqr:queues:{layout_queue}".encode()]
    lease = take(queue, holder="w1")
    assert client.smembers("worqr:workingQueues:w1") == {layout_queue.encode()}
    assert queue.audit(repair=True).repaired == 0
    assert queue.complete(lease)


def test_what_worqr_cannot_do_is_refused(queue: Queue) -> None:
    for refused in (
        lambda: queue.enqueue(b"", id="a"),
        lambda: queue.enqueue(b"", delay=1),
        lambda: queue.enqueue(b"", priority=1),
        lambda: queue.enqueue(b"", max_failures=1),
        lambda: queue.pause(),
        lambda: queue.revive("a"),
        lambda: queue.update("a", priority=1),
    ):
        with pytest.raises(UnsupportedByLayout, match="worqr"):
            refused()
    with pytest.raises(InvalidOption):
        queue.purge(State.RUNNING)
    assert queue.counts().ready == 0


def test_a_beat_of_one_queue_is_none_on_another(app: Windlass, queue: Queue) -> None:
    queue.beat("w1", 30, register=True)
    other = app.queue("other", layout="worqr")
    assert not other.beat("w1", 30)
    other.enqueue(b"T0")
    turn = perform(
        other, lambda layout: layout.turn((), LeaseRequest(want=1, seconds=3, holder="w1", only_if_registered=True))
    )
    assert turn.lost
    assert drain(other) == ["T0"]
