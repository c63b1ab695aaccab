"""Bad input: each gets an error of the tree that says what is wrong and what to do, and nothing is half-written.

In the order of the arguments: names, ids, data, priorities, times, lengths, leases, options, URLs; and at the end
the keys of a queue that somebody else has used for something else.
"""

from __future__ import annotations

import math
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.contract.performing import perform, settle
from tests.support.servers import Server
from windlass import Lease, Limits, Queue, RawJob, State, Windlass
from windlass.errors import (
    ForeignLease,
    InvalidId,
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidTime,
    KeyConflict,
    PayloadTooLarge,
    ServerUnreachable,
    WindlassError,
)
from windlass.job import NewJob
from windlass.layout import Parcel
from windlass.layouts.native.keys import NAMES, queue_key, result_key
from windlass.outcome import Broken, Child, Completed, Crashed, Uncaught, Unknown


def short(value: object) -> str:
    """How a value is named in the name of a test."""
    return repr(value)[:24]


Refused = Callable[..., AbstractContextManager[None]]
Dump = dict[bytes, bytes]


def dump(client: redis.Redis) -> Dump:
    """Everything on the server, byte for byte."""
    return {bytes(key): bytes(client.dump(key) or b"") for key in client.scan_iter()}


def restore(client: redis.Redis, dumped: Dump) -> None:
    """Makes the server hold that, and nothing else."""
    with client.pipeline() as pipe:
        for key in client.scan_iter():
            pipe.delete(key)
        for key, value in dumped.items():
            pipe.restore(key, 0, value)
        pipe.execute()


@pytest.fixture
def refused(client: redis.Redis) -> Refused:
    """The block raises exactly this error, its message has these words, and not one byte changes on the server."""

    @contextmanager
    def check(error: type[WindlassError], *words: str) -> Iterator[None]:
        before = dump(client)
        with pytest.raises(WindlassError) as caught:
            yield
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value)
        assert dump(client) == before

    return check


def test_bad_input_is_a_value_error_of_the_tree() -> None:
    for error in (InvalidName, InvalidId, InvalidPayload, PayloadTooLarge, InvalidOption, InvalidTime, ForeignLease):
        assert issubclass(error, InvalidInput)
        assert issubclass(error, WindlassError)
        assert issubclass(error, ValueError)


# -- names -----------------------------------------------------------------------------------------

BAD_NAMES: list[Any] = [
    "",
    "{braces}",
    "a{b",
    "co:lon",
    "two words",
    " ",
    "nul\0",
    "newline\n",
    "tab\t",
    "sla/sh",
    "star*",
    "ümlaut",
    "\udcff",
    "-hyphen",
    ".dot",
    "_underscore",
    "x" * 129,
    "x" * 1000,
    None,
    42,
    b"bytes",
    ["list"],
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=short)
def test_a_name_that_is_none(queue: Queue, app: Windlass, refused: Refused, name: Any) -> None:
    with refused(InvalidName, repr(name)[:70], "queue name", "1 to 128 letters, digits"):
        app.queue(name)
    if name is None:
        return  # a holder may be left away
    queue.enqueue(b"")
    for verb in (lambda: queue.lease(holder=name), lambda: queue.lease_many(2, holder=name), lambda: queue.beat(name)):
        with refused(InvalidName, repr(name)[:70], "holder name"):
            verb()


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "x" * 128])
def test_a_name_that_is_one(app: Windlass, client: redis.Redis, name: str) -> None:
    queue = app.queue(name)
    queue.enqueue(b"", id="a")
    assert queue.beat(name, register=True) is False
    assert drain(queue) == ["a"]
    queue.purge()


def test_a_long_name_is_not_printed_whole(app: Windlass) -> None:
    with pytest.raises(InvalidName) as caught:
        app.queue("x" * 100_000)
    assert len(str(caught.value)) < 300


# -- ids -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "word"),
    [
        ("", "1 to 512 bytes, not 0"),
        ("x" * 513, "512 bytes, not 513"),
        ("ö" * 257, "512 bytes, not 514"),
        (b"bytes", "string, not bytes"),
        (42, "string, not int"),
        (["a"], "string, not list"),
        ("\ud800", "Unicode"),
        ("a\udcffb", "Unicode"),
    ],
)
def test_an_id_that_is_none(queue: Queue, refused: Refused, id: Any, word: str) -> None:
    for verb in (
        lambda: queue.enqueue(b"", id=id),
        lambda: queue.enqueue_many([b"good", RawJob(b"", id=id)]),
        lambda: queue.update(id, data=b""),
        lambda: queue.cancel(id),
        lambda: queue.get(id),
    ):
        with refused(InvalidId, "job id", word):
            verb()


