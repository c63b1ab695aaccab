"""Texts and times that others wrote: what is a job, what is none, and when it began."""

from __future__ import annotations

import hashlib
import json
import random
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest
import redis

from tests.compat.hworker.peer import Peer
from tests.support.bad_input import dump
from windlass import Queue, State
from windlass.errors import InvalidPayload, KeyConflict
from windlass.storage.compat.hworker import HworkerLayout
from windlass.storage.formats import SHARED_CONSTANTS
from windlass.storage.lua import add_records, replace_names

DEEP = b"[" * 20_000 + b"]" * 20_000

JOBS = {
    "plain": (b'["a",1]', "a", b"1"),
    "null": (b'["a",null]', "a", b"null"),
    "empty object": (b'["a",{}]', "a", b"{}"),
    "empty array": (b'["a",[]]', "a", b"[]"),
    "spaces": (b'\n[\t"a" ,\r\n 1 ]\n', "a", b"1"),
    "brackets in strings": (b'["a]","],[\\"\\\\"]', "a]", b'"],[\\"\\\\"'),
    "escapes in the id": (b'["\\ud83d\\ude00\\\\\\"\\/",0]', '😀\\"/', b"0"),
    "utf-8 in the id": ('["ключ 鍵 😀",0]'.encode(), "ключ 鍵 😀", b"0"),
    "numbers that doubles cannot hold": (b'["a",123456789012345678901.10]', "a", b"123456789012345678901.10"),
    "keys in their order": (b'["a",{"z":1,"a":2,"z":3}]', "a", b'{"z":1,"a":2,"z":3}'),
    "deeper than can be checked": (b'["a",%s]' % DEEP, "a", DEEP),
    "a word behind": (b'["a",1] trailing', "a", b"1"),
    "an array behind": (b'["a",{"b":"]"}]["c",2]', "a", b'{"b":"]"}'),
    "a bracket behind": (b'["a",1] x]', "a", b"1"),
    "a zero byte behind": (b'["a",[1]]\0]', "a", b"[1]"),
    "bytes behind that are no text": (b'["a","\\"]"] \xff"', "a", b'"\\"]"'),
    "something deep and something behind": (b'["a",%s]]' % DEEP, "a", DEEP),
}


@pytest.mark.parametrize("case", JOBS)
@pytest.mark.speaks("hworker", "H6", "H8")
def test_a_text_that_is_a_job_is_given_out_as_it_stands(mail: Queue, peer: Peer, case: str) -> None:
    text, id, data = JOBS[case]
    peer.queue(text)
    lease = mail.lease()
    assert lease is not None
    assert (lease.id, lease.data) == (id, data)
    assert [(job.id, job.data) for job in mail.jobs(State.RUNNING).jobs] == [(id, data)]
    assert mail.release(lease)
    assert peer.waiting() == [text]
    assert [(job.id, job.data) for job in mail.jobs(State.READY).jobs] == [(id, data)]


BROKEN = {
    "nothing": b"",
    "no JSON": b"hello",
    "a string": b'"a"',
    "an object": b'{"1":"a","2":1}',
    "an empty object": b"{}",
    "an empty array": b"[]",
    "an id alone": b'["a"]',
    "three things": b'["a",1,2]',
    "an id that is a number": b"[1,1]",
    "an id that is null": b"[null,1]",
    "an id that is an array": b'[["a"],1]',
    "cut off": b'["a",{"b":1}',
    "cut off in a string": b'["a","b]',
    "a comma too many": b'["a",1,]',
    "a zero byte in it": b'["a","\0"]',
    "brackets of two kinds": b'["a",1} ]',
    "two ids and an array behind": b'["a","b",1]["c",1]',
    "not a number": b'["a",NaN]',
    "hexadecimal": b'["a",0x10]',
    "half a surrogate pair": b'["a","\\ud800"]',
    "a byte order mark": b'\xef\xbb\xbf["a",1]',
    "deep and cut off": b'["a",' + DEEP[:-1] + b"}",
    "deep and without an id": b"[1," + DEEP + b"]",
    "only deep": DEEP,
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.speaks("hworker", "H4")
def test_a_text_that_is_no_job_is_put_aside_when_it_is_taken(
    mail: Queue, client: redis.Redis, peer: Peer, case: str
) -> None:
    text = BROKEN[case]
    peer.queue(text, '["next",1]')
    assert mail.jobs(State.READY).jobs[0].data == text, "to look at it does no harm"
    lease = mail.lease()
    assert lease is not None
    assert lease.id == "next"
    assert list(client.hgetall(peer.broken)) == [text]
    (record,) = mail.jobs(State.BROKEN).jobs
    assert record.data == text
    assert mail.revive(record.id) == [True]
    assert peer.waiting() == [text]


@pytest.mark.parametrize("id", [b"", b"\xff", b"\xed\xa0\x80", b"x" * 513], ids=["empty", "bytes", "half", "long"])
def test_a_job_whose_id_cannot_be_spoken_is_called_by_its_sum(mail: Queue, peer: Peer, id: bytes) -> None:
    text = b'["%s",1]' % id
    peer.queue(text)
    lease = mail.lease()
    assert lease is not None
    assert lease.id == f"sha1:{hashlib.sha1(text, usedforsecurity=False).hexdigest()}"
    assert mail.fail(lease)
    assert mail.revive(lease.id) == [True]
    assert peer.waiting() == [text]


def test_a_heap_of_broken_texts_does_not_hold_up_a_turn_for_long(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    client.lpush(peer.jobs, *(f"broken {n}" for n in range(2500)), '["a",1]')
    assert [len(mail.lease_many(5)) for _ in range(3)] == [0, 0, 1]
    assert mail.counts().broken == 2500


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"{'a':1}", b"[1,]", b"NaN", b"1 2", b'"\xff"', b"\xef\xbb\xbf1", b"\xff\xfe1\x00", DEEP],
    ids=lambda data: repr(data[:10]),
)
def test_a_payload_that_is_no_json_is_refused(mail: Queue, client: redis.Redis, data: bytes) -> None:
    before = dump(client)
    with pytest.raises(InvalidPayload, match="Use enqueue_json"):
        mail.enqueue(data)
    with pytest.raises(InvalidPayload, match="Use enqueue_json"):
        mail.enqueue_many([b"1", data])
    assert dump(client) == before


