"""What a lost holder held comes back: to the front, in the old order, once, by whoever looks next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.conftest import SameFace
from tests.contract.leasing import drain, take
from tests.support.repairing import repaired
from tests.support.server import Server
from windlass import Cleaned, Counts, Queue, State, Windlass

Later = Callable[[float], None]


@pytest.mark.serves("R5")
@pytest.mark.needs("LIMITS", "PRIORITY")
def test_an_expired_lease_is_taken_back_by_a_clean(queue: Queue, later: Later) -> None:
    queue.enqueue(b"data", id="a", priority=3)
    take(queue, seconds=10)
    later(9)
    assert queue.clean() == Cleaned(recovered=0)
    assert queue.counts().running == 1
    later(2)
    assert queue.clean() == Cleaned(recovered=1)
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.data, job.priority, job.stalls, job.failures) == (State.READY, b"data", 3, 1, 0)
    assert queue.clean() == Cleaned(recovered=0), "once"


@pytest.mark.serves("R5", "W14", "R9", "W1")
@pytest.mark.needs("LIMITS")
def test_no_cleaner_is_needed_the_next_lease_does_it(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", id="a")
    first = take(queue, seconds=10)
    later(11)
    second = take(queue)
    assert (second.id, second.stalls, second.attempt) == ("a", 1, 2)
    assert second.fence > first.fence


@pytest.mark.serves("W14")
@pytest.mark.needs("IDS")
def test_a_peer_of_another_program_recovers_it(queue: Queue, same_face: SameFace, server: Server, later: Later) -> None:
    queue.enqueue(b"", id="a")
    take(queue, seconds=10, holder="worker-1")
    later(11)
    with Windlass(server.url) as other:
        assert drain(same_face(other.queue(queue.name, layout=queue.layout))) == ["a"]


@pytest.mark.serves("W3", "H3")
@pytest.mark.needs("FRONT")
def test_raw_leases_return_to_the_front_in_their_order(queue: Queue, later: Later) -> None:
    ids = [queue.enqueue(b"").id for _ in range(8)]
    for _ in range(3):
        take(queue, seconds=10)
    queue.lease_many(3, seconds=10)
    later(11)
    assert drain(queue) == ids


@pytest.mark.serves("W3", "P8", "W13", "P6", "H3")
@pytest.mark.needs("FRONT", "IDS")
def test_a_lost_holders_jobs_return_to_the_front_of_their_priorities(queue: Queue, later: Later) -> None:
    for number in range(12):
        queue.enqueue(b"", id=f"{number % 3}-{number:02}", priority=number % 3)
    held = queue.lease_many(3, seconds=10, holder="worker-1")
    held += queue.lease_many(4, seconds=10, holder="worker-1")
    assert len({lease.priority for lease in held}) == 2
    for number in range(12, 15):
        queue.enqueue(b"", id=f"{number % 3}-{number:02}", priority=number % 3)
    later(11)
    came = drain(queue)
    assert len(came) == 15
    assert came == sorted(came)


@pytest.mark.serves("W3", "W14")
@pytest.mark.needs("FRONT")
def test_only_the_lost_holder_loses(queue: Queue, later: Later) -> None:
    ids = [queue.enqueue(b"").id for _ in range(6)]
    lost = queue.lease_many(2, seconds=10, holder="lost")
    alive = queue.lease_many(2, seconds=10, holder="alive")
    later(8)
    assert queue.beat("alive", 10)
    later(3)
    assert queue.clean().recovered == 2
    assert [lease.id for lease in queue.lease_many(10)] == [ids[0], ids[1], ids[4], ids[5]]
    assert queue.complete_many(lost) == [False, False]
    assert queue.complete_many(alive) == [True, True]
    assert not queue.beat("lost", 10)


def test_names_that_begin_alike_are_not_confused(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 3)
    take(queue, seconds=10, holder="w")
    long = take(queue, seconds=60, holder="w1")
    dotted = take(queue, seconds=60, holder="w.1")
    later(11)
    assert queue.clean().recovered == 1
    assert queue.complete_many([long, dotted]) == [True, True]


@pytest.mark.serves("W14", "R5", "W2", "H3")
@pytest.mark.needs("LIMITS", "ORDER")
def test_eight_peers_recover_it_once(raw_queue: Queue, later: Later) -> None:
    ids = [receipt.id for receipt in raw_queue.enqueue_many([b""] * 200)]
    raw_queue.lease_many(100, seconds=10, holder="worker-1")
    for _ in range(10):
        raw_queue.lease_many(10, seconds=10)
    later(11)
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(raw_queue.audit, repair=True) for _ in range(8)]
        also = [pool.submit(raw_queue.clean) for _ in range(8)]
        recovered = [each.result().recovered for each in found] + [each.result().recovered for each in also]
    assert sum(recovered) == 200
    leases = raw_queue.lease_many(1000)
    assert [lease.id for lease in leases] == ids
    assert {lease.stalls for lease in leases} == {1}


@pytest.mark.serves("W3")
@pytest.mark.needs("ORDER")
def test_a_holder_of_thousands_is_recovered_whole(queue: Queue, later: Later) -> None:
    ids = [receipt.id for receipt in queue.enqueue_many([b""] * 2300)]
    while queue.lease_many(1000, seconds=10, holder="worker-1"):
        pass
    later(11)
    assert queue.clean() == Cleaned(recovered=2300)
    assert drain(queue) == ids


@pytest.mark.serves("Q4")
@pytest.mark.parametrize("forgiven", [0, 1, 3])
@pytest.mark.parametrize("holder", [None, "worker-1"])
@pytest.mark.needs("LIMITS", "DEAD")
def test_stalls_are_forgiven_so_many_times_and_no_more(
    queue: Queue, later: Later, forgiven: int, holder: str | None
) -> None:
    queue.enqueue(b"data", id="a", max_stalls=forgiven, max_failures=0)
    for stalls in range(forgiven + 1):
        lease = take(queue, seconds=10, holder=holder)
        assert lease.stalls == stalls
        later(11)
    assert queue.lease() is None
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.reason, job.data, job.stalls) == (State.DEAD, "stalled", b"data", forgiven + 1)
    assert job.message is not None
    assert "max_stalls" in job.message


@pytest.mark.serves("Q4")
@pytest.mark.needs("LIMITS", "DEAD")
def test_three_stalls_are_forgiven_by_default(queue: Queue, later: Later) -> None:
    queue.enqueue(b"")
    for _ in range(4):
        take(queue, seconds=10)
        later(11)
        queue.clean()
    assert queue.counts() == Counts(ready=0, scheduled=0, blocked=0, running=0, dead=1)


@pytest.mark.needs("LIMITS")
def test_failures_and_stalls_are_two_budgets(queue: Queue, later: Later) -> None:
    queue.enqueue(b"", max_failures=1, max_stalls=1)
    assert queue.retry(take(queue), delay=0)
    take(queue, seconds=10)
    later(11)
    lease = take(queue)
    assert (lease.failures, lease.stalls, lease.attempt) == (1, 1, 3)
    assert queue.complete(lease)


@pytest.mark.serves("W2")
@pytest.mark.needs("RUN_TIME")
def test_what_was_settled_in_time_is_not_recovered(queue: Queue, later: Later) -> None:
    queue.enqueue_many([b""] * 4)
    first, second, third, fourth = queue.lease_many(4, seconds=10, holder="worker-1")
    assert queue.complete(first)
    assert queue.retry(second, delay=100)
    assert queue.fail(third)
    later(11)
    assert queue.clean().recovered == 1
    assert [lease.id for lease in queue.lease_many(10)] == [fourth.id]


@pytest.mark.serves("R5")
@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_a_healthy_queue_needs_no_cleaning(queue: Queue) -> None:
    queue.enqueue_many([b""] * 5)
    queue.enqueue(b"", id="late", delay=60)
    queue.enqueue(b"", id="run", priority=0)
    lease = take(queue)
    assert lease.id == "run"
    queue.enqueue(b"", id="run")
    assert queue.progress(lease, 0.5)
    assert queue.fail(take(queue), "dead")
    assert queue.retry(take(queue), message="try again")
    before = queue.counts()
    assert queue.clean() == Cleaned(0)
    assert repaired(queue) == (0, 0)
    assert queue.counts() == before
    assert queue.complete(lease)


@pytest.mark.serves("R5")
def test_cleaning_beside_live_workers_disturbs_nobody(raw_queue: Queue) -> None:
    ids = {receipt.id for receipt in raw_queue.enqueue_many([b""] * 600)}
    raw_queue.enqueue_many([b""] * 5)

    def work(_: int) -> list[str]:
        done: list[str] = []
        while leases := raw_queue.lease_many(5, seconds=60):
            assert raw_queue.complete_many(leases) == [True] * len(leases)
            done += [lease.id for lease in leases]
        return done

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(3)]
        cleaned = [repaired(raw_queue) for _ in range(20)]
        done = [id for worker in workers for id in worker.result()]
    assert cleaned == [(0, 0)] * 20
    assert len(done) == 605
    assert ids <= set(done)