@pytest.mark.parametrize("verb", ["update", "cancel", "get"])
def test_no_id_where_one_is_needed(queue: Queue, refused: Refused, verb: str) -> None:
    options = {"data": b""} if verb == "update" else {}
    with refused(InvalidId, "string, not NoneType"):
        getattr(queue, verb)(None, **options)


# -- data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", ["text", None, 42, 1.5, {"a": 1}, ["a"], object()], ids=lambda data: type(data).__name__
)
def test_data_that_is_not_bytes(queue: Queue, refused: Refused, data: Any) -> None:
    queue.enqueue(b"", id="a")
    for verb in (
        lambda: queue.enqueue(data),
        lambda: queue.enqueue(data, id="a"),
        lambda: queue.enqueue_many([b"good", data, b"good"]),
        lambda: queue.enqueue_many([b"good", RawJob(data)]),
        lambda: queue.update("a", data=data),
    ):
        with refused(InvalidPayload, "must be bytes", type(data).__name__, "encode"):
            verb()


def test_bytes_are_not_many_jobs(queue: Queue, refused: Refused) -> None:
    with refused(InvalidPayload, "must be bytes, not int"):
        queue.enqueue_many(b"one")  # type: ignore[arg-type]


MEBIBYTE = 1024 * 1024


def test_data_over_the_limit(queue: Queue, refused: Refused) -> None:
    queue.enqueue(bytes(MEBIBYTE), id="a")
    over = bytes(MEBIBYTE + 1)
    for verb in (
        lambda: queue.enqueue(over),
        lambda: queue.enqueue_many([b"good", over]),
        lambda: queue.enqueue_many([b"good", RawJob(over, id="b")]),
        lambda: queue.update("a", data=over),
    ):
        with refused(PayloadTooLarge, "1,048,577 bytes", "limit is 1,048,576", "reference", "max_payload"):
            verb()
    assert take(queue).data == bytes(MEBIBYTE), "exactly at the limit it goes"


def test_the_limit_can_be_set(server: Server, client: redis.Redis, refused: Refused) -> None:
    with Windlass(server.url, max_payload=10) as app:
        queue = app.queue("small")
        queue.enqueue(b"x" * 10)
        with refused(PayloadTooLarge, "11 bytes", "limit is 10"):
            queue.enqueue(b"x" * 11)
        drain(queue)
    with Windlass(server.url, max_payload=2 * MEBIBYTE) as app:
        queue = app.queue("large")
        queue.enqueue(bytes(2 * MEBIBYTE))
        assert len(take(queue).data) == 2 * MEBIBYTE
        queue.purge()


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1M", None, 2**40])
def test_a_limit_that_is_none(server: Server, limit: Any) -> None:
    with pytest.raises(InvalidOption, match="max_payload must be a whole number from 1"):
        Windlass(server.url, max_payload=limit)


# -- whole numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [10, -1, 1.5, 5.0, True, "5", None, math.nan, 2**70])
def test_a_priority_that_is_none(queue: Queue, refused: Refused, priority: Any) -> None:
    queue.enqueue(b"", id="a")
    for verb in (
        lambda: queue.enqueue(b"", priority=priority),
        lambda: queue.enqueue(b"", id="a", priority=priority, update_priority=False),
        lambda: queue.enqueue_many([b"good", RawJob(b"", priority=priority)]),
        lambda: queue.update("a", priority=priority),
    ):
        with refused(InvalidOption, "priority", "from 0 to 9", repr(priority)):
            verb()


@pytest.mark.parametrize("name", ["max_failures", "max_stalls"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, 2**32])
def test_a_count_that_is_none(queue: Queue, refused: Refused, name: str, value: Any) -> None:
    queue.enqueue(b"", id="a")
    option: dict[str, Any] = {name: value}
    for verb in (
        lambda: queue.enqueue(b"", **option),
        lambda: queue.enqueue_many([b"good", RawJob(b"", **option)]),
        lambda: queue.update("a", **option),
    ):
        with refused(InvalidOption, name, "whole number from 0 to", repr(value)):
            verb()


@pytest.mark.parametrize("n", [0, -1, 1001, 1.0, True, "1", None])
def test_a_number_of_jobs_that_is_none(queue: Queue, refused: Refused, n: Any) -> None:
    queue.enqueue(b"")
    with refused(InvalidOption, "n must be a whole number from 1 to 1000", repr(n)):
        queue.lease_many(n)
    with refused(InvalidOption, "limit must be a whole number from 1 to 1000", repr(n)):
        queue.jobs("ready", limit=n)


