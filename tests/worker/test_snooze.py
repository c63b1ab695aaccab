"""`Snooze` on a real worker: the job is put off, is not charged, and ends when it snoozes too often."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until
from tests.support.workers import Worker, Workshop

WAYS = ("loop", "thread", "process")
HOUR_S = 3600


@pytest.fixture(scope="module")
def worker(shared_shop: Workshop) -> Worker:
    """One worker for all tests."""
    return shared_shop.start("snoozing", processes=2, log_level="info")


@pytest.fixture
def shop(shared_shop: Workshop, worker: Worker) -> Workshop:
    return shared_shop


def logged(worker: Worker, id: str) -> list[str]:
    return [line for line in worker.log.splitlines() if id in line]


@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("way", WAYS)
def test_a_job_snoozes_and_is_not_charged(shop: Workshop, worker: Worker, way: str, raised: bool) -> None:
    id = shop.send(f"{way}_snooze", 3, 0, raised, queue="snoozes")
    tries = shop.journal.wait(4, "try", id=id)
    assert [(entry.attempt, entry.more["snoozes"], entry.more["failures"]) for entry in tries] == [
        (1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0),
    ]  # fmt: skip
    shop.wait_job_gone("snoozes", id)
    assert len([line for line in logged(worker, id) if "snoozed: rate limit" in line]) == 3
    assert not [line for line in logged(worker, id) if "failed" in line or "WARNING" in line]


@pytest.mark.parametrize("way", WAYS)
def test_it_waits_for_its_time(shop: Workshop, way: str) -> None:
    id = shop.send(f"{way}_snooze", 1, HOUR_S, True, queue="snoozes")
    record = shop.wait_state("snoozes", id, "scheduled")
    assert (record.snoozes, record.failures, record.message) == (1, 0, "rate limit")
    assert shop.queue("snoozes").update(id, delay=0)
    shop.wait_job_gone("snoozes", id)
    assert len(shop.journal.all("try", id=id)) == 2


@pytest.mark.parametrize("way", ["loop", "process"])
def test_a_job_that_snoozes_too_often_fails_for_good(shop: Workshop, way: str) -> None:
    """It was sent without limits of its own, so those of its task hold."""
    id = shop.send(f"{way}_bound", queue="snoozes")
    record = shop.wait_state("snoozes", id, "dead")
    assert (record.reason, record.snoozes, record.failures) == ("failed", 2, 1)
    assert record.message == "it snoozed once more, after max_snoozes (2): rate limit"
    assert len(shop.journal.all("try", id=id)) == 3


def test_a_jobs_own_bound_comes_first(shop: Workshop) -> None:
    id = shop.send("loop_bound", queue="snoozes", max_snoozes=0)
    record = shop.wait_state("snoozes", id, "dead")
    assert (record.snoozes, record.message) == (0, "it snoozed once more, after max_snoozes (0): rate limit")


def test_raw_handlers_and_failure_handlers_snooze_too(shop: Workshop) -> None:
    raw = shop.queue("raw-snoozes").enqueue(b"data").id
    assert shop.wait_state("raw-snoozes", raw, "dead").snoozes == 1
    shop.send("fail_for_good", queue="snoozes")
    shop.journal.wait(2, "told")

    def dead() -> list[str]:
        return [job.message or "" for job in shop.queue("snoozes").all_jobs("dead") if job.failed is not None]

    (message,) = wait_until(dead, "the failure job to be dead")
    assert message == "it snoozed once more, after max_snoozes (1)"
