"""Sealed jobs on a real server that others can write into: what was forged or moved is never handed out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pytest
import redis
from msgspec import json

from tests.native.schedules.conftest import at as at
from tests.support.conditions import until
from tests.support.internals import layout_of, perform, perform_call, run_flow, settle
from tests.support.proxy import HANG_REPLY, FaultProxy, nth
from tests.support.schedules import HOUR, NOON, Clock, declared, ticker_of
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import JobHandle, JobRecord, Lease, Limits, Queue, RawJob, Windlass
from windlass.errors import KeyConflict, PayloadTooLarge, TooManyUndecodable, Undecodable
from windlass.stdio.native import NativeDispatcher
from windlass.storage.native.keys import queue_key, result_key
from windlass.storage.native.records import add_sum, take_sum
from windlass.storage.native.sealed_layout import SealedLayout
from windlass.storage.native.sealing import SEALED
from windlass.storage.port import Layout, LeaseRequest
from windlass.values.decode_guard import MAX_UNDECODABLE_IN_A_ROW
from windlass.values.job import NewJob
from windlass.values.outcome import Broken, Completed, Failed, HandOver, Kept
from windlass.worker.runner.outbox import empty_outbox
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.schedule_ticks import declare

OLD, NEW = b"o" * 32, b"n" * 32
SIGNED: dict[str, Any] = {"signing_keys": {"k1": NEW}}
ENCRYPTED: dict[str, Any] = {"encryption_keys": {"k1": NEW}}


@pytest.fixture(params=[SIGNED, ENCRYPTED], ids=["signed", "encrypted"])
def keys(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def app(server: Server, client: redis.Redis, keys: dict[str, Any]) -> Iterator[Windlass]:
    """An app with keys, for all fixtures that stand on it."""
    with Windlass(server.url, retry_for=5, **keys) as app:
        yield app


@pytest.fixture
def another(server: Server, client: redis.Redis) -> Iterator[Callable[..., Windlass]]:
    """More apps on the same server, with other keys or none."""
    made: list[Windlass] = []

    def make(url: str = server.url, **keys: Any) -> Windlass:
        made.append(Windlass(url, retry_for=5, **keys))
        return made[-1]

    yield make
    for app in made:
        app.close()


class Hash:
    """A hash of the server as if it were a dict, for who has access to it."""

    def __init__(self, client: redis.Redis, queue: str, name: str) -> None:
        self._client = client
        self._key = queue_key(queue, name)

    def __getitem__(self, field: str) -> bytes:
        found: Any = self._client.hget(self._key, field)
        assert isinstance(found, bytes)
        return found

    def __setitem__(self, field: str, value: bytes) -> None:
        self._client.hset(self._key, field, value)


class Payloads(Hash):
    """The sealed payloads: their checksum fits always, for anybody can compute it."""

    def __init__(self, client: redis.Redis, queue: str) -> None:
        super().__init__(client, queue, "data")

    def __getitem__(self, id: str) -> bytes:
        return take_sum(super().__getitem__(id))

    def __setitem__(self, id: str, payload: bytes) -> None:
        super().__setitem__(id, add_sum(payload))


@pytest.fixture
def data(client: redis.Redis, raw_queue: Queue) -> Payloads:
    """The payloads of the queue."""
    return Payloads(client, raw_queue.name)


def one(queue: Queue, **options: Any) -> Lease:
    lease = queue.lease(**options)
    assert lease is not None
    return lease


def seen(queue: Queue, id: str) -> JobRecord:
    record = queue.get(id)
    assert record is not None
    return record


def broken(queue: Queue, id: str) -> str:
    """Why a job is among the broken; nothing of its content is shown."""
    record = seen(queue, id)
    assert (record.state, record.reason, record.data) == ("broken", "broken", b"")
    assert record.message is not None
    return record.message


def put_aside(queue: Queue, id: str) -> str:
    """Why a job was left for others; nothing of its content is shown."""
    record = seen(queue, id)
    assert (record.state, record.data, queue.counts().parked) == ("scheduled", b"", 1)
    assert record.message is not None
    return record.message


# -- sealed all the way ----------------------------------------------------------------------------


def test_payloads_lie_sealed_in_the_server_and_come_out_as_they_went_in(queue: Queue, data: Payloads) -> None:
    queue.enqueue(b"one", id="a")
    queue.enqueue_many([RawJob(b"two", id="b"), b"three"])
    assert data["a"].startswith(SEALED)
    assert data["a"] != data["b"]
    assert [lease.data for lease in queue.lease_many(3)] == [b"one", b"two", b"three"]


def test_a_job_is_readable_in_every_state(queue: Queue) -> None:
    def read(state: str) -> list[bytes]:
        (record,) = queue.jobs(state).jobs
        return [record.data, seen(queue, record.id).data]

    queue.enqueue(b"later", id="s", delay=60)
    queue.enqueue(b"now", id="a")
    assert read("scheduled") == [b"later"] * 2
    assert read("ready") == [b"now"] * 2
    lease = one(queue)
    assert read("running") == [b"now"] * 2
    queue.enqueue(b"next", id="a")
    assert [record.data for record in queue.jobs("blocked").jobs] == [b"next"]
    assert queue.fail(lease)
    assert [record.data for record in queue.jobs("dead").jobs] == [b"now"]
    assert one(queue).data == b"next"


def test_updates_and_what_waits_behind_a_running_job_open(queue: Queue) -> None:
    queue.enqueue(b"1", id="a", delay=60)
    assert queue.update("a", data=b"2", delay=0)
    assert queue.update("a", priority=1)
    lease = one(queue)
    assert lease.data == b"2"
    queue.enqueue(b"3", id="a", update_data=False)
    assert queue.update("a", max_failures=2)
    assert queue.retry(lease, delay=0), "it comes back merged, with its own data"
    lease = one(queue)
    assert lease.data == b"2"
    queue.enqueue(b"4", id="a")
    assert queue.release(lease)
    lease = one(queue)
    assert lease.data == b"4"
    assert queue.fail(lease)
    assert queue.revive("a") == [True]
    assert one(queue).data == b"4"


def test_the_limit_counts_what_the_user_gave(another: Callable[..., Windlass], keys: dict[str, Any]) -> None:
    queue = another(max_payload=100, **keys).queue("limits")
    queue.enqueue(b"x" * 100)
    lease = one(queue)
    assert lease.data == b"x" * 100
    assert queue.complete(lease)
    with pytest.raises(PayloadTooLarge):
        queue.enqueue(b"x" * 101)


@pytest.mark.parametrize("payload", [SEALED, SEALED + b"\0", SEALED + b"\0" + SEALED, SEALED + b"\x01sj\x02k1more"])
def test_a_payload_may_begin_as_sealed_ones_do(
    raw_queue: Queue, another: Callable[..., Windlass], payload: bytes
) -> None:
    for queue in (raw_queue, another().queue("bare")):
        queue.enqueue(payload, id="a")
        queue.enqueue(b"x", id="b", delay=900)
        assert queue.update("b", data=payload, delay=0)
        for lease in (one(queue), one(queue)):
            assert lease.data == payload
            assert seen(queue, lease.id).data == payload
            assert queue.complete(lease)


def test_what_was_not_sealed_and_only_begins_so_is_refused_by_those_with_keys(
    raw_queue: Queue, another: Callable[..., Windlass]
) -> None:
    another().queue(raw_queue.name).enqueue(SEALED + b"more", id="a")
    assert raw_queue.lease() is None
    assert "unsigned" in broken(raw_queue, "a")


# -- forged, altered, moved ------------------------------------------------------------------------


def test_an_unsigned_job_is_broken_and_the_others_are_handed_out(queue: Queue, data: Payloads) -> None:
    queue.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b"), RawJob(b"3", id="c")])
    data["b"] = b'{"task":"pay","args":["mallory"]}'
    assert [lease.id for lease in queue.lease_many(3)] == ["a", "c"]
    assert "unsigned" in broken(queue, "b")
    assert "mallory" not in broken(queue, "b")
    counts = queue.counts()
    assert (counts.running, counts.broken, counts.holders) == (2, 1, 1)


def test_who_wants_one_job_gets_the_first_sound_one(queue: Queue, data: Payloads) -> None:
    for id in "abc":
        queue.enqueue(b"x", id=id)
    data["a"] = data["b"] = b"forged"
    assert one(queue).id == "c"
    assert (queue.counts().broken, queue.counts().running) == (2, 1)
    assert queue.lease() is None


def test_who_waits_is_not_woken_by_a_forged_job(queue: Queue, raw_queue: Queue, data: Payloads, server: Server) -> None:
    """Nor held up by it: the sound job that comes then is handed out."""
    raw_queue.enqueue(b"x", id="forged", delay=0.05)
    data["forged"] = b"forged"

    def follow() -> None:
        wait_until(lambda: raw_queue.counts().broken, "the forged job to be found out")
        raw_queue.enqueue(b"sound", id="sound")

    follower = threading.Thread(target=follow)
    follower.start()
    assert one(queue, wait=10).id == "sound"
    follower.join()
    assert "unsigned" in broken(queue, "forged")


@pytest.mark.parametrize("place", [0, 7, 8, 9, 10, 11, 12, -20, -1])
def test_an_altered_job_is_broken(raw_queue: Queue, data: Payloads, place: int) -> None:
    raw_queue.enqueue(b"x" * 40, id="a")
    forged = bytearray(data["a"])
    forged[place] ^= 1
    data["a"] = bytes(forged)
    assert seen(raw_queue, "a").data == b"", "not shown before it is found out, either"
    assert "refused" in (seen(raw_queue, "a").message or "")
    assert raw_queue.lease() is None
    names_another_key = place in (10, 11, 12)
    assert "refused" in (put_aside if names_another_key else broken)(raw_queue, "a")


def test_a_payload_that_was_moved_to_another_job_is_broken(raw_queue: Queue, data: Payloads) -> None:
    raw_queue.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b")])
    data["a"], data["b"] = data["b"], data["a"]
    assert raw_queue.lease_many(2) == []
    assert "altered or moved" in broken(raw_queue, "a")
    assert "altered or moved" in broken(raw_queue, "b")


def test_a_payload_that_was_moved_to_another_queue_is_broken(app: Windlass, raw_queue: Queue, data: Payloads) -> None:
    other = app.queue("elsewhere")
    other.enqueue(b"1", id="a")
    raw_queue.enqueue(b"2", id="a")
    data["a"] = Payloads(data._client, "elsewhere")["a"]
    assert raw_queue.lease() is None
    assert "altered or moved" in broken(raw_queue, "a")
    other.purge()


def test_a_result_is_no_payload_and_a_payload_no_result(
    app: Windlass, raw_queue: Queue, data: Payloads, client: redis.Redis
) -> None:
    for id in "abc":
        raw_queue.enqueue(b'{"n":1}', id=id)
    first, second, _ = raw_queue.lease_many(3)
    payload = data["b"]
    kept = [Completed(lease, Kept(b'"secret"', 60_000)) for lease in (first, second)]
    assert settle(raw_queue, *kept) == (True, True)
    assert app.job(raw_queue.name, "a").result(timeout=LIMIT_S) == "secret"

    result = client.get(result_key(raw_queue.name, "a"))
    assert isinstance(result, bytes)
    assert result.startswith(b"d" + SEALED)
    data["c"] = result[1:]
    assert "refused" in (seen(raw_queue, "c").message or "")
    for forged in (b'd"forged"', b"d" + payload, result):  # unsigned, another purpose, another job
        client.set(result_key(raw_queue.name, "b"), forged, px=60_000)
        with pytest.raises(Undecodable, match=r"the result of job 'b' of queue .* refused"):
            app.job(raw_queue.name, "b").result(timeout=LIMIT_S)


def test_what_is_pushed_into_the_inbox_is_unsigned(queue: Queue, raw_queue: Queue, client: redis.Redis) -> None:
    client.lpush(queue_key(raw_queue.name, "inbox"), b'{"task":"pay"}')
    assert queue.lease() is None
    (record,) = queue.jobs("broken").jobs
    assert "unsigned" in (record.message or "")


def test_a_refused_job_that_is_revived_is_refused_again(raw_queue: Queue, data: Payloads) -> None:
    raw_queue.enqueue(b"x", id="a")
    data["a"] = b"forged"
    assert raw_queue.lease() is None
    assert raw_queue.revive("a") == [True]
    assert raw_queue.lease() is None
    assert "unsigned" in broken(raw_queue, "a")


def test_what_nobody_waited_for_goes_back_the_refused_as_well(raw_queue: Queue, data: Payloads) -> None:
    raw_queue.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b")])
    data["b"] = b"forged"
    call = layout_of(raw_queue).turn((), LeaseRequest(want=2, seconds=30, holder="idle"))
    turn = perform_call(raw_queue, call)
    assert [lease.id for lease in turn.leases] == ["a"]
    assert [(type(each), each.lease.id, each.lease.data) for each in turn.undecodable] == [(Broken, "b", b"")]
    assert call.undo is not None
    undo = call.undo(turn)
    assert undo is not None
    perform_call(raw_queue, undo)
    assert (raw_queue.counts().ready, raw_queue.counts().running) == (2, 0)


async def test_who_leaves_while_a_forged_job_is_put_aside_holds_nothing(
    raw_queue: Queue, data: Payloads, proxy: FaultProxy, another: Callable[..., Windlass], keys: dict[str, Any]
) -> None:
    """The sound job that came with it was handed to nobody: it goes back with the next call."""
    raw_queue.enqueue_many([RawJob(b"1", id="a"), RawJob(b"2", id="b")])
    data["b"] = b"forged"
    queue = another(url=proxy.url, **keys).queue(raw_queue.name)
    proxy.faults = nth(HANG_REPLY, only={"EVALSHA"}, n=2)
    leasing = asyncio.create_task(queue.alease_many(2, holder="w"))
    await until(lambda: raw_queue.counts().broken == 1)
    leasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leasing
    proxy.faults = None
    assert raw_queue.counts().running == 1
    lease = await queue.alease()
    assert lease is not None
    assert lease.id == "a"
    assert await queue.acomplete(lease)


# -- keys that change, and keys that are missing ---------------------------------------------------


@pytest.mark.parametrize("ring", ["signing_keys", "encryption_keys"])
def test_keys_are_changed_without_a_stop(another: Callable[..., Windlass], client: redis.Redis, ring: str) -> None:
    old, both, new = (
        another(**{ring: keys}).queue("rotating") for keys in ({"a": OLD}, {"b": NEW, "a": OLD}, {"b": NEW})
    )
    for queue, id in ((old, "1"), (both, "2"), (old, "3"), (both, "4")):
        queue.enqueue(b"x", id=id)
    assert [lease.id for lease in both.lease_many(2)] == ["1", "2"], "old and new are read"
    assert [lease.id for lease in new.lease_many(2)] == ["4"], "what the old key sealed is not read without it"
    assert f"with key 'a', which is not among the {ring}" in put_aside(new, "3"), "left for who has that key"
    new.purge()


def test_a_program_without_keys_does_not_take_sealed_bytes_for_data(
    queue: Queue, raw_queue: Queue, another: Callable[..., Windlass], keys: dict[str, Any]
) -> None:
    queue.enqueue(b"x", id="a")
    bare = another().queue(raw_queue.name)
    assert bare.lease() is None
    assert f"with key 'k1', and this app has no keys. Set {next(iter(keys))}" in put_aside(bare, "a")
    assert queue.update("a", delay=0), "nothing is lost: who has the keys gets it, after five minutes by itself"
    assert one(queue).data == b"x"


async def test_other_languages_get_no_forged_job(app: Windlass, raw_queue: Queue, data: Payloads) -> None:
    dispatcher = NativeDispatcher(app)
    for id in "ab":
        assert await dispatcher.add(raw_queue.name, id, 5, b'"x"')
    data["a"] = b'"forged"'
    assert await dispatcher.idle(raw_queue.name, "w1", 0)
    assert await dispatcher.idle(raw_queue.name, "w2", 0)
    (found,) = await dispatcher.dispatch(raw_queue.name, ["w1", "w2"])
    assert (found.uuid, found.data) == ("b", b'"x"')
    assert "unsigned" in broken(raw_queue, "a")
    assert await dispatcher.finish(raw_queue.name, found.worker, 0, "b", "", b"")


# -- what jobs leave behind ------------------------------------------------------------------------


def test_what_a_job_hands_over_is_sealed_for_where_it_goes(app: Windlass, raw_queue: Queue, data: Payloads) -> None:
    other = app.queue("handed-over")
    raw_queue.enqueue(b"x")
    children = (HandOver(raw_queue.name, NewJob("near", b"1")), HandOver("handed-over", NewJob("far", b"2")))
    assert settle(raw_queue, Completed(one(raw_queue), None, children)) == (True,)
    assert data["near"].startswith(SEALED)
    assert one(raw_queue).data == b"1"
    (parcel,) = perform(raw_queue, lambda layout: layout.outbox(10))
    assert parcel.data.startswith(SEALED)
    assert run_flow(app, lambda session: empty_outbox(session, layout_of(raw_queue), app.layout)) == 1
    lease = one(other)
    assert (lease.id, lease.data) == ("far", b"2")
    assert other.complete(lease)


@pytest.fixture
def failure(raw_queue: Queue) -> str:
    """The id of a job that tells a failure handler of job `a`."""
    perform(raw_queue, lambda layout: layout.beat("w", 30, register=True, failure_handler=Limits()))
    raw_queue.enqueue(b"x", id="a")
    assert raw_queue.fail(one(raw_queue), "no")
    (record,) = raw_queue.jobs("ready").jobs
    return record.id


def test_a_failure_handler_gets_the_data_of_the_job_that_failed(raw_queue: Queue, failure: str) -> None:
    record = seen(raw_queue, failure)
    assert record.failed is not None
    assert (record.failed.id, record.failed.data) == ("a", b"x")
    lease = one(raw_queue)
    assert lease.is_failure_job
    told = layout_of(raw_queue).failure(lease)
    assert (told.id, told.data, told.message) == ("a", b"x", "no")
    assert settle(raw_queue, Failed(lease, "the handler failed")) == (True,)
    dead = seen(raw_queue, failure)
    assert (dead.state, dead.failed and dead.failed.data) == ("dead", b"x")
    assert raw_queue.revive(failure) == [True]
    assert layout_of(raw_queue).failure(one(raw_queue)).data == b"x"


def test_a_failure_that_tells_of_a_forged_job_is_broken(
    raw_queue: Queue, failure: str, data: Payloads, client: redis.Redis
) -> None:
    raw = Hash(client, raw_queue.name, "data")
    record = raw[failure]
    grave = record[: record.index(SEALED)]
    raw_queue.enqueue(b"z", id="c")
    for forged in (
        grave + add_sum(b"forged"),
        grave + raw["c"],  # of another job
        record.replace(b"\x00\x01a", b"\x00\x01c", 1),  # said of another job
        raw["c"],
        record[:20],
        b"",
    ):
        raw[failure] = forged
        assert seen(raw_queue, failure).data == b""
        leases = raw_queue.lease_many(3)
        assert all(not lease.is_failure_job for lease in leases)
        for lease in leases:
            raw_queue.release(lease)
        assert broken(raw_queue, failure)
        assert raw_queue.revive(failure) == [True]


def test_a_plain_job_that_is_called_a_failure_is_broken(raw_queue: Queue, data: Payloads, client: redis.Redis) -> None:
    """The mark of a caught failure is not sealed: whoever sets it makes no handler run."""
    raw_queue.enqueue(b"x", id="a", priority=3)
    meta = Hash(client, raw_queue.name, "meta")
    assert raw_queue.retry(one(raw_queue), delay=0)
    record = bytearray(meta["a"])
    record[1] |= 2
    meta["a"] = bytes(record)
    assert raw_queue.lease() is None
    assert broken(raw_queue, "a")


# -- schedules -------------------------------------------------------------------------------------


@pytest.fixture
def records(client: redis.Redis, raw_queue: Queue) -> Hash:
    """The records of schedules as they lie in the server."""
    return Hash(client, raw_queue.name, "schedules")


def test_a_schedule_is_sealed_and_so_are_its_jobs(
    app: Windlass, raw_queue: Queue, at: Clock, data: Payloads, records: Hash
) -> None:
    name = raw_queue.name
    app.schedules.add("hourly", (name, b"secret"), every="1h", overlap="allow", catch_up="all")
    assert b"sealed" in records["hourly"]
    at(NOON + 3 * HOUR)
    assert ticker_of(app, name)().enqueued == 3
    assert data["hourly@2026-06-01T13:00:00Z"].startswith(SEALED)
    leases = raw_queue.lease_many(10)
    assert [lease.data for lease in leases] == [b"secret"] * 3
    assert app.schedules.pause(name, "hourly")
    assert app.schedules.resume(name, "hourly")
    (record,) = app.schedules.list(name)
    assert record.schedule is not None
    assert (record.fired, record.schedule.data) == (3, b"secret")
    receipt = app.schedules.run_now(name, "hourly")
    assert receipt is not None
    assert one(raw_queue).data == b"secret"
    # The jobs of a schedule share one payload, which is theirs alone.
    raw_queue.enqueue(b"x", id="other")
    data["other"] = data[leases[0].id]
    assert raw_queue.lease() is None
    assert "altered or moved" in broken(raw_queue, "other")


def test_a_forged_schedule_is_shown_as_such_and_never_ticks(
    app: Windlass, raw_queue: Queue, at: Clock, records: Hash
) -> None:
    name = raw_queue.name
    app.schedules.add("a", (name, b"a"), every="1h")
    app.schedules.add("b", (name, b"b"), every="1h")
    genuine = records["a"]
    forged = {
        "unsigned": json.encode(
            {
                "version": 1,
                "declared": False,
                "data": "Zm9yZ2Vk",
                "catch_up": "one",
                "overlap": "skip",
                "every": 3600000,
            }
        ),
        "moved": records["b"],
        "altered": genuine.replace(b'"}', b'AA"}'),
        "beginning": genuine.replace(b'"declared":false', b'"declared":true'),
        "no base64": b'{"version":1,"declared":false,"sealed":"A"}',
        "no seal": b'{"version":1,"declared":false,"sealed":"AAAA"}',
    }
    at(NOON + HOUR)
    for what, record in forged.items():
        records["a"] = record
        found = app.schedules.get(name, "a")
        assert found is not None
        assert found.schedule is None, what
        assert "refused" in (found.problem or ""), what
        assert ticker_of(app, name)(declared("a", name)).unreadable == ("a",), what
        assert "a" not in [job.id for job in raw_queue.jobs("ready").jobs], what
        with pytest.raises(KeyConflict, match="Delete it first"):
            app.schedules.pause(name, "a")
    assert [job.id for job in raw_queue.jobs("ready").jobs] == ["b"], "the others go on"
    assert app.schedules.delete(name, "a")


def test_a_program_without_keys_leaves_sealed_schedules_alone(
    app: Windlass, raw_queue: Queue, at: Clock, another: Callable[..., Windlass], records: Hash
) -> None:
    name, bare = raw_queue.name, another()
    run_flow(app, declare(app.layout(name), [declared("mine", name)]))
    before = records["mine"]
    at(NOON + HOUR)
    assert run_flow(bare, declare(bare.layout(name), [declared("mine", name)])) == ("mine",)
    (record,) = bare.schedules.list(name)
    assert "this app has no keys" in (record.problem or "")
    assert ticker_of(bare, name)(declared("mine", name)).unreadable == ("mine",)
    assert ticker_of(app, name)().enqueued == 0, "it is for those to tick who declare it, sealed or not"
    assert records["mine"] == before
    assert ticker_of(app, name)(declared("mine", name)).enqueued == 1
    assert one(raw_queue).data == b"code"


def test_schedules_in_code_are_sealed_anew_with_a_new_key(
    raw_queue: Queue, at: Clock, another: Callable[..., Windlass], records: Hash
) -> None:
    name = raw_queue.name
    both, new = (another(signing_keys=keys) for keys in ({"new": OLD, "k1": NEW}, {"new": OLD}))
    old = another(**SIGNED)
    run_flow(old, declare(old.layout(name), [declared("mine", name)]))
    run_flow(both, declare(both.layout(name), [declared("mine", name)]))
    resealed = records["mine"]
    run_flow(both, declare(both.layout(name), [declared("mine", name)]))
    assert records["mine"] == resealed, "once is enough"
    (record,) = new.schedules.list(name)
    assert record.problem is None


# -- a worker --------------------------------------------------------------------------------------


async def test_a_worker_runs_what_is_sealed_and_puts_the_rest_among_the_broken(
    app: Windlass, raw_queue: Queue, data: Payloads, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[object] = []

    @app.task(queue=raw_queue.name, keep_result=60)
    async def pay(whom: str) -> str:
        ran.append(whom)
        return f"paid {whom}"

    handles: list[JobHandle[str]] = [await pay.using(id=id).aenqueue(id) for id in ("alice", "bob", "carol")]
    data["bob"] = b'{"task":"pay","args":["mallory"]}'
    data["carol"] = data["alice"]
    worker = app.worker([raw_queue.name])
    working = asyncio.create_task(worker.run())
    assert await handles[0].aresult(timeout=10) == "paid alice"
    await until(lambda: raw_queue.counts().broken == 2)
    await worker.stop()
    await working
    assert ran == ["alice"]
    assert "unsigned" in broken(raw_queue, "bob")
    assert "altered or moved" in broken(raw_queue, "carol")
    assert "cannot be decoded: refused: it is unsigned" in caplog.text
    assert "mallory" not in caplog.text


async def test_a_worker_that_found_only_forged_jobs_looks_for_more_at_once(
    app: Windlass, raw_queue: Queue, data: Payloads
) -> None:
    raw_queue.enqueue(b"x", id="a")
    data["a"] = b"forged"
    raw_queue.beat("w", register=True)
    consumer = QueueConsumer(app, raw_queue.name, 1, frozenset({"loop"}), "w", 15.0, lambda: None)
    _, turn = await consumer.turn(1)
    assert [outcome.lease.id for outcome in turn.undecodable] == ["a"]
    assert not consumer.poll.looks_empty
    assert consumer.wants_poll(0.0), "there may be sound ones behind it"
    assert settle(raw_queue, *turn.undecodable) == (True,)


async def test_a_worker_without_keys_gives_no_handler_sealed_bytes(
    app: Windlass, raw_queue: Queue, another: Callable[..., Windlass]
) -> None:
    bare, got = another(), []

    @bare.handler(raw_queue.name)
    async def handle(payload: bytes) -> None:
        got.append(payload)

    raw_queue.enqueue(b"secret", id="a")
    bare.queue(raw_queue.name).enqueue(b"plain")
    worker = bare.worker()
    working = asyncio.create_task(worker.run())
    await until(lambda: bool(got) and raw_queue.counts().parked == 1)
    await worker.stop()
    await working
    assert got == [b"plain"]
    assert "this app has no keys" in put_aside(bare.queue(raw_queue.name), "a")


# -- nothing is forgotten --------------------------------------------------------------------------

# What the port can be asked that has nothing to do with payloads: what goes in and out are ids, numbers and names.
_WITHOUT_PAYLOADS = {
    "audit",
    "beat",
    "cancel",
    "cancel_channel",
    "check",
    "counts",
    "event_channel",
    "extend",
    "unregister",
    "forget_names",
    "probe",
    "id_of",
    "unregister_waiter",
    "obey_cancel",
    "pause",
    "progress",
    "purge",
    "unregister_holder",
    "revive",
    "tags",
    "unpark",
    "wake_channel",
    "watch",
}
# These carry payloads that are sealed already, or were opened already.
_PASSED_ON = {"failure", "forward", "held", "outbox"}


def test_whatever_the_port_can_be_asked_is_sealed_or_has_no_payload() -> None:
    """Who adds a method to the port must decide about it here."""
    asked = {name for name, method in vars(Layout).items() if callable(method) and not name.startswith("_")}
    sealed = {name for name in vars(SealedLayout) if not name.startswith("_")}
    assert asked == sealed | _WITHOUT_PAYLOADS | _PASSED_ON
    assert not sealed & (_WITHOUT_PAYLOADS | _PASSED_ON)
    for name in sealed:
        assert signature(getattr(SealedLayout, name)).parameters == signature(getattr(Layout, name)).parameters


def test_a_program_with_wrong_keys_leaves_the_queue_to_others(server: Server) -> None:
    """It is told, and the jobs beyond one run are given back."""
    right, wrong = os.urandom(32), os.urandom(32)
    with (
        Windlass(server.url, signing_keys={"k": right}) as ours,
        Windlass(server.url, signing_keys={"k": wrong}) as other,
    ):
        queue = ours.queue("sealed-guard")
        queue.enqueue_many([RawJob(b"x", id=f"job-{n}") for n in range(5 * MAX_UNDECODABLE_IN_A_ROW)])
        with pytest.raises(TooManyUndecodable, match="keys, then revive or purge"):
            other.queue("sealed-guard").lease()
        counts = queue.counts()
        assert 0 < counts.broken <= MAX_UNDECODABLE_IN_A_ROW
        assert (counts.broken + counts.ready, counts.running) == (5 * MAX_UNDECODABLE_IN_A_ROW, 0)
        assert all(queue.revive([job.id for job in queue.jobs("broken", limit=100).jobs]))
        assert (
            queue.complete_many(queue.lease_many(5 * MAX_UNDECODABLE_IN_A_ROW)) == [True] * 5 * MAX_UNDECODABLE_IN_A_ROW
        )