@pytest.mark.parametrize("most", [-1, 1.5, True, "3", None, 10**9])
def test_a_bound_of_the_dead_that_is_none(server: Server, most: Any) -> None:
    with pytest.raises(InvalidOption, match="max_dead must be a whole number from 0"):
        Windlass(server.url, max_dead=most)


# -- moments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_at", [0, 1, -1, -1e300, 1_750_000_000.5, datetime(1, 1, 2, tzinfo=UTC)])
def test_a_run_time_in_the_past_runs_now(queue: Queue, run_at: Any) -> None:
    queue.enqueue(b"", id="a", run_at=run_at)
    lease = take(queue)
    assert queue.retry(lease, run_at=run_at)
    assert drain(queue) == ["a"]


@pytest.mark.parametrize(
    ("run_at", "word"),
    [
        (math.nan, "seconds since 1970"),
        (math.inf, "seconds since 1970"),
        (-math.inf, "seconds since 1970"),
        (253402300800, "beyond the year 9999"),
        (1_900_000_000_000.5, "not milliseconds"),
        (1e300, "beyond the year 9999"),
        (10**400, "beyond the year 9999"),
        (datetime(2030, 1, 1), "time zone"),
        ("2030-01-01", "seconds since 1970 or a datetime"),
        (True, "seconds since 1970 or a datetime"),
        (timedelta(1), "seconds since 1970 or a datetime"),
    ],
    ids=short,
)
def test_a_run_time_that_is_none(queue: Queue, refused: Refused, run_at: Any, word: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    queue.enqueue(b"", id="b")
    for verb in (
        lambda: queue.enqueue(b"", run_at=run_at),
        lambda: queue.enqueue_many([b"good", RawJob(b"", run_at=run_at)]),
        lambda: queue.update("b", run_at=run_at),
        lambda: queue.retry(lease, run_at=run_at),
    ):
        with refused(InvalidTime, "run_at", word):
            verb()


@pytest.mark.parametrize(
    ("delay", "word"),
    [
        (math.nan, "finite"),
        (math.inf, "finite"),
        ("soon", "500ms"),
        ("", "500ms"),
        ("5", "500ms"),
        ("5 parsecs", "500ms"),
        ("-5s", "500ms"),
        ("1e3s", "500ms"),
        ("5s and more", "500ms"),
        (True, "timedelta"),
        (b"5s", "timedelta"),
        (datetime.now(UTC), "timedelta"),
        (1e12, "year 9999"),
        (timedelta.max, "year 9999"),
        (10**400, "year 9999"),
    ],
    ids=short,
)
def test_a_delay_that_is_none(queue: Queue, refused: Refused, delay: Any, word: str) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    for verb in (
        lambda: queue.enqueue(b"", delay=delay),
        lambda: queue.enqueue_many([b"good", RawJob(b"", delay=delay)]),
        lambda: queue.update("a", delay=delay),
        lambda: queue.retry(lease, delay=delay),
    ):
        with refused(InvalidTime, "delay", word):
            verb()


def test_two_run_times_are_one_too_many(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    both: dict[str, Any] = {"run_at": time.time() + 5, "delay": 5}
    for verb in (
        lambda: queue.enqueue(b"", **both),
        lambda: queue.enqueue_many([b"good", RawJob(b"", **both)]),
        lambda: queue.update("a", **both),
        lambda: queue.retry(lease, **both),
    ):
        with refused(InvalidTime, "run_at or delay, not both"):
            verb()


# -- lengths of time -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds", [0, -1, -0.5, 0.0001, math.nan, math.inf, "0s", "x", None, True, 31 * 86400, 10**400], ids=short
)
def test_lease_seconds_that_are_none(queue: Queue, refused: Refused, seconds: Any) -> None:
    queue.enqueue(b"", id="a")
    lease = take(queue)
    queue.enqueue(b"", id="b")
    for verb in (
        lambda: queue.lease(seconds),
        lambda: queue.lease_many(2, seconds),
        lambda: queue.extend(lease, seconds),
        lambda: queue.beat("worker-1", seconds, register=True),
    ):
        with refused(InvalidOption, "seconds"):
            verb()


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, "x", None, True])
def test_a_wait_that_is_none(queue: Queue, refused: Refused, wait: Any) -> None:
    with refused(InvalidOption, "wait"):
        queue.lease(wait=wait)


