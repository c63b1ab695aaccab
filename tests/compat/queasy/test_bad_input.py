"""What cannot be used is refused before anything is sent, and what peers left behind in disorder hurts nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.compat.queasy.conftest import Look
from tests.compat.queasy.peer import Peer
from tests.contract.leasing import take
from tests.support.internals import layout_of, perform
from windlass import Cleaned, Limits, Queue, RawJob
from windlass.errors import InvalidName, InvalidPayload, KeyConflict, UnsupportedByLayout
from windlass.storage.port import LeaseRequest


@pytest.mark.parametrize(
    "data", [b"", b"text", b"{'a': 1}", b"\xff", b'"\xff"', b"NaN", b"1 2", b"[" * 100_000, b'{"a":1}\x00']
)
def test_data_that_is_no_json_is_refused(emails: Queue, look: Look, data: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"enqueue_json, or json\.dumps"):
        emails.enqueue(data, id="a")
    with pytest.raises(InvalidPayload, match="'b'"):
        emails.enqueue_many([RawJob(b"1", id="a"), RawJob(data, id="b")])
    emails.enqueue(b"1", id="a")
    with pytest.raises(InvalidPayload):
        emails.update("a", data=data)
    assert look()[":waiting_job:a"]["data"] == "1"


@pytest.mark.parametrize("data", [b"null", b"0", b'"\\u00e4"', '"ä"'.encode(), b' {"a" : [1.5e300]} '])
def test_any_json_comes_out_byte_for_byte(emails: Queue, data: bytes) -> None:
    emails.enqueue(data, id="a")
    assert take(emails).data == data


@pytest.mark.parametrize("queue", ["", "a b", "{a}", "a{", "a\n"])
def test_a_queue_name_must_fit_between_braces(emails: Queue, queue: str) -> None:
    with pytest.raises(InvalidName, match="no spaces or braces"):
        type(layout_of(emails))(queue)  # type: ignore[call-arg]


def test_a_holder_name_has_no_colon(emails: Queue) -> None:
    with pytest.raises(InvalidName, match="colon"):
        layout_of(emails).turn((), LeaseRequest(want=1, holder="a:b"))
    with pytest.raises(InvalidName, match="colon"):
        layout_of(emails).beat("a:b", 10, register=True)


REFUSED: dict[str, Callable[[Queue], object]] = {
    "priorities": lambda queue: queue.enqueue(b"1", priority=1),
    "cancelling a running job": lambda queue: queue.cancel("a", running=True),
    "pausing": lambda queue: queue.pause(),
    "keeping jobs that failed": lambda queue: queue.revive("a"),
    "progress": lambda queue: queue.progress(take(queue), 0.5),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_document_does_not_have_is_refused(emails: Queue, what: str) -> None:
    emails.enqueue(b"1", id="a")
    with pytest.raises(UnsupportedByLayout, match=f"'queasy', which does not support: {what}"):
        REFUSED[what](emails)


# -- keys that hold something else -----------------------------------------------------------------


@pytest.mark.parametrize("key", [":waiting", ":active", "-fail:waiting", "-fail:active"])
def test_an_index_of_a_foreign_type_is_refused_and_left_alone(emails: Queue, client: redis.Redis, key: str) -> None:
    client.set("{emails}" + key, "mine")
    verbs: list[Callable[[], object]] = [
        lambda: emails.enqueue(b"1"),
        emails.lease,
        emails.counts,
        emails.clean,
        lambda: perform(emails, lambda layout: layout.beat("w", 10, register=True, failure_handler=Limits())),
    ]
    for verb in verbs:
        with pytest.raises(KeyConflict, match="has a wrong type"):
            verb()
    assert client.keys("{emails}*") == [("{emails}" + key).encode()]
    client.delete("{emails}" + key)


@pytest.mark.parametrize("key", [":waiting_job:b", ":active_job:b"])
def test_a_job_of_a_foreign_type_is_refused_before_anything_is_written(
    emails: Queue, client: redis.Redis, key: str
) -> None:
    client.set("{emails}" + key, "mine")
    with pytest.raises(KeyConflict, match="has a wrong type"):
        emails.enqueue_many([RawJob(b"1", id=id) for id in "abc"])
    assert client.keys("{emails}*") == [("{emails}" + key).encode()]
    assert client.get("{emails}" + key) == b"mine"
    client.delete("{emails}" + key)


# -- disorder --------------------------------------------------------------------------------------


def test_entries_without_a_job_are_passed_over(emails: Queue, client: redis.Redis, look: Look) -> None:
    client.zadd("{emails}:waiting", {f"ghost-{number}": 0 for number in range(5)})
    client.zadd("{emails}:active", {"ghost:worker": 1, "no colon": 1})
    emails.enqueue(b"1", id="z")
    lease = take(emails)
    assert lease.id == "z"
    assert emails.clean() == Cleaned(recovered=0)
    assert emails.complete(lease)
    assert look() == {}


def test_a_hash_without_an_entry_is_no_job(emails: Queue, client: redis.Redis, look: Look) -> None:
    client.hset("{emails}:waiting_job:a", mapping={"data": "0", "note": "left behind"})
    assert emails.get("a") is None
    assert not emails.cancel("a")
    emails.enqueue(b"1", id="a", update_data=False)
    assert look()[":waiting_job:a"].get("note") is None
    assert take(emails).data == b"1"


def test_a_ledger_that_lost_its_holders_forgets_their_runs(emails: Queue, client: redis.Redis) -> None:
    emails.enqueue(b"1", id="a")
    take(emails, seconds=10, holder="worker-1")
    client.delete("windlass:{emails}:queasy:holders")
    client.zadd("{emails}:active", {"a:worker-1": 1})
    assert emails.clean() == Cleaned(recovered=1)
    assert not client.exists("windlass:{emails}:queasy:runs")


def test_numbers_that_are_none_do_not_stop_a_queue(emails: Queue, peer: Peer, client: redis.Redis, look: Look) -> None:
    odd = {"maxFailures": "Infinity", "maxStalls": "-1", "minBackoff": "1.5", "maxBackoff": "NaN"}
    peer.notify(1, "a", **odd)
    client.hset("{emails}:waiting_job:a", mapping={"failureCount": "many", "stallCount": "", "runAt": "NaN"})
    lease = take(emails)
    assert lease.limits == Limits(2**32 - 1, 0, 0.001, 0.0)
    assert emails.release(lease)
    assert emails.retry(take(emails), delay=0)
    client.hset("{emails}:waiting_job:a", mapping={"maxStalls": "3", "stallCount": "x"})
    assert len(peer.dequeue()) == 1
    client.hset("{emails}:active_job:a", "runAt", "NaN")
    client.zadd("{emails}:active", {"a:peer-1": 1})
    assert emails.clean() == Cleaned(recovered=1)
    assert (take(emails).failures, look()[":active_job:a"]["stallCount"]) == (1, "1")


def test_a_job_whose_hash_is_gone_while_it_runs_settles_and_lets_the_next_one_go(
    emails: Queue, client: redis.Redis
) -> None:
    for settle in (emails.complete, emails.release, emails.retry, emails.fail):
        emails.enqueue(b"1", id="a")
        lease = take(emails)
        emails.enqueue(b"2", id="a")
        client.delete("{emails}:active_job:a")
        assert settle(lease)
        again = take(emails)
        assert (again.data, again.attempt) == (b"2", 1)
        assert emails.complete(again)
        assert emails.lease() is None
