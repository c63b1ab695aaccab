"""Putting jobs on a queue: ids, payloads, the order in which they come out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.contract.leasing import drain, take
from windlass import Queue, RawJob, State, Status
from windlass.errors import InvalidPayload

EVERY_BYTE = bytes(range(256))
MEBIBYTE = random.Random(7).randbytes(1024 * 1024)


@pytest.mark.serves("R1")
@pytest.mark.needs("IDS", "ORDER")
def test_a_job_gets_an_id_of_its_own(queue: Queue) -> None:
    first, second = queue.enqueue(b"same"), queue.enqueue(b"same")
    assert first.status is second.status is Status.ADDED
    assert first.id != second.id
    assert drain(queue) == [first.id, second.id]


@pytest.mark.serves("R1")
@pytest.mark.parametrize(
    "id",
    ["a", "welcome:42", "{braces}", "two words", "-1", "0", "nul\0and\nnewline\r\n", "schön 🪢", "x" * 512],
)
@pytest.mark.needs("IDS")
def test_an_id_may_be_any_text(queue: Queue, id: str) -> None:
    receipt = queue.enqueue(b"data", id=id)
    assert (receipt.id, receipt.status) == (id, Status.ADDED)
    job = queue.get(id)
    assert job is not None
    assert (job.id, job.data, job.state) == (id, b"data", State.READY)
    lease = take(queue)
    assert (lease.id, lease.data) == (id, b"data")
    assert queue.retry(lease, delay=0)
    assert queue.cancel(id)


@pytest.mark.serves("W6", "R1")
@pytest.mark.parametrize("data", [b"", b"\0", EVERY_BYTE, b"\r\n$-1\r\n", b"\xff" * 1000, MEBIBYTE], ids=len)
@pytest.mark.needs("IDS", "LIMITS")
def test_a_payload_comes_out_byte_for_byte(queue: Queue, data: bytes) -> None:
    queue.enqueue(data, id="one")
    queue.enqueue_many([data, RawJob(data, id="many", delay=0, max_failures=3)])
    leases = queue.lease_many(10)
    assert [lease.data == data for lease in leases] == [True] * 3
    # It stays what it was wherever the job goes: back among the waiting, and among the dead.
    assert queue.retry(leases[0], delay=0)
    assert queue.fail(leases[2], "broken")
    again = take(queue)
    assert again.data == data
    dead = queue.get("many")
    assert dead is not None
    assert dead.data == data


@pytest.mark.serves("W6")
def test_payloads_may_be_any_kind_of_bytes(queue: Queue) -> None:
    kinds: list[Any] = [bytearray(EVERY_BYTE), memoryview(EVERY_BYTE)]
    queue.enqueue(kinds[0])
    queue.enqueue_many(kinds[1:])
    assert [lease.data for lease in queue.lease_many(2)] == [EVERY_BYTE, EVERY_BYTE]


@pytest.mark.serves("W8")
@pytest.mark.needs("ORDER")
def test_first_in_first_out(queue: Queue) -> None:
    ids = [queue.enqueue(b"").id for _ in range(30)]
    assert drain(queue) == ids


@pytest.mark.serves("P8")
@pytest.mark.needs("IDS", "PRIORITY")
def test_priority_0_comes_first_and_9_last_and_equals_in_order(queue: Queue) -> None:
    priorities = [p for p in range(10) for _ in range(6)]
    random.Random(3).shuffle(priorities)
    for number, priority in enumerate(priorities):
        queue.enqueue(b"", id=f"{priority}-{number:02}", priority=priority)
    came = drain(queue)
    assert len(came) == 60
    assert came == sorted(came)  # by priority, then by the number in which they were enqueued


@pytest.mark.serves("P8")
@pytest.mark.needs("IDS", "PRIORITY")
def test_the_plain_priority_is_5(queue: Queue) -> None:
    queue.enqueue(b"", id="six", priority=6)
    queue.enqueue(b"", id="plain")
    queue.enqueue(b"", id="five", priority=5)
    queue.enqueue(b"", id="four", priority=4)
    assert [lease.priority for lease in queue.lease_many(1)] == [4]
    assert [(lease.id, lease.priority) for lease in queue.lease_many(3)] == [("plain", 5), ("five", 5), ("six", 6)]


@pytest.mark.serves("W8")
@pytest.mark.needs("ORDER")
def test_many_jobs_in_one_call_keep_their_order(queue: Queue) -> None:
    receipts = queue.enqueue_many(b"%d" % number for number in range(2500))
    assert {receipt.status for receipt in receipts} == {Status.ADDED}
    assert len({receipt.id for receipt in receipts}) == 2500
    leases = [lease for _ in range(3) for lease in queue.lease_many(1000)]
    assert [int(lease.data) for lease in leases] == list(range(2500))
    assert [lease.id for lease in leases] == [receipt.id for receipt in receipts]


@pytest.mark.needs("IDS", "PRIORITY", "RUN_TIME")
def test_many_jobs_may_each_have_their_options(queue: Queue) -> None:
    receipts = queue.enqueue_many(
        [
            b"plain",
            RawJob(b"late", id="late", delay=60),
            RawJob(b"urgent", id="urgent", priority=0),
            RawJob(b"old", id="twice"),
            RawJob(b"new", id="twice"),
            RawJob(b"ignored", id="twice", if_exists="keep"),
        ]
    )
    assert [receipt.status for receipt in receipts] == ["added", "added", "added", "added", "updated", "kept"]
    assert [lease.data for lease in queue.lease_many(10)] == [b"urgent", b"plain", b"new"]
    assert queue.counts().scheduled == 1


def test_no_jobs_is_no_work(queue: Queue) -> None:
    assert queue.enqueue_many([]) == []
    assert queue.complete_many([]) == []
    assert queue.counts().waiting == 0


@pytest.mark.serves("R2")
@pytest.mark.needs("IDS")
def test_an_id_is_added_once(queue: Queue) -> None:
    assert queue.enqueue(b"first", id="a", if_exists="keep").status is Status.ADDED
    assert queue.enqueue(b"second", id="a", if_exists="keep").status is Status.KEPT
    lease = take(queue)
    assert lease.data == b"first"
    assert queue.enqueue(b"third", id="a", if_exists="keep").status is Status.KEPT, "it still runs"
    assert queue.complete(lease)
    assert queue.enqueue(b"fourth", id="a", if_exists="keep").status is Status.ADDED
    assert take(queue).data == b"fourth"


@pytest.mark.needs("DEAD", "IDS")
def test_the_id_of_a_dead_job_is_free(queue: Queue) -> None:
    queue.enqueue(b"old", id="a")
    assert queue.fail(take(queue))
    assert queue.enqueue(b"new", id="a", if_exists="keep").status is Status.ADDED
    assert queue.counts().dead == 1
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.data) == (State.READY, b"new"), "the living one is shown before the dead"


@pytest.mark.serves("R1")
@pytest.mark.parametrize("value", [None, 0, "ü", [1, 2.5, "x", None, True], {"a": {"b": []}}, 12345678901234567890])
@pytest.mark.needs("IDS")
def test_json_goes_in_and_comes_out(queue: Queue, value: Any) -> None:
    receipt = queue.enqueue_json(value, id="j")
    job = queue.get(receipt.id)
    assert job is not None
    assert job.json() == value
    assert take(queue).json() == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"bytes", "\ud800"])
def test_what_json_cannot_say_is_refused(queue: Queue, value: Any) -> None:
    with pytest.raises(InvalidPayload, match="JSON"):
        queue.enqueue_json(value)
    assert queue.counts().waiting == 0


def test_a_payload_that_is_no_json_says_so(queue: Queue) -> None:
    queue.enqueue(b"\xff no json")
    with pytest.raises(InvalidPayload, match=r"\.data"):
        take(queue).json()
