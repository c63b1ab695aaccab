"""The guard that keeps a worker with wrong keys or old code from moving a whole queue to `broken`."""

from __future__ import annotations

import pytest

from windlass import Lease
from windlass.values import decode_guard
from windlass.values.decode_guard import MAX_PAUSE_S, MAX_UNDECODABLE_IN_A_ROW, DecodeGuard
from windlass.values.outcome import Broken, Released

LEASE = Lease("q", "a", b"", 1)
OURS, EVERYBODYS = Broken(LEASE, "no argument", True), Broken(LEASE, "no envelope")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(decode_guard, "monotonic", lambda: now[0])
    return now


def exhausted(guard: DecodeGuard) -> DecodeGuard:
    assert [guard.record_undecodable(OURS) for _ in range(MAX_UNDECODABLE_IN_A_ROW)] == [
        OURS
    ] * MAX_UNDECODABLE_IN_A_ROW
    return guard


def test_after_a_run_the_others_are_given_back(clock: list[float]) -> None:
    guard = DecodeGuard()
    assert guard.all_decoded
    exhausted(guard)
    assert not guard.suspended
    assert guard.record_undecodable(OURS) == Released(LEASE)
    assert guard.suspend_if_too_many()
    assert guard.suspended
    assert "no argument" in guard.reason
    assert not guard.suspend_if_too_many(), "it is told once"


def test_what_no_worker_can_decode_says_nothing_about_this_one(clock: list[float]) -> None:
    guard = exhausted(DecodeGuard())
    assert guard.record_undecodable(EVERYBODYS) is EVERYBODYS


def test_a_job_that_could_be_decoded_begins_a_new_run(clock: list[float]) -> None:
    guard = DecodeGuard()
    for _ in range(MAX_UNDECODABLE_IN_A_ROW - 1):
        guard.record_undecodable(OURS)
    assert not guard.record_decoded()
    exhausted(guard)
    assert guard.suspend_if_too_many()
    assert guard.record_decoded(), "which ends the suspension"
    assert guard.all_decoded


def test_a_trial_moves_one_job_and_the_next_comes_later(clock: list[float]) -> None:
    guard = exhausted(DecodeGuard())
    guard.suspend_if_too_many()
    pauses = []
    for _ in range(8):
        pauses.append(guard.retry_at - clock[0])
        clock[0] = guard.retry_at
        guard.begin_trial()
        assert guard.record_undecodable(OURS) is OURS
        assert guard.record_undecodable(OURS) == Released(LEASE)
        guard.suspend_if_too_many()
    assert pauses == [1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]


def test_turns_that_were_under_way_do_not_prolong_a_suspension(clock: list[float]) -> None:
    guard = exhausted(DecodeGuard())
    guard.suspend_if_too_many()
    retry_at = guard.retry_at
    for _ in range(5):
        assert guard.record_undecodable(OURS) == Released(LEASE)
        guard.suspend_if_too_many()
        guard.record_broken_limit()
    assert guard.retry_at == retry_at


def test_room_for_broken_jobs_ends_only_a_suspension_for_want_of_room(clock: list[float]) -> None:
    guard = exhausted(DecodeGuard())
    guard.suspend_if_too_many()
    assert not guard.record_stored()
    full = DecodeGuard()
    assert full.record_broken_limit()
    assert full.record_undecodable(OURS) == Released(LEASE)
    assert full.record_stored()
    assert full.all_decoded


def test_a_trial_does_not_change_the_reason_of_a_queue_that_is_full(clock: list[float]) -> None:
    guard = DecodeGuard()
    assert guard.record_broken_limit()
    clock[0] = guard.retry_at
    guard.begin_trial()
    assert guard.record_undecodable(OURS) is OURS
    assert not guard.suspend_if_too_many()
    assert "max_broken" in guard.reason


def test_only_a_trial_makes_the_pause_longer(clock: list[float]) -> None:
    guard = exhausted(DecodeGuard())
    guard.suspend_if_too_many()
    clock[0] = retry_at = guard.retry_at
    guard.suspend_if_too_many()
    assert guard.retry_at == retry_at