@pytest.mark.parametrize("what", ["jobs", "progress", "broken", "failed"])
def test_a_key_of_another_kind_stops_everything(mail: Queue, client: redis.Redis, what: str) -> None:
    client.set(f"hworker-{what}-mail", "mine")
    before = dump(client)
    for verb in (lambda: mail.enqueue(b"1"), mail.lease, mail.clean, mail.counts, lambda: mail.revive("a")):
        with pytest.raises(KeyConflict, match=f"hworker-{what}-mail"):
            verb()
    assert dump(client) == before
    client.delete(f"hworker-{what}-mail")


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def written(when: datetime) -> list[str]:
    """One moment in every way in which it may be written."""
    east, west = when + timedelta(hours=5, minutes=30), when - timedelta(hours=8)
    return [
        f"{when:%Y-%m-%dT%H:%M:%S}Z",
        f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03}Z",
        f"{when:%Y-%m-%dT%H:%M:%S.%f}Z",
        f"{when:%Y-%m-%dT%H:%M:%S.%f}123456Z",
        f"{when:%Y-%m-%d %H:%M:%S.%f} Z",
        f"{east:%Y-%m-%dT%H:%M:%S}+05:30",
        f"{west:%Y-%m-%dT%H:%M:%S}-0800",
    ]


@pytest.mark.speaks("hworker", "H3", "H8")
def test_times_are_compared_as_times_however_they_are_written(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    for name, seconds in (("overdue", 125), ("running", 115)):
        for place, text in enumerate(written(ago(seconds))):
            client.hset(peer.progress, f'["{name} {place}",0]', json.dumps(text))
    assert mail.clean().recovered == 7
    assert {json.loads(text)[0].split()[0] for text in peer.waiting()} == {"overdue"}
    assert mail.counts().running == 7


def calendar() -> list[datetime]:
    """Days on which calendars go wrong, and many others."""
    edges = [
        datetime(year, month, day, tzinfo=UTC)
        for year in (1970, 1972, 1999, 2000, 2024, 2099, 2100, 2101, 2200)
        for month, day in ((1, 1), (2, 28), (3, 1), (12, 31))
    ]
    chance = random.Random(7)
    others = [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=chance.randrange(8 * 10**15)) for _ in range(500)
    ]
    return [*edges, *(day + timedelta(seconds=86399, microseconds=999_999) for day in edges), *others]


def test_the_calendar_is_that_of_everybody_else(client: redis.Redis) -> None:
    layout = files("windlass.storage.compat")
    parts = [layout / "base/lua/ledger.lua", layout / "hworker/hworker.lua"]
    text = add_records("\n".join(part.read_text("utf-8") for part in parts))
    script = replace_names(SHARED_CONSTANTS, text) + (
        "local text = write_time(tonumber(ARGV[1])) return { text, string.format('%.3f', read_time(text)) }"
    )
    run = client.register_script(script)
    keys = HworkerLayout("mail").counts().keys
    for moment in calendar():
        text, ms = run(keys=keys, args=[(moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)])
        assert text == f'"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"'.encode()
        assert float(ms) / 1000 == pytest.approx(moment.timestamp(), abs=1e-5)


@pytest.mark.parametrize("value", ["", '"yesterday"', '"2015-13-01T00:00:00Z"', '"2015-07-25T12:34:56"', "1437827697"])
def test_a_time_that_cannot_be_read_counts_from_when_it_is_first_seen(
    mail: Queue, client: redis.Redis, peer: Peer, value: str
) -> None:
    client.hset(peer.progress, '["a",1]', value)
    assert mail.clean().recovered == 0
    mended = datetime.fromisoformat(peer.running()[b'["a",1]'].strip(b'"').decode())
    assert abs((datetime.now(UTC) - mended).total_seconds()) < 30
