"""Beside the published clients on one queue: PyPI `redis-work-queue`, npm `@mevitae/redis-work-queue`, both 0.1.5."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis_work_queue import Item, KeyPrefix, WorkQueue  # type: ignore[import-untyped]

from tests.compat.workqueue.conftest import (
    CLEANING,
    PREFIX,
    PROCESSING,
    QUEUE,
    Look,
    lease_keys,
    names,
    somebody_waits,
    stored,
)
from tests.compat.workqueue.mixed_workers import Kind, MixedWorkers
from tests.contract.leasing import drain, take
from tests.support.repairing import repaired
from tests.support.server import Server
from tests.support.waiting import FOREVER_S, LIMIT_S, wait_until
from windlass import Cleaned, Queue, RawJob, State, Status

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")  # of the published client

NODE_PACKAGES = ("@mevitae/redis-work-queue@0.1.5", "ioredis@5.11.1", "uuid@9.0.1")


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published Node client, installed once."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not installed: nothing is proven beside the published Node client")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text("{}")
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", *NODE_PACKAGES]
    try:
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired:
        pytest.skip("npm could not install the published Node client within 90 s")
    if done.returncode:
        pytest.skip(f"npm could not install the published Node client: {done.stderr.strip()[-300:]}")
    return folder / "node_modules"


@pytest.fixture
def mixed_workers(server: Server, tmp_path: Path) -> Iterator[MixedWorkers]:
    with MixedWorkers(tmp_path, server.url, PREFIX) as mixed_workers:
        yield mixed_workers


@pytest.fixture
def node_crew(server: Server, tmp_path: Path, node_modules: Path) -> Iterator[MixedWorkers]:
    with MixedWorkers(tmp_path, server.url, PREFIX, node_modules) as mixed_workers:
        yield mixed_workers


# -- one after the other -------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R8")
def test_both_write_the_same_keys(queue: Queue, client: redis.Redis, look: Look) -> None:
    """All that the published client writes is written by Windlass too; only the document's lease key is one more."""
    other = WorkQueue(KeyPrefix("beside"))

    def both() -> tuple[dict[str, Any], dict[str, Any]]:
        return look(), stored(client, "beside")

    for id in ("a", "b", "c"):
        queue.enqueue(b"data", id=id)
        other.add_item(client, Item(b"data", id=id))
    ours, published = both()
    assert ours == published

    lease, item = take(queue, seconds=60), other.lease(client, 60)
    ours, published = both()
    sessions = ours.pop("leased_by_session:a"), published.pop("leased_by_session:a")
    assert all(re.fullmatch(rb"[0-9a-f]{32}", session) for session in sessions)
    assert ours.pop("lease:a") == sessions[0]
    assert ours == published
    assert abs(client.ttl(lease_keys("a")[1]) - client.ttl("beside:leased_by_session:a")) <= 1

    for key in (*lease_keys("a"), "beside:leased_by_session:a"):
        client.delete(key)
    queue.clean()
    other.light_clean(client)
    ours, published = both()
    assert ours == published

    assert (queue.complete(lease), other.complete(client, item)) == (False, False), "taken back"
    while lease := queue.lease():  # type: ignore[assignment]
        assert queue.complete(lease)
    while item := other.lease(client, 60, block=False):
        assert other.complete(client, item)
    assert both() == ({}, {})


@pytest.mark.speaks("workqueue", "R8")
def test_what_windlass_adds_they_complete(queue: Queue, client: redis.Redis, look: Look, theirs: WorkQueue) -> None:
    items = {"a": bytes(range(256)), "größer 7": b"x", "empty": b""}
    for id, data in items.items():
        assert queue.enqueue(data, id=id).status == Status.ADDED
    assert (theirs.queue_len(client), theirs.processing(client)) == (3, 0)
    for id, data in items.items():
        item = theirs.lease(client, 60, block=False)
        assert (item.id(), item.data()) == (id, data)
        assert [job.id for job in queue.jobs(State.RUNNING).jobs] == [id]
        assert queue.enqueue(b"other", id=id).status == Status.KEPT
        assert theirs.complete(client, item)
        assert queue.get(id) is None
    assert look() == {}


