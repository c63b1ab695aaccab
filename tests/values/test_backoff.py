"""The policy of retries: a pure function from what is known of a job to what becomes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from windlass import Lease, Limits
from windlass.values.backoff import after_crash, after_failure, after_snooze, backoff, crash_backoff
from windlass.values.job import Extras
from windlass.values.outcome import Crashed, Failed, Retried, Snoozed

LEASE = Lease(queue="q", id="a", data=b"", fence=1, limits=Limits(max_failures=2, min_backoff=4, max_backoff=60))


@pytest.mark.serves("Q2", "Q4")
def test_the_default_limits_are_those_of_queasys_document() -> None:
    limits = Limits()
    assert (limits.max_failures, limits.max_stalls) == (10, 3)
    assert (limits.min_backoff, limits.max_backoff) == (2, 300)


@pytest.mark.serves("Q2")
@pytest.mark.parametrize(("failures", "wait"), [(1, 2), (2, 4), (3, 8), (7, 128), (8, 240), (9, 240), (10_000, 240)])
def test_the_wait_doubles_up_to_the_maximum(failures: int, wait: float) -> None:
    assert backoff(failures, 2, 300, spread=0) == wait


def test_up_to_a_quarter_is_added_but_never_beyond_the_maximum() -> None:
    assert backoff(1, 8, 300, spread=1) == 10
    assert backoff(9, 2, 300, spread=1) == 300


@pytest.mark.parametrize(("count", "shortest", "longest"), [(1, 8, 10), (50, 240, 300)])
def test_waits_differ_also_at_the_maximum(count: int, shortest: float, longest: float) -> None:
    waits = {backoff(count, 8, 300) for _ in range(200)}
    assert len(waits) > 100
    assert min(waits) >= shortest
    assert max(waits) <= longest


def test_the_wait_is_never_shorter_than_the_minimum() -> None:
    assert backoff(9, 290, 300, spread=0) == 290
    assert backoff(9, 300, 300, spread=0) == 300


def test_no_failure_yet_waits_as_the_first() -> None:
    assert backoff(0, 2, 300, spread=0) == 2


def test_a_minimum_above_the_maximum_is_the_maximum() -> None:
    assert backoff(1, 100, 5, spread=0) == 5


def test_no_backoff_is_no_wait() -> None:
    assert backoff(5, 0, 0) == 0


def test_the_next_try_is_by_the_backoff() -> None:
    outcome = after_failure(LEASE, None, "why")
    assert isinstance(outcome, Retried)
    assert outcome.when is not None
    assert outcome.when[0] == "in"
    assert 4000 <= outcome.when[1] <= 5000
    assert (outcome.lease, outcome.message) == (LEASE, "why")


def test_or_when_it_is_told() -> None:
    assert after_failure(LEASE, ("at", 5), "why") == Retried(LEASE, ("at", 5), "why")
    assert after_failure(LEASE, ("in", 0), "") == Retried(LEASE, ("in", 0), "")


@pytest.mark.parametrize(("failures", "outcome"), [(0, Retried), (1, Retried), (2, Failed), (3, Failed)])
def test_so_many_failures_are_forgiven(failures: int, outcome: type) -> None:
    lease = replace(LEASE, failures=failures)
    assert isinstance(after_failure(lease, None, ""), outcome)
    assert isinstance(after_failure(lease, ("in", 0), ""), outcome)


def test_stalls_are_another_budget() -> None:
    assert isinstance(after_failure(replace(LEASE, stalls=99), None, ""), Retried)


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("crashes", "wait"), [(1, 0.5), (2, 2), (3, 8), (4, 16), (5, 32), (6, 48), (1000, 48)])
def test_the_wait_after_a_crash_grows_up_to_a_minute(crashes: int, wait: float) -> None:
    assert crash_backoff(crashes, Limits(), spread=0) == wait
    assert crash_backoff(1000, Limits(), spread=1) == 60


@pytest.mark.parametrize("limits", [Limits(), Limits(min_backoff=0.01), Limits(max_backoff=5), Limits(10, 3, 0, 0)])
def test_it_is_never_longer_than_after_as_many_failures(limits: Limits) -> None:
    for crashes in range(1, 20):
        failure = backoff(crashes, limits.min_backoff, limits.max_backoff, spread=0.5)
        assert crash_backoff(crashes, limits, spread=0.5) <= failure


def test_a_job_without_backoff_is_run_again_at_once_after_a_crash() -> None:
    assert after_crash(replace(LEASE, limits=Limits(min_backoff=0)), "killed").delay_ms == 0


def test_a_crash_goes_by_all_stalls_and_tells_the_limit_of_the_task() -> None:
    outcome = after_crash(replace(LEASE, stalls=2, limits=Limits(max_stalls=7)), "killed", keep_ms=5)
    assert outcome == Crashed(
        replace(LEASE, stalls=2, limits=Limits(max_stalls=7)), "killed", True, 7, 5, outcome.delay_ms
    )
    assert 8000 <= outcome.delay_ms <= 10_000


# -- snoozes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allowed", "snoozes", "outcome"), [(0, 0, Failed), (2, 1, Snoozed), (2, 2, Failed), (2, 9, Failed)]
)
def test_a_job_may_snooze_so_often(allowed: int, snoozes: int, outcome: type) -> None:
    lease = replace(LEASE, extras=Extras(snoozes=snoozes), limits=Limits(max_failures=0, max_snoozes=allowed))
    assert isinstance(after_snooze(lease, ("in", 5), "wait"), outcome)


def test_a_snooze_has_its_time_and_message_and_the_last_one_says_why_it_failed() -> None:
    assert after_snooze(LEASE, ("at", 5), "wait") == Snoozed(LEASE, ("at", 5), "wait")
    lease = replace(LEASE, limits=Limits(max_snoozes=0))
    assert after_snooze(lease, ("in", 5), "") == Failed(lease, "it snoozed once more, after max_snoozes (0)")
    assert after_snooze(lease, ("in", 5), "rate limit") == Failed(
        lease, "it snoozed once more, after max_snoozes (0): rate limit"
    )
