"""The payload of a task's job, as any language may write it: it is read or `Undecodable`, never anything else."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import Undecodable, WindlassError
from windlass.tasks.envelope import Envelope, read_envelope, write_envelope

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def test_an_envelope_is_plain_json() -> None:
    data = write_envelope("welcome", b'{"user_id":42,"locale":"fr"}')
    assert json.loads(data) == {"task": "welcome", "args": {"user_id": 42, "locale": "fr"}}


def test_keep_is_written_only_when_asked_for() -> None:
    assert json.loads(write_envelope("ping", keep=60)) == {"task": "ping", "args": {}, "keep": 60}
    assert json.loads(write_envelope("ping", keep=0.0)) == {"task": "ping", "args": {}}


def test_what_is_written_is_read() -> None:
    envelope = read_envelope(write_envelope("wéb ☃", b"[1, 2]", 1.5))
    assert (envelope.task, bytes(envelope.args), envelope.keep) == ("wéb ☃", b"[1, 2]", 1.5)


def test_what_others_push_by_hand() -> None:
    envelope = read_envelope(b' { "args" : [1, 2] , "task": "sum", "keep": 3 } ')
    assert (envelope.task, bytes(envelope.args), envelope.keep) == ("sum", b"[1, 2]", 3)
    assert bytes(read_envelope(b'{"task":"ping"}').args) == b"{}"


def test_fields_of_newer_producers_are_passed_over() -> None:
    assert read_envelope(b'{"task":"ping","trace":"abc","v":{"x":[1]}}').task == "ping"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a task"),
        (b"\x00\xff", "not a task"),
        (b"welcome", "not a task"),
        (b"[]", "Expected `object`"),
        (b'"welcome"', "Expected `object`"),
        (b"{}", "`task`"),
        (b'{"args":{}}', "`task`"),
        (b'{"task":7}', "Expected `str`"),
        (b'{"task":null}', "Expected `str`"),
        (b'{"task":"\xff"}', "not a task"),
        (b'{"task":"a"}{"task":"b"}', "trailing"),
        (b'{"task":"a","args":7}', "args of task 'a' must be an object or an array"),
        (b'{"task":"a","args":"{}"}', "must be an object or an array"),
        (b'{"task":"a","args":null}', "must be an object or an array"),
        (b'{"task":"a","args":{}', "truncated"),
        (b'{"task":"a","keep":"1h"}', "$.keep"),
        (b'{"task":"a","keep":-1}', "$.keep"),
        (b'{"task":"a","keep":1e300}', "$.keep"),
        (b'{"task":"a","keep":' + b"1" * 5000 + b"}", "$.keep"),
        (b'{"task":"a","args":' + b"[" * 200_000, "nested too deep"),
        (b'{"task":"a","args":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_001, "nested too deep"),
        (b'{"task":"a","more":' + b"[" * 200_000, "nested too deep"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_anything_else_is_undecodable(data: bytes, reason: str) -> None:
    with pytest.raises(Undecodable) as caught:
        read_envelope(data)
    assert reason in caught.value.reason
    assert str(caught.value) == caught.value.reason
    assert isinstance(caught.value, WindlassError)


def read_or_refuse(data: bytes) -> None:
    try:
        envelope = read_envelope(data)
    except Undecodable:
        return
    assert isinstance(envelope, Envelope)
    assert isinstance(envelope.task, str)
    assert isinstance(envelope.args, msgspec.Raw)
    assert envelope.keep >= 0


@given(st.binary())
def test_noise_is_read_or_undecodable(data: bytes) -> None:
    read_or_refuse(data)


@given(json_values)
def test_any_json_is_read_or_undecodable(value: object) -> None:
    read_or_refuse(json.dumps(value).encode())


@given(st.fixed_dictionaries({}, optional={"task": json_values, "args": json_values, "keep": json_values}))
def test_nearly_an_envelope_is_read_or_undecodable(value: object) -> None:
    read_or_refuse(json.dumps(value).encode())


@given(st.integers(0, 60), st.integers(0, 60), st.binary(max_size=4))
def test_a_damaged_envelope_is_read_or_undecodable(start: int, end: int, noise: bytes) -> None:
    whole = write_envelope("welcome", b'{"user_id":42,"name":"\xc3\xa9"}', 60)
    read_or_refuse(whole[:start] + noise + whole[end:])


@given(st.text(max_size=128), json_values.filter(lambda value: isinstance(value, list | dict)))
def test_every_envelope_comes_back(task: str, args: object) -> None:
    envelope = read_envelope(json.dumps({"task": task, "args": args}, ensure_ascii=True).encode())
    assert envelope.task == task
    assert json.loads(bytes(envelope.args)) == args