@pytest.mark.parametrize("name", ["min_backoff", "max_backoff"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "x", None, True, 10**400], ids=short)
def test_a_backoff_that_is_none(queue: Queue, refused: Refused, name: str, value: Any) -> None:
    queue.enqueue(b"", id="a")
    option: dict[str, Any] = {name: value}
    for verb in (
        lambda: queue.enqueue(b"", **option),
        lambda: queue.enqueue_many([b"good", RawJob(b"", **option)]),
        lambda: queue.update("a", **option),
    ):
        with refused(InvalidOption, name):
            verb()


@pytest.mark.parametrize("name", ["retry_for", "call_timeout"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "x", None, True])
def test_a_patience_that_is_none(server: Server, name: str, value: Any) -> None:
    option: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOption, match=name):
        Windlass(server.url, **option)


def test_no_time_at_all_for_a_call(server: Server) -> None:
    with pytest.raises(InvalidOption, match="call_timeout"):
        Windlass(server.url, call_timeout=0)


# -- progress, messages, states, cursors -----------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, True, "0.5", None])
def test_progress_that_is_none(queue: Queue, refused: Refused, value: Any) -> None:
    queue.enqueue(b"")
    lease = take(queue)
    with refused(InvalidOption, "progress must be a number from 0 to 1", repr(value)):
        queue.progress(lease, value)


@pytest.mark.parametrize("message", [b"bytes", 42, None, ValueError("x")])
def test_a_message_that_is_no_text(queue: Queue, refused: Refused, message: Any) -> None:
    queue.enqueue(b"")
    lease = take(queue)
    verbs: list[Callable[[], Any]] = [lambda: queue.fail(lease, message), lambda: queue.retry(lease, message=message)]
    for verb in verbs:
        with refused(InvalidOption, "message must be text", type(message).__name__):
            verb()


@pytest.mark.parametrize("state", ["running", "", "READY", 5, b"ready"])
def test_a_state_that_is_none(queue: Queue, refused: Refused, state: Any) -> None:
    queue.enqueue(b"")
    for verb in (lambda: queue.jobs(state), lambda: queue.purge(state)):
        with refused(InvalidOption, repr(state), "ready, scheduled, blocked, leased, dead"):
            verb()


def test_leased_jobs_are_not_purged_by_themselves(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"")
    take(queue)
    with refused(InvalidOption, "cancel them, or purge the whole queue"):
        queue.purge("leased")


@pytest.mark.parametrize("state", list(State))
def test_a_cursor_that_is_none(queue: Queue, refused: Refused, state: State) -> None:
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    strange: list[Any] = ["?", "abc", "YWJj", "\udcff", 5, b"YWJj"]
    if state is not State.READY:
        strange.append(queue.jobs(State.READY, limit=1).cursor)  # one of ours, but of other pages
    for cursor in strange:
        with refused(InvalidOption, "cursor"):
            queue.jobs(state, cursor=cursor)


# -- leases ----------------------------------------------------------------------------------------

SETTLE: dict[str, Callable[[Queue, Any], Any]] = {
    "complete": lambda queue, lease: queue.complete(lease),
    "complete_many": lambda queue, lease: queue.complete_many([lease]),
    "release": lambda queue, lease: queue.release(lease),
    "retry": lambda queue, lease: queue.retry(lease, delay=0),
    "retry by backoff": lambda queue, lease: queue.retry(lease),
    "fail": lambda queue, lease: queue.fail(lease, "message"),
}
ON_A_LEASE = SETTLE | {
    "extend": lambda queue, lease: queue.extend(lease, 30),
    "progress": lambda queue, lease: queue.progress(lease, 0.5),
}


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_a_lease_of_another_queue(queue: Queue, app: Windlass, refused: Refused, verb: str) -> None:
    queue.enqueue(b"", id="a")
    take(queue)
    other = app.queue("another")
    other.enqueue(b"", id="a")
    lease = take(other)
    with refused(ForeignLease, "'a'", "'another'", repr(queue.name), "settle it there"):
        ON_A_LEASE[verb](queue, lease)
    assert other.complete(lease)


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_what_is_no_lease(queue: Queue, refused: Refused, verb: str) -> None:
    for lease in (None, "a", b"a", 42, {"id": "a"}):
        with refused(ForeignLease, repr(lease), "lease()"):
            ON_A_LEASE[verb](queue, lease)