@pytest.mark.speaks("workqueue", "R8")
def test_what_they_add_windlass_completes(queue: Queue, client: redis.Redis, look: Look, theirs: WorkQueue) -> None:
    items = [Item(bytes(range(256))), Item("größer", id="größer 7"), Item(b"", id="empty")]
    for item in items:
        theirs.add_item(client, item)
    assert queue.counts().ready == 3
    for item in items:
        lease = take(queue)
        assert (lease.id, lease.data) == (item.id(), item.data())
        assert (theirs.queue_len(client), theirs.processing(client)) == (queue.counts().ready, 1)
        assert queue.complete(lease)
        assert not theirs.complete(client, item)
    assert look() == {}


@pytest.mark.speaks("workqueue", "R1", "R8")
def test_json_of_either_is_read_by_the_other(queue: Queue, client: redis.Redis, theirs: WorkQueue) -> None:
    value = {"name": "größer", "sizes": [1, 2.5, None, True]}
    theirs.add_item(client, Item.from_json_data(value))
    queue.enqueue_json(value)
    first = take(queue)
    second = theirs.lease(client, 60)
    assert first.json() == second.data_json() == value
    assert queue.complete(first)
    assert theirs.complete(client, second)


@pytest.mark.speaks("workqueue", "R3", "R8")
def test_a_lease_that_waits_gets_what_they_add_at_once(patient: Queue, client: redis.Redis, theirs: WorkQueue) -> None:
    """Although they announce nothing."""
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(patient.lease, 30, FOREVER_S)
        wait_until(lambda: somebody_waits(client), "somebody to wait")
        theirs.add_item(client, Item(b"x", id="a"))
        lease = waiting.result(LIMIT_S)
    assert lease is not None
    assert lease.id == "a"


@pytest.mark.speaks("workqueue", "R3", "R8")
def test_they_get_what_windlass_adds_while_they_block(
    server: Server, queue: Queue, client: redis.Redis, theirs: WorkQueue
) -> None:
    with server.client() as db, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(theirs.lease, db, 30, timeout=round(FOREVER_S))
        wait_until(lambda: somebody_waits(client), "somebody to wait")
        queue.enqueue(b"x", id="a")
        assert waiting.result().id() == "a"


# -- whose it is ---------------------------------------------------------------------------------


@pytest.mark.speaks("workqueue", "R5", "R8")
def test_neither_cleaner_takes_what_the_other_has_leased(
    queue: Queue, client: redis.Redis, look: Look, theirs: WorkQueue
) -> None:
    queue.enqueue_many([RawJob(b"x", id=id) for id in "abcd"])
    leases, items = queue.lease_many(2), [theirs.lease(client, 60) for _ in range(2)]
    before = look()
    for _ in range(3):
        theirs.light_clean(client)
        assert repaired(queue) == (0, 0)
    assert look() == before
    assert queue.complete_many(leases) == [True, True]
    assert [theirs.complete(client, item) for item in items] == [True, True]


@pytest.mark.speaks("workqueue", "R4", "R8")
def test_of_two_who_worked_on_one_item_one_completes_it(queue: Queue, client: redis.Redis, theirs: WorkQueue) -> None:
    """The lease of the first ran out and the other's cleaner gave the item to the second; either may be done first."""
    for first_done in (0, 1):
        queue.enqueue(b"x", id="a")
        lease = take(queue)
        client.delete(*lease_keys("a"))
        theirs.light_clean(client)
        item = theirs.lease(client, 60)
        done: list[Callable[[], bool]] = [lambda: queue.complete(lease), lambda: theirs.complete(client, item)]  # noqa: B023
        answers = [done[first_done](), done[1 - first_done]()]
        assert sorted(answers) == [False, True]

        theirs.add_item(client, Item(b"x", id="a"))
        item = theirs.lease(client, 60)
        client.delete(lease_keys("a")[1])
        assert queue.clean() == Cleaned(recovered=1)
        lease = take(queue)
        answers = [done[first_done](), done[1 - first_done]()]
        assert answers == [True, False], "they go by the list alone, so who comes first has it"


