"""Who dies, and who has a job then: lost workers, peers that take over, lost replies, and all at once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.compat.hworker.conftest import Lose
from tests.compat.hworker.peer import Peer
from tests.support.lost_replies import EACH_LOSS, Verb, lease_losing_the_reply, nothing, queue_behind
from tests.support.proxy import FaultProxy
from tests.support.repairing import repaired
from tests.support.server import Server
from windlass import Lease, Queue, State, Windlass

ABC = ('["a",1]', '["b",2]', '["c",3]')


@pytest.mark.speaks("hworker", "H3")
def test_what_a_lost_worker_held_returns_to_the_front_in_its_order(mail: Queue, peer: Peer, lose: Lose) -> None:
    peer.queue(*ABC, '["next",0]')
    leases = mail.lease_many(3, holder="w")
    lose("w")
    assert mail.clean().recovered == 3
    assert peer.waiting() == [*map(str.encode, ABC), b'["next",0]']
    assert mail.complete_many(leases) == [False] * 3
    assert not mail.beat("w")


def test_a_raw_lease_that_ran_out_returns_too(mail: Queue, peer: Peer, lose: Lose) -> None:
    peer.queue(*ABC)
    kept, lost = mail.lease_many(2)
    lose(lost)
    (again,) = mail.lease_many(1)
    assert (again.id, again.fence > lost.fence) == ("b", True)
    assert [mail.complete(lease) for lease in (lost, again, kept)] == [False, True, True]


@pytest.mark.speaks("hworker", "H3")
def test_many_who_recover_one_dead_worker_at_once_do_it_once(
    server: Server, mail: Queue, peer: Peer, lose: Lose
) -> None:
    texts = [f'["{n}",{n}]' for n in range(200)]
    peer.queue(*texts)
    mail.lease_many(200, holder="w")
    lose("w")
    start = threading.Barrier(4)
    recovered: list[int] = []

    def recover() -> None:
        with Windlass(server.url, layouts={"mail": "hworker"}) as app:
            start.wait()
            recovered.append(app.queue("mail").clean().recovered)

    threads = [threading.Thread(target=recover) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(recovered) == [0, 0, 0, 200]
    assert peer.waiting() == [text.encode() for text in texts]


@pytest.mark.speaks("hworker", "H3")
def test_what_a_peer_has_taken_over_is_not_ours_any_more(mail: Queue, peer: Peer, lose: Lose) -> None:
    peer.queue('["a",1]')
    (lease,) = mail.lease_many(1, holder="w")
    assert peer.monitor(ahead=119) == 0
    assert peer.monitor(ahead=121) == 1
    text = peer.take()
    assert text == b'["a",1]'
    theirs = peer.running()
    assert not mail.extend(lease, 60)
    assert mail.beat("w")
    assert not mail.complete(lease)
    lose("w")
    assert mail.clean().recovered == 0
    assert peer.running() == theirs
    assert peer.complete(text)


def test_a_job_that_a_peer_gave_back_and_we_took_again_belongs_to_the_later_lease(mail: Queue, peer: Peer) -> None:
    peer.queue('["a",1]')
    first = mail.lease()
    assert peer.monitor(ahead=121) == 1
    second = mail.lease()
    assert first is not None
    assert second is not None
    assert [mail.complete(first), mail.complete(second)] == [False, True]
    assert mail.counts().running == 0


def test_two_equal_texts_are_one_job_while_they_run(mail: Queue, peer: Peer, lose: Lose) -> None:
    peer.queue('["a",1]', '["a",1]')
    first, second = mail.lease_many(2, holder="w")
    assert mail.counts().running == 1
    assert not mail.retry(first, delay=0)
    lose("w")
    assert mail.clean().recovered == 1
    assert peer.waiting() == [b'["a",1]']
    assert not mail.complete(second)


@pytest.mark.speaks("hworker", "H6", "H8")
def test_beside_peers_every_job_is_done_with_crashes_on_both_sides(
    server: Server, mail: Queue, peer: Peer, lose: Lose
) -> None:
    """Each takes what the other made, and now and then forgets a job; two monitors see to those."""
    total = 3000
    done: Counter[int] = Counter()
    tally = threading.Lock()

    def finish(number: int) -> bool:
        with tally:
            done[number] += 1
            return len(done) == total

    def be_a_peer() -> None:
        with server.client() as client:
            own = Peer(client, "mail")
            for n in range(total // 2):
                own.queue(json.dumps([f"peer {n}", n]))
            for turn in range(20 * total):
                text = own.take(ago=130 if turn % 50 == 49 else 0)
                if text is not None and turn % 50 != 49 and own.complete(text):
                    finish(json.loads(text)[1])
                if text is None or turn % 500 == 0:
                    own.monitor()
                if len(done) == total:
                    return

    thread = threading.Thread(target=be_a_peer)
    thread.start()
    mail.enqueue_many([b"%d" % n for n in range(total // 2, total)])
    for turn in range(20 * total):
        leases = mail.lease_many(7, holder=f"w{turn}")
        if leases and turn % 20 == 19:
            lose(f"w{turn}")
            leases = []
        for lease, ours in zip(leases, mail.complete_many(leases), strict=True):
            if ours:
                finish(int(lease.data))
        if not leases:
            mail.clean()
        if len(done) == total:
            break
    thread.join()
    assert set(done) == set(range(total))
    assert set(done.values()) == {1}, "no job was acknowledged twice"
    mail.clean()
    assert (mail.counts().ready, mail.counts().running) == (0, 0)


# -- lost replies ------------------------------------------------------------------------------------


@pytest.fixture
def lossy(proxy: FaultProxy) -> Iterator[Queue]:
    """The same queue behind a proxy."""
    with queue_behind(proxy, "mail", "hworker") as queue:
        yield queue


def waiting(queue: Queue) -> None:
    queue.enqueue_many([b"1", b"2"])


def leased(queue: Queue) -> Lease:
    waiting(queue)
    lease = queue.lease(60)
    assert lease is not None
    return lease


def dead(queue: Queue) -> str:
    lease = leased(queue)
    queue.fail(lease)
    return lease.id


Counted = tuple[int, int, int]  # ready, leased, dead
VERBS: dict[str, Verb[Queue, Counted]] = {
    "enqueue": Verb(nothing, lambda q, _: q.enqueue(b"1").status, "added", (1, 0, 0)),
    "complete": Verb(leased, lambda q, lease: q.complete(lease), True, (1, 0, 0)),
    "complete_many": Verb(leased, lambda q, lease: q.complete_many([lease, lease]), [True, False], (1, 0, 0)),
    "release": Verb(leased, lambda q, lease: q.release(lease), True, (2, 0, 0)),
    "retry": Verb(leased, lambda q, lease: q.retry(lease, delay=0), True, (2, 0, 0)),
    "fail": Verb(leased, lambda q, lease: q.fail(lease), True, (1, 0, 1)),
    "extend": Verb(leased, lambda q, lease: q.extend(lease, 60), True, (1, 1, 0)),
    "beat": Verb(lambda q: q.beat("w", register=True), lambda q, _: q.beat("w"), True, (0, 0, 0)),
    "revive": Verb(dead, lambda q, id: q.revive([id, id]), [True, False], (2, 0, 0)),
    "purge": Verb(waiting, lambda q, _: q.purge("ready"), 2, (0, 0, 0)),
    "clean": Verb(waiting, lambda q, _: repaired(q), (0, 0), (2, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@EACH_LOSS
def test_a_lost_call_is_repeated_and_applied_once(lossy: Queue, proxy: FaultProxy, verb: str, fault: Any) -> None:
    VERBS[verb].survives(lossy, proxy, fault)
    counts = lossy.counts()
    assert (counts.ready, counts.running, counts.dead) == VERBS[verb].left


def test_a_lease_whose_reply_was_lost_is_given_again_and_not_twice(lossy: Queue, proxy: FaultProxy, peer: Peer) -> None:
    peer.queue("broken", *ABC)
    leases = lease_losing_the_reply(lossy, proxy)
    assert [(lease.id, lease.data) for lease in leases] == [("a", b"1"), ("b", b"2")]
    assert {job.id: job.fence for job in lossy.jobs(State.RUNNING).jobs} == {lease.id: lease.fence for lease in leases}
    assert lossy.complete_many(leases) == [True, True]
    assert lossy.counts().broken == 1
