"""Names, ids, data and whole numbers that are none are refused; the largest and oddest good ones are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis

from tests.contract.leasing import drain, take
from tests.support.bad_input import Refused, short
from tests.support.server import Server
from windlass import Queue, RawJob, Windlass
from windlass.errors import (
    ForeignLease,
    InvalidId,
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidPayload,
    InvalidTime,
    PayloadTooLarge,
    WindlassError,
)


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