# -- all at once ---------------------------------------------------------------------------------


def work_off(
    mixed_workers: MixedWorkers, queue: Queue, client: redis.Redis, counts: dict[Kind, int], kills: int
) -> None:
    """All kinds add and work off items at once, cleaners of both sorts beside them; now and then one is killed."""
    workers = [mixed_workers.start(kind, "work") for _ in range(2) for kind in counts]
    cleaners = [mixed_workers.start("published", "clean"), mixed_workers.start("windlass", "clean")]
    for peer in workers:
        peer.wait_for("r")
    for kind, count in counts.items():
        mixed_workers.start(kind, "add", count)
    for n in range(kills):
        mixed_workers.wait_done(sum(counts.values()) * (n + 1) // (kills + 2))
        team = cleaners if n % 5 == 4 else workers
        # Others may have done all that was left before one that is new has begun.
        team.append(mixed_workers.kill_and_replace(team.pop(0), lambda: not client.exists(QUEUE, PROCESSING, CLEANING)))
        team[-1].wait_for("r")  # before the next is killed: so there is one of each kind at any time
    mixed_workers.wait_added()

    def is_over() -> bool:
        if client.exists(QUEUE, PROCESSING, CLEANING):
            return False
        left = names(client, f"{PREFIX}:item:*")
        if left:  # somebody died while it was in no list
            queue.audit(repair=True)
        return not left

    wait_until(is_over, "all items to be completed", interval=0.05)
    mixed_workers.stop()


def check_account(mixed_workers: MixedWorkers, client: redis.Redis, counts: dict[Kind, int]) -> None:
    """Every item was completed, once; both sorts took part, with items of either."""
    added, done = mixed_workers.steps("a"), mixed_workers.steps("+")
    assert added.total() == len(added) == sum(counts.values())
    assert set(done) <= set(added)
    assert {id: n for id, n in done.items() if n != 1} == {}, "complete was true more than once"
    unheard = set(added) - set(done)  # completed by one that was killed before it could write that down
    assert len(unheard) <= sum(peer.role == "work" for peer in mixed_workers.killed), unheard
    assert not mixed_workers.steps("!")
    for kind in counts:
        own = [id.startswith(kind) for id in mixed_workers.steps("+", kind=kind)]
        assert set(own) == {True, False}, f"{kind} did not complete both items of its own and others'"
    wait_until(lambda: not names(client, f"{PREFIX}:*"), "the last leases to end")


@pytest.mark.speaks("workqueue", "R4", "R5", "R8", "R9")
def test_a_thousand_items_beside_the_python_client_with_kills(
    mixed_workers: MixedWorkers, queue: Queue, client: redis.Redis
) -> None:
    counts: dict[Kind, int] = {"published": 1500, "windlass": 1500}
    work_off(mixed_workers, queue, client, counts, kills=8)
    check_account(mixed_workers, client, counts)


@pytest.mark.speaks("workqueue", "R4", "R5", "R8", "R9")
def test_a_thousand_items_beside_the_node_client_with_kills(
    node_crew: MixedWorkers, queue: Queue, client: redis.Redis
) -> None:
    counts: dict[Kind, int] = {"node": 500, "windlass": 500}
    work_off(node_crew, queue, client, counts, kills=5)
    check_account(node_crew, client, counts)


@pytest.mark.speaks("workqueue", "R5", "R8")
def test_the_node_cleaner_and_its_stray_id(
    node_crew: MixedWorkers, queue: Queue, client: redis.Redis, look: Look
) -> None:
    """It takes back what has no lease, and by a slip of its own puts an id "0" on the queue, which is no item."""
    queue.enqueue_many([RawJob(b"x", id="lost"), RawJob(b"x", id="kept")])
    queue.lease_many(2)
    client.delete(*lease_keys("lost"))
    assert node_crew.start("node", "clean").process.wait(30) == 0
    assert sorted(look()["queue"]) == [b"0", b"lost"]
    assert look()["processing"] == [b"kept"]
    assert drain(queue) == ["lost"]
    assert "queue" not in look()
