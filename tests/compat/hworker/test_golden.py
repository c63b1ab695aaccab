"""The exact keys, types and values after each verb. Our ledger, in keys of its own, is left aside."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import redis

from tests.compat.hworker.peer import Peer
from tests.support.internals import perform_call
from windlass import Lease, Queue, Windlass
from windlass.values.outcome import Broken, Crashed, Outcome, UnknownTask

TIME = re.compile(rb'"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"')


def contents(client: redis.Redis) -> dict[str, Any]:
    """All keys that are not ours. Times in hashes must look as they should and be of now; they are then `...`."""
    found: dict[str, Any] = {}
    for key in cast(list[bytes], client.keys("*")):
        name = key.decode()
        if name.startswith("windlass:"):
            continue
        kind = client.type(key)
        if kind == b"list":
            found[name] = client.lrange(key, 0, -1)
        else:
            assert kind == b"hash"
            fields = cast(dict[bytes, bytes], client.hgetall(key))
            assert all(TIME.fullmatch(value) and is_recent(value) for value in fields.values())
            found[name] = dict.fromkeys(fields, ...)
    return found


def is_recent(value: bytes) -> bool:
    written = datetime.fromisoformat(value.strip(b'"').decode())
    return abs((datetime.now(UTC) - written).total_seconds()) < 60


def settle(app: Windlass, outcome: Outcome) -> bool:
    """What only workers say."""
    (settled,) = perform_call(app, app.layout("mail").turn([outcome])).settled
    return settled


def leased(mail: Queue) -> Lease:
    lease = mail.lease()
    assert lease is not None
    return lease


@pytest.mark.speaks("hworker", "H8")
def test_a_job_is_an_array_of_its_id_and_the_json_given(mail: Queue, client: redis.Redis) -> None:
    payload = '{"to": "ann@example.org",\t"price":1.00, "é":"\\u00e9", "big":123456789012345678901234567890}'
    first = mail.enqueue(payload.encode())
    second = mail.enqueue_json([1, None, {"a": "ü"}])
    assert contents(client) == {
        "hworker-jobs-mail": [
            b'["%s",[1,null,{"a":"\xc3\xbc"}]]' % second.id.encode(),
            b'["%s",%s]' % (first.id.encode(), payload.encode()),
        ]
    }
    lease = leased(mail)
    assert (lease.id, lease.data) == (first.id, payload.encode())


@pytest.mark.speaks("hworker", "H8")
def test_a_job_that_runs_is_a_field_with_its_time(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue('["a", 1]', '["b",2]')
    leased(mail)
    assert contents(client) == {"hworker-jobs-mail": [b'["b",2]'], "hworker-progress-mail": {b'["a", 1]': ...}}


@pytest.mark.parametrize(
    ("end", "left"),
    [
        ("complete", {}),
        ("release", {"hworker-jobs-mail": [b'["b",2]', b'["a",1]']}),
        ("retry", {"hworker-jobs-mail": [b'["a",1]', b'["b",2]']}),
        ("fail", {"hworker-failed-mail": [b'["a",1]']}),
        ("crash", {"hworker-jobs-mail": [b'["a",1]', b'["b",2]']}),
        ("broken", {"hworker-broken-mail": {b'["a",1]': ...}}),
        ("unknown", {"hworker-broken-mail": {b'["a",1]': ...}}),
    ],
)
@pytest.mark.speaks("hworker", "H1", "H3", "H4", "H8")
def test_what_each_end_of_an_attempt_leaves(
    app: Windlass, mail: Queue, client: redis.Redis, peer: Peer, end: str, left: dict[str, Any]
) -> None:
    peer.queue('["a",1]', '["b",2]')
    lease = leased(mail)
    ends = {
        "complete": lambda: mail.complete(lease),
        "release": lambda: mail.release(lease),
        "retry": lambda: mail.retry(lease, delay=0, message="once more"),
        "fail": lambda: mail.fail(lease, "it is no good"),
        "crash": lambda: settle(app, Crashed(lease, "killed", is_cause=True)),
        "broken": lambda: settle(app, Broken(lease, "it has no recipient")),
        "unknown": lambda: settle(app, UnknownTask(lease, "welcome")),
    }
    assert ends[end]()
    assert contents(client) == {"hworker-jobs-mail": [b'["b",2]']} | left
    assert not ends[end](), "an attempt ends once"


def test_a_job_that_comes_back_loses_nothing_of_its_text(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    text = b' [ "id \\u0041\\"\xc3\xa9" ,\n { "b":1.50, "a" : [ ] } ] '
    peer.queue(text)
    lease = leased(mail)
    assert (lease.id, lease.data) == ('id A"é', b'{ "b":1.50, "a" : [ ] }')
    mail.retry(lease, delay=0)
    assert contents(client) == {"hworker-jobs-mail": [text]}
    mail.fail(leased(mail))
    assert contents(client) == {"hworker-failed-mail": [text]}
    assert mail.revive(lease.id) == [True]
    assert contents(client) == {"hworker-jobs-mail": [text]}


@pytest.mark.speaks("hworker", "H3", "H8")
def test_the_monitor_moves_the_field_to_the_front(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue('["a",1]', '["b",2]', '["c",3]')
    for ago in (130, 125):
        peer.take(ago)
    assert mail.clean().recovered == 2
    assert contents(client) == {"hworker-jobs-mail": [b'["c",3]', b'["b",2]', b'["a",1]']}


@pytest.mark.speaks("hworker", "H3")
def test_a_sign_of_life_renews_the_time_and_nothing_else(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue('["a",1]', '["b",2]')
    mail.lease_many(2, holder="w")
    before = peer.running()
    assert mail.beat("w")
    after = peer.running()
    assert contents(client) == {"hworker-progress-mail": dict.fromkeys(before, ...)}
    assert all(after[text] > before[text] for text in before)


def test_a_lease_longer_than_the_timeout_is_written_so_that_peers_leave_it_alone(
    mail: Queue, client: redis.Redis, peer: Peer
) -> None:
    peer.queue('["a",1]')
    lease = mail.lease(1000)
    assert lease is not None
    written = datetime.fromisoformat(peer.running()[b'["a",1]'].strip(b'"').decode())
    assert 870 < (written - datetime.now(UTC)).total_seconds() <= 880
    assert mail.extend(lease, 10)
    assert contents(client) == {"hworker-progress-mail": {b'["a",1]': ...}}


def test_a_sign_of_life_takes_no_time_away(mail: Queue, peer: Peer) -> None:
    peer.queue('["a",1]')
    mail.lease(1000, holder="w")
    before = peer.running()
    assert mail.beat("w", 15)
    assert peer.running() == before


@pytest.mark.speaks("hworker", "H4")
def test_a_purge_leaves_no_key(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue('["a",1]', '["b",2]', '["c",3]', '["d",4]', "nothing")
    mail.fail(leased(mail))
    leased(mail)
    assert mail.purge("ready") == 3
    client.rpush(peer.jobs, "nothing")
    assert mail.lease() is None
    assert mail.purge("dead") == 1
    assert set(contents(client)) == {"hworker-progress-mail", "hworker-broken-mail"}
    assert mail.purge("broken") == 1
    assert contents(client) == {"hworker-progress-mail": {b'["b",2]': ...}}
    peer.queue('["e",5]')
    assert mail.purge() == 2
    assert contents(client) == {}