def test_one_foreign_lease_in_a_batch_settles_none(queue: Queue, app: Windlass, refused: Refused) -> None:
    queue.enqueue_many([b""] * 2)
    first, second = queue.lease_many(2)
    foreign = Lease("another", "a", b"", 1)
    with refused(ForeignLease):
        queue.complete_many([first, foreign, second])
    assert queue.complete_many([first, second]) == [True, True]


@pytest.mark.parametrize("verb", ON_A_LEASE)
def test_a_stale_lease_changes_nothing(
    queue: Queue, client: redis.Redis, later: Callable[[float], None], verb: str
) -> None:
    queue.enqueue(b"", id="a")
    stale = take(queue, seconds=10)
    later(11)
    fresh = take(queue, seconds=1000)
    queue.enqueue(b"", id="a")  # blocked behind the fresh one
    invented = Lease(queue.name, "nobody", b"", 1)
    before = dump(client)
    for lease in (stale, invented):
        assert ON_A_LEASE[verb](queue, lease) in (False, [False])
    after = dump(client)
    if verb not in SETTLE:  # the answer itself is remembered, for a repeat
        for each in (before, after):
            each.pop(queue_key(queue.name, "state").encode())
    assert after == before
    assert queue.complete(fresh)


# -- options ---------------------------------------------------------------------------------------


def test_an_option_that_there_is_not(queue: Queue, app: Windlass, refused: Refused) -> None:
    loose: Any = queue
    queue.enqueue(b"", id="a")
    verbs: list[Callable[[], Any]] = [
        lambda: loose.enqueue(b"", colour="red"),
        lambda: loose.enqueue(b"", id="a", priorty=1),
        lambda: loose.enqueue_many([b"good", RawJob(b"", colour="red")]),  # type: ignore[call-arg]
        lambda: loose.update("a", colour="red"),
        lambda: loose.update("a", data=b"", update_data=True),
    ]
    for verb in verbs:
        with refused(InvalidOption, "has no option"):
            verb()
    wrong: list[Callable[[], Any]] = [
        lambda: loose.lease(colour="red"),
        lambda: loose.retry(None, colour="red"),
        lambda: loose.jobs("ready", colour="red"),
        lambda: loose.clean(colour="red"),
        lambda: Windlass("redis://host", colour="red"),  # type: ignore[call-arg]
    ]
    for verb in wrong:
        with pytest.raises(TypeError, match="colour"):
            verb()


def test_an_update_of_nothing(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"", id="a")
    with refused(InvalidOption, "update needs a change"):
        queue.update("a")
    with refused(InvalidOption, "when=", "give run_at or delay"):
        queue.update("a", when="later")
    with refused(InvalidOption, "when=", "give run_at or delay"):
        queue.update("a", when="later", data=b"")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("if_exists", "replace"),
        ("if_exists", None),
        ("if_exists", True),
        ("update_run_at", "sometimes"),
        ("update_run_at", None),
        ("update_run_at", 1),
        ("update_data", "yes"),
        ("update_priority", 1),
        ("update_max_failures", None),
        ("update_max_stalls", 0),
        ("update_min_backoff", "no"),
        ("update_max_backoff", []),
        ("reset_counts", None),
    ],
)
def test_a_flag_that_is_none(queue: Queue, refused: Refused, option: str, value: Any) -> None:
    queue.enqueue(b"", id="a")
    given: dict[str, Any] = {option: value}
    for verb in (
        lambda: queue.enqueue(b"", id="a", **given),
        lambda: queue.enqueue_many([b"good", RawJob(b"", id="a", **given)]),
    ):
        with refused(InvalidOption, option, repr(value)):
            verb()


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"priority": 10},
        {"run_at": math.nan},
        {"delay": "soon"},
        {"max_failures": -1},
        {"min_backoff": -1},
        {"if_exists": "?"},
        {"colour": "red"},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_one_bad_job_in_a_batch_and_none_is_enqueued(
    queue: Queue, refused: Refused, options: dict[str, Any], place: int
) -> None:
    jobs: list[bytes | RawJob] = [b"good"] * 3000  # more than one call takes
    jobs[place] = RawJob(b"bad", **options)
    before = queue.counts()
    with pytest.raises(InvalidInput):
        queue.enqueue_many(jobs)
    assert queue.counts() == before


