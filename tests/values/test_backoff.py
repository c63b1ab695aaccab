"""The policy of retries: a pure function from what is known of a job to what becomes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from windlass import Lease, Limits
from windlass.values.backoff import after_failure, backoff
from windlass.values.outcome import Failed, Retried

LEASE = Lease(queue="q", id="a", data=b"", fence=1, limits=Limits(max_failures=2, min_backoff=4, max_backoff=60))


@pytest.mark.serves("Q2", "Q4")
def test_the_default_limits_are_those_of_queasys_document() -> None:
    assert Limits() == Limits(max_failures=10, max_stalls=3, min_backoff=2, max_backoff=300)


@pytest.mark.serves("Q2")
@pytest.mark.parametrize(("failures", "wait"), [(1, 2), (2, 4), (3, 8), (8, 256), (9, 300), (10, 300), (10_000, 300)])
def test_the_wait_doubles_up_to_the_maximum(failures: int, wait: float) -> None:
    assert backoff(failures, 2, 300, spread=0) == wait


def test_up_to_a_quarter_is_added_but_never_beyond_the_maximum() -> None:
    assert backoff(1, 8, 300, spread=1) == 10
    assert backoff(9, 2, 300, spread=1) == 300
    waits = {backoff(1, 8, 300) for _ in range(200)}
    assert len(waits) > 100
    assert min(waits) >= 8
    assert max(waits) <= 10


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
