"""The rows of hworker, as far as a queue alone can show them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import redis

from tests.compat.hworker.peer import Peer, moment
from tests.support.internals import perform_call
from tests.support.repairing import repaired
from tests.support.server import Server
from windlass import Counts, Lease, Queue, State, Windlass
from windlass.errors import InvalidPayload, UnsupportedByLayout
from windlass.storage.compat.hworker import HworkerLayout
from windlass.values.outcome import Crashed


def take(mail: Queue) -> Lease:
    lease = mail.lease()
    assert lease is not None
    return lease


@pytest.mark.speaks("hworker", "H6")
def test_any_program_that_pushes_an_array_makes_a_job(mail: Queue, client: redis.Redis) -> None:
    client.lpush("hworker-jobs-mail", '["5f0c", {"to": "ann"}]')
    client.lpush("hworker-jobs-mail", '["5f0d", null]')
    one, two = mail.lease_many(5)
    assert (one.id, one.json(), two.id, two.data) == ("5f0c", {"to": "ann"}, "5f0d", b"null")
    assert mail.complete_many([one, two]) == [True, True]


def test_a_job_that_cannot_be_written_spoils_no_answer_to_those_before_it(mail: Queue) -> None:
    """It is found out while the server is at work on the batch before it."""
    with pytest.raises(InvalidPayload, match="JSON"):
        mail.enqueue_many([b"1"] * 1000 + [b"no json"])
    assert mail.counts().ready == 1000
    assert [mail.enqueue(b"2").status, mail.counts().ready] == ["added", 1001]
    assert mail.purge() == 1001


@pytest.mark.speaks("hworker", "H6")
def test_who_waits_sees_a_plain_push(mail: Queue, server: Server) -> None:
    found: list[Lease | None] = []
    waiting = threading.Thread(target=lambda: found.append(mail.lease(30, wait=10)))
    waiting.start()
    with server.client() as other:
        other.lpush("hworker-jobs-mail", '["a",1]')
    waiting.join()
    assert found[0] is not None
    assert mail.complete(found[0])


@pytest.mark.speaks("hworker", "H3")
def test_retry_goes_to_the_back_and_what_is_given_back_to_the_front(mail: Queue, peer: Peer) -> None:
    peer.queue('["a",1]', '["b",2]', '["c",3]')
    assert mail.retry(take(mail), delay=0)
    assert mail.release(take(mail))
    assert peer.waiting() == [b'["b",2]', b'["c",3]', b'["a",1]']


def crash(app: Windlass, leases: list[Lease], alone: bool) -> None:
    outcomes = [Crashed(lease, "killed", is_cause=alone) for lease in leases]
    turn = perform_call(app, app.layout("mail").turn(outcomes))
    assert turn.settled == (True,) * len(leases)


@pytest.mark.speaks("hworker", "H3")
def test_a_job_that_crashes_each_time_lets_the_others_run(app: Windlass, mail: Queue, peer: Peer) -> None:
    peer.queue('["poison",0]', '["a",1]', '["b",2]')
    seen = []
    for _ in range(5):
        lease = take(mail)
        seen.append(lease.id)
        if lease.id == "poison":
            crash(app, [lease], alone=True)
        else:
            mail.complete(lease)
    assert seen == ["poison", "a", "b", "poison", "poison"]


@pytest.mark.speaks("hworker", "H3")
@pytest.mark.parametrize(("alone", "order"), [(True, "dabc"), (False, "abcd")])
def test_several_that_crashed_come_back_in_their_order(
    app: Windlass, mail: Queue, peer: Peer, alone: bool, order: str
) -> None:
    """Who did it goes to the back, and who only may have done it to the front."""
    peer.queue(*(f'["{id}",0]' for id in "abcd"))
    crash(app, mail.lease_many(3), alone)
    assert peer.waiting() == [f'["{id}",0]'.encode() for id in order]
    assert [lease.suspect for lease in mail.lease_many(4)] == [id != "d" for id in order]


@pytest.mark.speaks("hworker", "H3")
def test_a_deep_clean_is_the_monitors_work(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    client.hset(peer.progress, mapping={'["a",1]': moment(500), '["b",2]': moment(), '["c",3]': "some day"})
    assert repaired(mail) == (1, 0)
    assert peer.waiting() == [b'["a",1]']
    assert all(value.startswith(b'"20') for value in peer.running().values())


@pytest.mark.speaks("hworker", "H3")
def test_the_monitor_returns_only_what_is_in_progress_for_too_long(mail: Queue, peer: Peer) -> None:
    peer.queue(*(f'["{ago}",0]' for ago in (500, 121, 119, 5)), '["next",0]')
    for ago in (500, 121, 119, 5):
        peer.take(ago)
    assert mail.clean().recovered == 2
    assert mail.clean().recovered == 0
    assert peer.waiting() == [b'["500",0]', b'["121",0]', b'["next",0]']
    assert [job.id for job in mail.jobs(State.RUNNING).jobs] == ["119", "5"]


@pytest.mark.speaks("hworker", "H3", "H7")
def test_the_mark_of_an_idle_peer_is_no_job(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    """A worker of the package that finds no job writes the field `false`: its Lua takes an empty reply for one."""
    client.hset(peer.progress, "false", moment(500))
    assert mail.counts() == Counts(0, 0, 0, 0, 0)
    assert not mail.jobs(State.RUNNING).jobs
    assert mail.clean().recovered == 0
    assert peer.waiting() == [], "the package's monitor would queue a job that nobody can read"
    client.hset(peer.progress, mapping={"false": moment(), '["a",1]': moment(), '["b",2]': "some day"})
    assert mail.counts().running == 2
    assert [job.id for job in mail.jobs(State.RUNNING).jobs] == ["b", "a"]
    assert mail.clean().recovered == 0
    assert repaired(mail) == (0, 0)
    assert peer.running()[b"false"], "it belongs to the peer"
    assert mail.purge() == 2


@pytest.mark.speaks("hworker", "H3")
def test_a_turn_runs_the_monitor_every_tenth_of_the_timeout(
    app: Windlass, mail: Queue, client: redis.Redis, peer: Peer
) -> None:
    peer.queue('["a",1]', '["b",2]')
    peer.take(130)
    assert take(mail).id == "a", "the first turn of all sweeps"
    peer.take(130)
    assert mail.lease() is None
    state = "windlass:{mail}:hworker:state"
    swept = int(client.hget(state, "swept") or 0)
    client.hset(state, "swept", swept - round(HworkerLayout.timeout * 100) - 1)
    assert take(mail).id == "b"


@pytest.mark.speaks("hworker", "H3")
def test_any_number_of_monitors_returns_a_job_once(app: Windlass, server: Server, mail: Queue, peer: Peer) -> None:
    jobs = [f'["{n}",{n}]' for n in range(300)]
    peer.queue(*jobs)
    for _ in jobs:
        peer.take(200)
    returned: list[int] = []
    start = threading.Barrier(6)

    def run(monitor: bool) -> None:
        start.wait()
        with server.client() as client:
            returned.append(mail.clean().recovered if monitor else Peer(client, "mail").monitor())

    threads = [threading.Thread(target=run, args=(n % 2 == 0,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(returned) == len(jobs)
    assert Counter(peer.waiting()) == Counter(job.encode() for job in jobs)
    assert mail.counts().running == 0


@pytest.mark.speaks("hworker", "H3")
def test_a_clean_finds_all_that_is_overdue_in_bounded_steps(
    app: Windlass, mail: Queue, client: redis.Redis, peer: Peer
) -> None:
    client.hset(peer.progress, mapping={f'["live {n}",0]': moment() for n in range(14_000)})
    client.hset(peer.progress, mapping={f'["{n}",0]': moment(5000) for n in range(4000)})
    one_step = perform_call(app, app.layout("mail").turn()).swept
    assert 1000 <= one_step < 2500
    assert mail.clean().recovered == 4000 - one_step
    assert mail.counts().running == 14_000
    assert len(set(peer.waiting())) == 4000


@pytest.mark.speaks("hworker", "H3")
def test_a_monitor_that_is_not_done_goes_on_where_it_was(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    client.hset(peer.progress, mapping={f'["live {n}",0]': moment() for n in range(14_000)})
    client.hset(peer.progress, mapping={f'["{n}",0]': moment(500) for n in range(100)})
    state = "windlass:{mail}:hworker:state"
    first = len(mail.lease_many(1000))
    assert client.hexists(state, "monitor")
    client.hset(state, "swept", 0)
    second = len(mail.lease_many(1000))
    assert not client.hexists(state, "monitor")
    assert first + second == 100
    assert second > 0


@pytest.mark.speaks("hworker", "H4")
def test_what_is_broken_stays_with_its_time_and_the_queue_goes_on(mail: Queue, peer: Peer) -> None:
    peer.queue("not JSON", '["a",1]', '{"id":"b"}', '["c",3]')
    leases = mail.lease_many(10)
    assert [lease.id for lease in leases] == ["a", "c"]
    found = {job.data: job for job in mail.jobs(State.BROKEN).jobs}
    assert set(found) == {b"not JSON", b'{"id":"b"}'}
    record = found[b"not JSON"]
    assert (record.state, record.reason) == (State.BROKEN, "broken")
    assert record.id == "sha1:3b1ee92e73671d4d11004118ce32db00e25bb327"
    assert record.died_at is not None
    assert mail.counts().broken == 2
    mail.complete_many(leases)


@pytest.mark.speaks("hworker", "H4")
def test_broken_jobs_are_listed_the_latest_first_page_by_page(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    times: dict[Any, Any] = {
        b"oldest": b'"2015-07-25T12:34:56.789012345678Z"',
        b"middle": b'"2015-07-25T12:34:57Z"',
        b"youngest": b'"2015-07-25T14:34:57.5+02:00"',
        b"undated": b"yesterday",
    }
    client.hset(peer.broken, mapping=times)
    page = mail.jobs(State.BROKEN, limit=3)
    assert [(job.data, job.died_at) for job in page.jobs] == [
        (b"youngest", 1437827697.5),
        (b"middle", 1437827697.0),
        (b"oldest", 1437827696.789),
    ]
    (last,) = mail.jobs(State.BROKEN, limit=3, cursor=page.cursor).jobs
    assert (last.data, last.died_at) == (b"undated", None)


def calls(client: redis.Redis, command: str) -> int:
    """How often the server has run a command, in scripts too."""
    stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


@pytest.mark.parametrize("state", [State.BROKEN, State.RUNNING])
def test_of_very_many_a_page_is_listed_without_reading_all(
    mail: Queue, client: redis.Redis, peer: Peer, state: State
) -> None:
    texts = [f'["{n}",{n}]' for n in range(10_500)]
    key = peer.broken if state is State.BROKEN else peer.progress
    client.hset(key, mapping=dict.fromkeys(texts, moment()))
    whole, paged = (calls(client, command) for command in ("hgetall", "hscan"))
    first = mail.jobs(state, limit=1000)
    assert len(first.jobs) == 1000
    assert calls(client, "hscan") - paged <= 2
    assert Counter(job.id for job in mail.all_jobs(state)) == Counter(f"{n}" for n in range(10_500))
    assert calls(client, "hgetall") == whole


@pytest.mark.speaks("hworker", "H4", "H5")
def test_jobs_come_back_from_among_thousands(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    client.hset(peer.broken, mapping=dict.fromkeys([f'["{n}",{n}' for n in range(2500)] + ["nothing"], moment()))
    client.rpush(peer.failed, *(f'["{n}",{n}]' for n in range(1000, 3500)))
    (name,) = [job.id for job in mail.all_jobs(State.BROKEN) if job.data == b"nothing"]
    assert mail.revive(["7", "3499", name, "3500", "7"]) == [True, True, True, False, False]
    assert mail.revive(["1500"]) == [True]
    assert peer.waiting() == [b'["7",7', b'["3499",3499]', b"nothing", b'["1500",1500]', b'["1500",1500']
    assert (client.hlen(peer.broken), client.llen(peer.failed)) == (2498, 2498)


@pytest.mark.speaks("hworker", "H5")
def test_failed_jobs_are_kept_up_to_the_limit(server: Server, client: redis.Redis, peer: Peer) -> None:
    with Windlass(server.url, max_dead=3, layouts={"mail": "hworker"}) as app:
        mail = app.queue("mail")
        peer.queue(*(f'["{n}",{n}]' for n in range(5)))
        for _ in range(5):
            mail.fail(take(mail), "no")
        assert client.lrange(peer.failed, 0, -1) == [b'["4",4]', b'["3",3]', b'["2",2]']
        assert [(job.id, job.data) for job in mail.jobs(State.DEAD).jobs] == [("4", b"4"), ("3", b"3"), ("2", b"2")]
        mail.purge()


@pytest.mark.speaks("hworker", "H5")
def test_the_limit_is_a_thousand_unless_told_and_may_be_none(
    server: Server, mail: Queue, client: redis.Redis, peer: Peer
) -> None:
    client.rpush(peer.failed, *(f'["old {n}",0]' for n in range(1000)))
    peer.queue('["a",1]', '["b",2]')
    mail.fail(take(mail))
    assert client.llen(peer.failed) == 1000
    assert client.lindex(peer.failed, 0) == b'["a",1]'
    with Windlass(server.url, max_dead=0, layouts={"mail": "hworker"}) as app:
        app.queue("mail").fail(take(app.queue("mail")))
    assert not client.exists(peer.failed)


@pytest.mark.speaks("hworker", "H4", "H5")
def test_dead_and_broken_jobs_come_back_at_the_back(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue("nonsense", '["a",1]', '["b",2]', '["next",0]')
    for lease in mail.lease_many(2):
        mail.fail(lease)
    (record,) = mail.jobs(State.BROKEN).jobs
    assert mail.revive(["b", record.id, "b", "nobody", "a"]) == [True, True, False, False, True]
    assert peer.waiting() == [b'["next",0]', b'["b",2]', b"nonsense", b'["a",1]']
    assert not client.exists(peer.failed, peer.broken)


def test_all_that_carry_an_id_come_back_each_once(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    client.rpush(peer.failed, '["a",1]', '["a",1]', '["a",2]')
    client.hset(peer.broken, '["a",1,1]', moment())
    assert mail.revive("a") == [True]
    assert Counter(peer.waiting()) == Counter([b'["a",1]', b'["a",2]', b'["a",1,1]'])


@pytest.mark.speaks("hworker", "H7")
def test_jobs_are_seen_in_every_state(mail: Queue, client: redis.Redis, peer: Peer) -> None:
    peer.queue('["dead",1]', '["theirs",2]', '["ours",3]', '["w",4]', '["r1", 5]', '["r2",6]', "?")
    mail.fail(take(mail))
    peer.take()
    mine = take(mail)
    (held,) = mail.lease_many(1, holder="worker-1")
    counts = mail.counts()
    assert (counts.ready, counts.running, counts.dead, counts.broken) == (3, 3, 1, 0)
    assert [(job.id, job.holder, job.fence) for job in mail.jobs(State.RUNNING).jobs] == [
        ("theirs", None, None),
        ("ours", None, mine.fence),
        ("w", "worker-1", held.fence),
    ]
    ready = [*mail.jobs(State.READY, limit=2).jobs, *mail.jobs(State.READY).jobs[2:]]
    assert [(job.id[:4], job.data) for job in ready] == [("r1", b"5"), ("r2", b"6"), ("sha1", b"?")]
    assert mail.jobs(State.SCHEDULED).jobs == ()


def test_what_hworker_does_not_have_is_refused(app: Windlass, mail: Queue, client: redis.Redis, peer: Peer) -> None:
    for refused in (
        lambda: mail.enqueue(b"1", id="mine"),
        lambda: mail.enqueue(b"1", delay=5),
        lambda: mail.enqueue(b"1", priority=1),
        lambda: mail.enqueue(b"1", max_failures=2),
        lambda: mail.get("a"),
        lambda: mail.cancel("a"),
        lambda: mail.update("a", data=b"1"),
        mail.pause,
        mail.resume,
    ):
        with pytest.raises(UnsupportedByLayout, match="hworker"):
            refused()
    assert client.keys("hworker-*") == []
    peer.queue('["a",1]')
    lease = take(mail)
    with pytest.raises(UnsupportedByLayout, match="retry at a time"):
        mail.retry(lease, delay=5)
    with pytest.raises(UnsupportedByLayout, match="progress"):
        mail.progress(lease, 0.5)
    assert mail.complete(lease)