# -- URLs ------------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://localhost", "'http'"),
        ("amqp://localhost", "'amqp'"),
        ("REDIS://localhost", "'REDIS'"),
        ("localhost:6379", "as a URL"),
        ("/tmp/redis.sock", "as a URL"),
        ("redis:localhost", "as a URL"),
        ("redis://", "no host"),
        ("redis://:6379", "no host"),
        ("redis://host:port", "cannot be read"),
        ("redis://host:99999", "cannot be read"),
        ("redis://[::1", "cannot be read"),
        ("redis://host/one", "database must be a number"),
        ("redis://host/-1", "database must be a number"),
        ("redis://host?db=x", "database must be a number"),
        ("redis://host?colour=red", "an option that is not known"),
        ("redis://host?ssl_certfile=x", "rediss://"),
        ("unix://", "no socket path"),
        ("redis+sentinel://host:26379", "Sentinel service is missing"),
        ("redis+sentinel:///name", "no host"),
        (5, "as a URL"),
        (b"redis://host", "as a URL"),
    ],
)
def test_a_url_that_is_none(url: Any, word: str) -> None:
    with pytest.raises(WindlassError) as caught:
        Windlass(url)
    assert type(caught.value) is InvalidOption
    assert word in str(caught.value)
    assert "redis://host:6379/0" in str(caught.value), "an example of what can be used"


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@host",
        f"redis://:{SECRET}@host:port",
        f"redis://user:{SECRET}@host/x",
        f"redis://user:{SECRET}@host?colour=red",
        f"redis://user:{SECRET}",  # the host forgotten
        f"redis://user:{SECRET}/x@host",  # an unquoted slash
        f"redis://user:{SECRET}?x@host",
        f"redis://user:{SECRET}#x@host",
        f"redis://:{SECRET}\u2100@host",  # a character that changes the host when it is normalised
        f"redis://:{SECRET}@[::1",
        f"redis+sentinel://host?sentinel_password={SECRET}",
        f":{SECRET}@host",
    ],
)
def test_a_password_is_never_in_a_message(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Windlass(url)
    error: BaseException | None = caught.value
    while error is not None:  # what a traceback shows
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_password_is_never_in_a_repr_nor_in_an_error_of_the_connection() -> None:
    urls = [
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"rediss://user:{SECRET}@127.0.0.1:1/0",
        f"redis+sentinel://user:{SECRET}@127.0.0.1:1/name/0?sentinel_password={SECRET}",
        f"unix://user:{SECRET}@/nowhere/at/all.sock",
    ]
    for url in urls:
        with Windlass(url, retry_for=0) as app:
            queue = app.queue("q")
            assert SECRET not in repr(app) + repr(queue) + repr(vars(app)) + repr(vars(queue))
            with pytest.raises(ServerUnreachable) as caught:
                queue.enqueue(b"")
            assert SECRET not in str(caught.value) + repr(caught.value.__cause__)
            assert "nothing was sent" in str(caught.value)


def test_a_home_is_for_the_embedded_server(server: Server) -> None:
    with pytest.raises(InvalidOption, match="home is the data folder of the embedded server"):
        Windlass(server.url, home="/tmp")


def test_a_closed_app_says_so(server: Server) -> None:
    app = Windlass(server.url)
    app.close()
    app.close()
    with pytest.raises(InvalidOption, match="this app is closed"):
        app.queue("q").counts()


# -- keys that hold something else -----------------------------------------------------------------

_ALL = set(NAMES)
_TURN = _ALL - {"schedules"}
_ROW = {"state", "data", "meta", "progress", "notes"}
_ENQUEUE = {"state", "ready", "scheduled", "leases", "data", "meta", "blocked", "idle"}
_CANCEL = _ENQUEUE - {"idle"} | {"notes", "watched"}

# Each verb, and the keys that it has to do with. With the others it does not care what they hold.
VERBS: dict[str, tuple[Callable[[Queue, Lease], Any], set[str]]] = {
    "enqueue": (lambda queue, _: queue.enqueue(b"new"), _ENQUEUE),
    "enqueue with options": (lambda queue, _: queue.enqueue(b"", priority=1, max_failures=1), _ENQUEUE),
    "enqueue later": (lambda queue, _: queue.enqueue(b"", delay=60), _ENQUEUE),
    "enqueue a ready id": (lambda queue, _: queue.enqueue(b"", id="ready", delay=60), _ENQUEUE),
    "enqueue a scheduled id": (lambda queue, _: queue.enqueue(b"", id="late"), _ENQUEUE),
    "enqueue a running id": (lambda queue, _: queue.enqueue(b"", id="running"), _ENQUEUE),
    "enqueue_many": (lambda queue, _: queue.enqueue_many([b"", RawJob(b"", id="x", delay=60)]), _ENQUEUE),
    "update": (lambda queue, _: queue.update("ready", data=b"new", max_stalls=1), _ENQUEUE),
    "lease": (lambda queue, _: queue.lease(), _TURN),
    "lease_many": (lambda queue, _: queue.lease_many(5, holder="worker-2"), _TURN),
    "lease and wait": (lambda queue, _: queue.lease_many(5, wait=0.01), _TURN),
    "complete": (lambda queue, lease: queue.complete(lease), _TURN),
    "complete_many": (lambda queue, lease: queue.complete_many([lease]), _TURN),
    "release": (lambda queue, lease: queue.release(lease), _TURN),
    "retry": (lambda queue, lease: queue.retry(lease, message="no"), _TURN),
    "fail": (lambda queue, lease: queue.fail(lease, "no"), _TURN),
    "extend": (lambda queue, lease: queue.extend(lease, 60), {"state", "leases", "held", "holders"}),
    "progress": (lambda queue, lease: queue.progress(lease, 0.9), {"state", "leases", "progress", "watched"}),
    "beat": (lambda queue, _: queue.beat("worker-2", register=True), {"state", "holders", "parked"}),
    "cancel": (lambda queue, _: queue.cancel("ready"), _CANCEL),
    "cancel running": (lambda queue, _: queue.cancel("running", running=True), _CANCEL),
    "pause": (lambda queue, _: queue.pause(), {"state", "ready", "idle"}),
    "resume": (lambda queue, _: queue.resume(), {"state", "ready", "idle"}),
    "purge": (lambda queue, _: queue.purge(), _ALL),
    "purge ready": (lambda queue, _: queue.purge("ready"), _ALL),
    "clean": (lambda queue, _: queue.clean(), _TURN),
    "clean deep": (lambda queue, _: queue.clean(deep=True), _TURN),
    "counts": (
        lambda queue, _: queue.counts(),
        {"state", "ready", "scheduled", "leases", "blocked", "dead", "broken", "inbox", "holders", "parked", "outbox"}
        | {"schedules"},
    ),
    "get": (lambda queue, _: queue.get("running"), _ROW | {"leases"}),
    "jobs ready": (lambda queue, _: queue.jobs("ready"), _ROW | {"ready"}),
    "jobs scheduled": (lambda queue, _: queue.jobs("scheduled"), _ROW | {"scheduled"}),
    "jobs leased": (lambda queue, _: queue.jobs("leased"), _ROW | {"leases", "held"}),
    "jobs blocked": (lambda queue, _: queue.jobs("blocked"), {"state", "blocked", "held"}),
    "jobs dead": (lambda queue, _: queue.jobs("dead"), {"state", "dead", "graves"}),
    "jobs broken": (lambda queue, _: queue.jobs("broken"), {"state", "broken", "graves"}),
    "revive": (
        lambda queue, _: queue.revive(["dead", "broken"]),
        {"state", "ready", "scheduled", "dead", "broken", "graves", "data", "meta", "idle"},
    ),
    "crash": (lambda queue, lease: settle(queue, Crashed(lease, "no", True)), _TURN),
    "crash of suspects": (lambda queue, lease: settle(queue, Crashed(lease, "no", False)), _TURN),
    "break": (lambda queue, lease: settle(queue, Broken(lease, "no")), _TURN),
    "put aside": (lambda queue, lease: settle(queue, Unknown(lease, "task")), _TURN),
    "leave uncaught": (lambda queue, lease: settle(queue, Uncaught(lease)), _TURN),
    "hand over": (lambda queue, lease: settle(queue, Completed(lease, children=_children(queue))), _TURN),
    "beat and catch": (
        lambda queue, _: perform(queue, lambda layout: layout.beat("w", 30, register=True, catcher=Limits())),
        {"state", "holders", "parked"},
    ),
    "unpark": (
        lambda queue, _: perform(queue, lambda layout: layout.unpark(["task"])),
        {"state", "ready", "scheduled", "parked", "idle", "meta", "notes"},
    ),
    "watch": (lambda queue, _: perform(queue, lambda layout: layout.watch("ready", 60)), {"state", "watched"}),
    "outbox": (lambda queue, _: perform(queue, lambda layout: layout.outbox(10, [1])), {"state", "outbox"}),
    "forward": (
        lambda queue, _: perform(queue, lambda layout: layout.forward("other", [Parcel(1, "here", "x", b"", b"")])),
        _ENQUEUE,
    ),
}


def _children(queue: Queue) -> tuple[Child, ...]:
    return (Child(queue.name, NewJob("child", b"")), Child("other", NewJob("child", b"")))


def occupy(queue: Queue, client: redis.Redis) -> Lease:
    """A queue with something in each of its keys; the lease on the job that runs."""
    queue.enqueue(b"", id="dead", priority=0)
    assert queue.fail(take(queue), "dead")
    queue.enqueue(b"", id="running", priority=0, max_failures=3)
    assert queue.retry(take(queue), delay=0, message="once")
    lease = take(queue, seconds=600)
    assert queue.progress(lease, 0.5)
    queue.enqueue(b"", id="running")
    queue.enqueue(b"", id="broken", priority=0)
    assert settle(queue, Broken(take(queue), "not JSON")) == (True,)
    queue.enqueue(b"", id="aside", priority=0)
    assert settle(queue, Unknown(take(queue), "task")) == (True,)
    queue.enqueue(b"", id="parent", priority=0)
    assert settle(queue, Completed(take(queue), children=(Child("other", NewJob("child", b"")),))) == (True,)
    assert perform(queue, lambda layout: layout.watch("running", 600))
    schedules = queue._layout.schedules
    assert schedules is not None
    assert perform(queue, lambda _: schedules.put("nightly", None, b"{}", 2**42, keep_tick=False))
    queue.enqueue(b"", id="ready")
    queue.enqueue(b"", id="late", delay=600)
    client.lpush(queue_key(queue.name, "inbox"), "pushed")
    client.zadd(queue_key(queue.name, "idle"), {"gone": 2**45})
    assert len(dump(client)) == len(NAMES)
    return lease


FOREIGN: dict[str, Callable[[redis.Redis, str], Any]] = {
    "string": lambda client, key: client.set(key, "somebody else's"),
    "set": lambda client, key: client.sadd(key, "somebody", "else's"),
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("verb", VERBS)
def test_a_key_of_ours_that_holds_another_type(raw_queue: Queue, client: redis.Redis, verb: str, kind: str) -> None:
    queue = raw_queue
    lease = occupy(queue, client)
    whole = dump(client)
    run, concerned = VERBS[verb]
    noticed: set[str] = set()
    for name in NAMES:
        key = queue_key(queue.name, name)
        client.delete(key)
        FOREIGN[kind](client, key)
        before = dump(client)
        try:
            run(queue, lease)
        except KeyConflict as conflict:
            noticed.add(name)
            problem = str(conflict)
            unchanged = dump(client) == before
        else:
            problem = ""
            unchanged = client.dump(key) == before[key.encode()]
        restore(client, whole)
        assert unchanged, f"{verb} changed something though {name} is not ours"
        if problem:
            assert repr(queue.name) in problem
            assert "rename or delete that key" in problem
    restore(client, {})
    assert noticed == concerned


def test_the_message_says_which_key_it_is(raw_queue: Queue, client: redis.Redis) -> None:
    queue = raw_queue
    occupy(queue, client)
    whole = dump(client)
    messages: dict[str, str] = {}
    for name in NAMES:
        key = queue_key(queue.name, name)
        client.delete(key)
        client.set(key, "somebody else's")
        with pytest.raises(KeyConflict) as caught:
            queue.purge()
        messages[key] = str(caught.value)
        restore(client, whole)
    restore(client, {})
    assert [key for key, message in messages.items() if key not in message] == []


def test_a_result_that_is_not_ours(raw_queue: Queue, client: redis.Redis) -> None:
    key = result_key(raw_queue.name, "a")
    client.lpush(key, "somebody else's")
    with pytest.raises(KeyConflict, match=re.escape(key)):
        perform(raw_queue, lambda layout: layout.result("a"))
    client.delete(key)


def test_other_keys_of_the_server_are_left_alone(queue: Queue, client: redis.Redis) -> None:
    client.set("windlass", "mine")
    client.set(f"windlass:{queue.name}:ready", "mine")
    queue.enqueue(b"", id="a")
    assert drain(queue) == ["a"]
    assert queue.purge() == 0
    assert client.get("windlass") == client.get(f"windlass:{queue.name}:ready") == b"mine"
    client.delete("windlass", f"windlass:{queue.name}:ready")


def test_a_queue_that_was_written_by_a_stranger_is_still_read(queue: Queue, client: redis.Redis) -> None:
    """Records of the right type and the wrong shape: no crash, and the payload is safe."""
    queue.enqueue(b"data", id="a")
    client.hset(queue_key(queue.name, "meta"), "a", struct.pack(">H", 7))
    job = queue.get("a")
    assert job is not None
    assert (job.data, job.failures) == (b"data", 0)
    assert take(queue).data == b"data"
