"""Hostile sizes: what is deep, long or many is refused or put aside, and costs a worker next to nothing."""

from __future__ import annotations

import time

import pytest

from tests.security.conftest import Probe
from tests.support.waiting import wait_until
from windlass import RawJob, Windlass, errors
from windlass.storage.native.keys import queue_key
from windlass.values.job import State
from windlass.worker import process_info

DEEP = 100_000
MOST_GROWTH = 50 * 1024  # kilobytes

BOMBS = {
    "deep arrays": b'{"task":"swallow","args":[%b]}' % (b"[" * DEEP + b"]" * DEEP),
    "deep objects": b'{"task":"swallow","args":{"value":%b}}' % (b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "deep and unknown": b'{"task":"swallow","more":%b}' % (b"[" * DEEP + b"]" * DEEP),
    "deep and not closed": b'{"task":"swallow","args":' + b"[" * DEEP,
    "a million digits": b'{"task":"swallow","args":[%b]}' % (b"9" * 1_000_000),
    "a fraction of a million digits": b'{"task":"swallow","args":[0.%b]}' % (b"1" * 1_000_000),
    "an exponent of a million digits": b'{"task":"swallow","args":[1e%b]}' % (b"9" * 1_000_000),
    "a keep of a million digits": b'{"task":"swallow","keep":%b}' % (b"9" * 1_000_000),
    "a name of a million letters": b'{"task":"%b"}' % (b"x" * 1_000_000),
    "a million zeros": b'{"task":"swallow","args":[[%b0]]}' % (b"0," * 500_000),
    "a million escapes": b'{"task":"swallow","args":["%b"]}' % (b"\\u0000" * 170_000),
    "the same field again and again": b'{%b"task":"swallow"}' % (b'"task":"x",' * 90_000),
}


def survived(probe: Probe, ids: list[str]) -> None:
    """All that was sent has come to an end, and the worker is the one that it was."""

    def ended() -> bool:
        return all((job := probe.queue.get(id)) is None or job.state in (State.BROKEN, State.SCHEDULED) for id in ids)

    wait_until(ended, "the bombs to be dealt with")
    assert probe.worker.process.poll() is None
    assert "Runner " not in probe.worker.log, "another runner has taken over"
    for id in ids:
        record = probe.queue.get(id)
        if record is not None:
            assert (record.failures, record.stalls) == (0, 0), record.message
            assert len(record.message or "") <= 4096


def tidy_up(probe: Probe) -> None:
    """Not a whole purge: that would take the holders along, and with them the runner whose memory is looked at."""
    for state in (State.BROKEN, State.SCHEDULED, State.DEAD):
        probe.queue.purge(state)


def test_bombs_are_dealt_with_and_cost_next_to_nothing(probe: Probe) -> None:
    before = probe.ask("memory_of_the_runner")
    began = time.monotonic()
    for round in range(3):
        ids = [probe.queue.enqueue(bomb, id=f"{name} {round}").id for name, bomb in BOMBS.items()]
        survived(probe, ids)
    took = time.monotonic() - began
    grown = probe.ask("memory_of_the_runner") - before
    print(f"{3 * len(BOMBS)} bombs: {took:.1f} s, {grown:,} kB more")
    assert grown < MOST_GROWTH
    states = {name: job.state for name in BOMBS if (job := probe.queue.get(f"{name} 0"))}
    for name in ("deep arrays", "a keep of a million digits", "a name of a million letters"):
        assert states[name] is State.BROKEN
    assert max(map(len, probe.worker.log.splitlines())) < 1000, "and its log is for people to read"
    tidy_up(probe)


def test_what_was_written_past_the_limit_of_a_payload_is_run_or_put_aside(probe: Probe) -> None:
    """A stranger with the server's password need not heed limits: 8 MB in the data, and as many in the inbox."""
    sizes = [b'{"task":"swallow","args":["%b"]}' % (b"x" * (n << 20)) for n in (2, 4, 8)]
    keys = {name: queue_key(probe.queue.name, name) for name in ("data", "inbox", "ready")}
    before = probe.ask("memory_of_the_runner")
    ids = [probe.queue.enqueue(b"{}", id=f"large {n}", delay=600).id for n in range(3)]
    with probe.shop.server.client() as client:
        for id, payload in zip(ids, sizes, strict=True):
            client.hset(keys["data"], id, payload)
        for id in ids:
            probe.queue.update(id, delay=0)
        client.lpush(keys["inbox"], b"\xff" * (4 << 20), b"[" * (4 << 20), sizes[-1])
    wait_until(lambda: probe.queue.counts().waiting == probe.queue.counts().running == 0, "all to be taken")
    survived(probe, ids)
    states = {job and job.state for job in map(probe.queue.get, ids)}
    assert states <= {None, State.BROKEN}, "run, or seen not to be what was enqueued"
    assert probe.queue.counts().broken >= 2
    grown = probe.ask("memory_of_the_runner") - before
    print(f"14 MB of payloads and 16 MB in the inbox: {grown:,} kB more")
    assert grown < MOST_GROWTH
    assert sum(process_info.rss(pid) or 0 for pid in probe.worker.processes()) < 1 << 30
    tidy_up(probe)


def test_no_more_is_taken_or_sent_at_once_than_a_script_can_do_in_time(probe: Probe) -> None:
    queue = probe.shop.app.queue("batches")
    for verb in (
        lambda: queue.lease_many(1001),
        lambda: queue.lease_many(2**63),
        lambda: queue.jobs("ready", limit=1001),
    ):
        with pytest.raises(errors.InvalidOption, match="from 1 to 1000"):
            verb()
    with pytest.raises(errors.PayloadTooLarge):
        queue.enqueue_many([b"", bytes(1024 * 1024 + 1)])
    before = int(probe.shop.server.info("commandstats").get("cmdstat_evalsha", "calls=0").split(",")[0][6:])
    queue.enqueue_many(RawJob(b"x") for _ in range(5_001))
    after = int(probe.shop.server.info("commandstats")["cmdstat_evalsha"].split(",")[0][6:])
    assert after - before >= 6, "in batches of a thousand"
    assert queue.purge() == 5_001


def test_a_reader_of_a_queue_is_not_flooded_by_its_records(probe: Probe) -> None:
    """A page is bounded whatever lies in the queue, and a name is not printed whole."""
    with pytest.raises(errors.InvalidName) as caught:
        probe.shop.app.queue("x" * 10_000_000)
    assert len(str(caught.value)) < 300
    with pytest.raises(errors.InvalidId) as refused:
        probe.queue.enqueue(b"", id="x" * 10_000_000)
    assert len(str(refused.value)) < 300
    with pytest.raises(errors.InvalidOption) as unreadable:
        Windlass("redis://" + "x" * 1_000_000 + ":port")
    assert len(str(unreadable.value)) < 500
