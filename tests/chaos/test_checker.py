"""Tests of the checker: it accepts a legal log, and finds every single planted violation under its name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chaos.checker import INVARIANTS, Report, check
from chaos.checker.forge import forge
from chaos.log import (
    Answered,
    Beaten,
    Began,
    Claim,
    Ended,
    EnqueueAsked,
    Extended,
    Fault,
    Finished,
    Handed,
    Inspected,
    Left,
    LogWriter,
    SettleAsked,
    Started,
    read_log,
)

from tests.chaos.stories import LEASE, QUEUE, Forged, Noted, Story, asked, check_of

replace = msgspec.structs.replace


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.fixture(scope="module")
def legal(tmp_path_factory: pytest.TempPathFactory) -> Forged:
    return Forged.make(tmp_path_factory.mktemp("forged"), jobs=300, seed=37)


def broken(report: Report) -> set[str]:
    return set(report.violated)


# -- legal logs ------------------------------------------------------------------------------------


def test_a_legal_log_is_clean_and_its_figures_add_up(legal: Forged, tmp_path: Path) -> None:
    report = legal.copy().check(tmp_path)
    assert report.ok, report.text()
    assert report.violations == ()
    assert report.lost.count == report.unexpected.count == report.settled_then_run_again == 0
    assert report.duplicates["UNEXPLAINED"] == 0
    assert report.reaped > 10
    assert report.worker_kills > 5
    assert report.server_kills > 0
    assert report.stale_refused > 0
    assert report.in_doubt > 3
    assert report.recovered.count > 0
    assert {cause for cause, count in report.duplicates.items() if count} >= {"retry", "release", "lost lease", "crash"}


@pytest.mark.parametrize("seed", range(4))
def test_other_legal_logs_are_clean(seed: int, tmp_path: Path) -> None:
    forge(tmp_path, 1000, seed=seed)
    report = check(tmp_path)
    assert report.ok, report.text()


# -- one illegal thing in a legal log --------------------------------------------------------------

Plant = Callable[[Forged], str]
"""Changes a log; returns the job that the report must name, or an empty string."""
PLANTS: dict[str, tuple[str, Plant]] = {}


def plant(invariant: str) -> Callable[[Plant], Plant]:
    def keep(function: Plant) -> Plant:
        PLANTS[function.__name__] = (invariant, function)
        return function

    return keep


def without_settle(log: Forged, job: str) -> None:
    for noted, one in log.settles(job):
        places = [place for place, other in enumerate(noted.sent.settles) if other is not one]
        log.put(noted.file, noted.at, settles=tuple(noted.sent.settles[place] for place in places))
        log.put(noted.file, noted.answered_at, settled=tuple(noted.answer.settled[place] for place in places))


def change_claim(log: Forged, noted: Noted, claim: Claim, **changes: Any) -> None:
    claims = tuple(replace(one, **changes) if one is claim else one for one in noted.answer.claims)
    log.put(noted.file, noted.answered_at, claims=claims)


def change_asked(log: Forged, job: str, **changes: Any) -> None:
    for name, records in log.files.items():
        for at, record in enumerate(records):
            if any(one.job == job for one in getattr(record, "enqueues", ())):
                jobs = tuple(replace(one, **changes) if one.job == job else one for one in record.enqueues)
                log.put(name, at, enqueues=jobs)


def enqueue_of(log: Forged, job: str) -> tuple[Noted, int]:
    return next(
        (noted, place) for noted in log.calls() for place, one in enumerate(noted.sent.enqueues) if one.job == job
    )


def retried_job(log: Forged) -> tuple[str, Noted, SettleAsked]:
    """A job that failed once, was retried immediately, and was leased again."""
    return next(
        (one.job, noted, one)
        for noted in log.calls()
        for one, ours in zip(noted.sent.settles, noted.answer.settled, strict=True)
        if one.outcome == "retried" and ours and one.job.startswith("p") and len(log.claims(one.job)) == 2
    )


def lost_lease(log: Forged) -> tuple[Noted, Claim]:
    """The second lease of a job whose first lease was lost."""
    return next(
        (noted, claim)
        for noted in log.calls()
        for claim in noted.answer.claims
        if claim.stalls == 1 and noted.answer.recovered and claim.job.startswith("p") and len(log.claims(claim.job)) > 1
    )


@plant("I1")
def a_job_is_lost_after_it_was_given_out(log: Forged) -> str:
    job = log.plain()
    without_settle(log, job)
    return job


@plant("I1")
def a_job_is_lost_before_it_was_given_out(log: Forged) -> str:
    job = log.plain()
    without_settle(log, job)
    ((noted, claim),) = log.claims(job)
    log.put(noted.file, noted.answered_at, claims=tuple(one for one in noted.answer.claims if one is not claim))
    log.drop(lambda record: getattr(record, "job", "") != job)
    return job


@plant("I1")
def a_job_that_was_handed_over_never_arrives(log: Forged) -> str:
    job = log.plain()
    ((noted, _),) = log.settles(job)
    other = "beta" if noted.sent.queue == "alpha" else "alpha"
    log.put(noted.file, noted.at, handed=(Handed(job, other, asked(f"{job}.0")),))
    return f"{job}.0"


@plant("I1")
def an_unheard_end_by_an_older_fence_accounts_for_nothing(log: Forged) -> str:
    job = log.plain()
    ((noted, one),) = log.settles(job)
    without_settle(log, job)
    unheard = replace(noted.sent, call=2_000_000, settles=(replace(one, fence=one.fence - 1),), want=0)
    log.insert(noted.file, unheard)
    return job


@plant("I2")
def a_payload_is_changed_when_it_is_given_out(log: Forged) -> str:
    job = log.plain()
    ((noted, claim),) = log.claims(job)
    change_claim(log, noted, claim, check=claim.check ^ 1)
    return job


@plant("I2")
def a_payload_is_changed_when_it_is_started(log: Forged) -> str:
    job = log.plain()
    log.change(Started, job, check=12345)
    return job


@plant("I2")
def a_job_runs_that_nobody_enqueued(log: Forged) -> str:
    job = log.plain()
    noted, place = enqueue_of(log, job)
    log.put(noted.file, noted.at, enqueues=tuple(one for one in noted.sent.enqueues if one.job != job))
    statuses = noted.answer.statuses
    log.put(noted.file, noted.answered_at, statuses=statuses[:place] + statuses[place + 1 :])
    return job


@plant("I2")
def a_job_is_started_under_the_fence_of_another(log: Forged) -> str:
    job = log.plain()
    log.change(Started, job, job="p0-99999999")
    return "p0-99999999"


@plant("I2")
def a_grave_holds_another_payload(log: Forged) -> str:
    name, at, left = next(found for found in log.all(Left) if found[2].job.startswith("p") and found[2].state == "dead")
    log.put(name, at, check=1)
    return str(left.job)


@plant("I2")
def a_job_is_left_that_nobody_enqueued(log: Forged) -> str:
    name, _, left = next(found for found in log.all(Left) if found[2].state == "dead")
    log.insert(name, replace(left, job="p0-77777777"))
    return "p0-77777777"


@plant("I2")
def a_job_of_an_unheard_enqueue_comes_with_another_payload(log: Forged) -> str:
    kept = next(noted for noted in log.calls() if "k" in noted.answer.statuses and noted.sent.enqueues[0].job[0] == "p")
    job = kept.sent.enqueues[kept.answer.statuses.index("k")].job
    noted, claim = log.claims(job)[0]
    change_claim(log, noted, claim, check=1)
    return job


@plant("I3")
def a_job_is_added_twice(log: Forged) -> str:
    job = log.plain()
    noted, place = enqueue_of(log, job)
    log.call_after(noted, {"enqueues": (noted.sent.enqueues[place],)}, {"statuses": "a"})
    return job


@plant("I3")
def a_new_job_is_said_to_have_been_there(log: Forged) -> str:
    job = log.plain()
    noted, place = enqueue_of(log, job)
    statuses = noted.answer.statuses
    log.put(noted.file, noted.answered_at, statuses=statuses[:place] + "u" + statuses[place + 1 :])
    return job


@plant("I3")
def a_job_is_said_to_be_there_after_its_end(log: Forged) -> str:
    job = log.plain()
    noted, place = enqueue_of(log, job)
    one = noted.sent.enqueues[place]
    log.call_after(log.settles(job)[0][0], {"enqueues": (one,)}, {"statuses": "k"})
    return job


@plant("I3")
def more_jobs_are_answered_for_than_were_asked_for(log: Forged) -> str:
    noted, _ = enqueue_of(log, log.plain())
    log.put(noted.file, noted.answered_at, statuses=noted.answer.statuses + "a")
    return ""


@plant("I4")
def a_job_is_completed_twice(log: Forged) -> str:
    job = log.plain()
    ((noted, one),) = log.settles(job)
    log.call_after(noted, {"settles": (one,)}, {"settled": (True,)})
    return job


@plant("I4")
def a_job_is_completed_that_was_not_run(log: Forged) -> str:
    job = log.plain()
    log.drop(lambda record: not isinstance(record, Started | Finished) or record.job != job)
    return job


@plant("I4")
def a_job_is_completed_whose_attempt_raised(log: Forged) -> str:
    job = log.plain()
    log.change(Finished, job, how="raised")
    return job


@plant("I4")
def a_job_is_cancelled_after_its_end(log: Forged) -> str:
    job = log.plain()
    log.call_after(log.settles(job)[0][0], {"cancels": (job,)}, {"cancelled": (True,)})
    return job


@plant("I4")
def a_completed_job_lies_among_the_dead(log: Forged) -> str:
    job = log.plain()
    name, _, left = next(found for found in log.all(Left) if found[2].state == "dead")
    log.insert(name, replace(left, job=job, queue=log.claims(job)[0][0].answer.queue, check=check_of(job)))
    return job


@plant("I5")
def a_completed_job_is_given_out_again(log: Forged) -> str:
    job = log.plain()
    ((noted, claim),) = log.claims(job)
    ended = log.settles(job)[0][0]
    again = replace(claim, fence=max(one.fence for one in ended.answer.claims) + 500)
    given = {"claims": (again,), "holder": noted.sent.holder, "lease": LEASE}
    log.call_after(ended, {"want": 1, "holder": noted.sent.holder}, given)
    return job


@plant("I5")
def a_completed_job_is_started_again(log: Forged) -> str:
    job = log.plain()
    name, _, started = next(found for found in log.all(Started) if found[2].job == job)
    log.insert(name, replace(started, t=log.files[name][-1].t + 1, fence=started.fence + 500_000_000))
    return job


@plant("I5")
def a_cancelled_job_is_given_out_again(log: Forged) -> str:
    job, _, _ = retried_job(log)
    first, _ = log.claims(job)[0]
    log.call_after(first, {"cancels": (job,)}, {"cancelled": (True,)})
    without_settle(log, job)
    return job


@plant("I6")
def a_fence_is_given_out_twice(log: Forged) -> str:
    noted = next(noted for noted in log.calls() if len(noted.answer.claims) > 2)
    one, other = noted.answer.claims[:2]
    change_claim(log, noted, other, fence=one.fence)
    return other.job


@plant("I6")
def a_fence_falls(log: Forged) -> str:
    job = log.plain()
    ((noted, claim),) = log.claims(job)
    change_claim(log, noted, claim, fence=5)
    return job


@plant("I6")
def a_job_is_given_to_a_second_holder_while_the_first_has_it(log: Forged) -> str:
    job = log.plain()
    ((noted, claim),) = log.claims(job)
    again = replace(claim, fence=max(one.fence for one in noted.answer.claims) + 1)
    name = next(name for name in log.files if name.startswith("runner") and name != noted.file)
    given = {"claims": (again,), "holder": "another", "lease": LEASE}
    log.call_after(noted, {"want": 1, "holder": "another"}, given, name=name)
    return job


@plant("I6")
def two_calls_are_the_same_step(log: Forged) -> str:
    noted = next(noted for noted in log.calls() if noted.answer.statuses)
    one = EnqueueAsked("p0-88888888", 1)
    log.call_after(noted, {"enqueues": (one,)}, {"statuses": "a"})
    name, at, _ = next(found for found in log.all(Answered) if found[2].step == noted.answer.step + 1)
    log.put(name, at, step=noted.answer.step)
    return ""


@plant("I6")
def a_job_is_started_under_a_fence_that_nobody_was_given(log: Forged) -> str:
    job = log.plain()
    name, _, started = next(found for found in log.all(Started) if found[2].job == job)
    log.insert(name, replace(started, job="p0-66666666", fence=17))
    return "p0-66666666"


@plant("I6")
def more_jobs_are_given_out_than_were_wanted(log: Forged) -> str:
    noted = next(noted for noted in log.calls() if len(noted.answer.claims) > 1)
    log.put(noted.file, noted.at, want=1)
    return noted.answer.claims[-1].job


@plant("I7")
def a_stale_outcome_is_accepted(log: Forged) -> str:
    noted, place = next(
        (noted, noted.answer.settled.index(False))
        for noted in log.calls()
        if False in noted.answer.settled and noted.sent.settles[noted.answer.settled.index(False)].job.startswith("p")
    )
    settled = list(noted.answer.settled)
    settled[place] = True
    log.put(noted.file, noted.answered_at, settled=tuple(settled))
    return noted.sent.settles[place].job


@plant("I7")
def the_owner_is_refused(log: Forged) -> str:
    job = log.plain()
    ((noted, one),) = log.settles(job)
    settled = list(noted.answer.settled)
    settled[noted.sent.settles.index(one)] = False
    log.put(noted.file, noted.answered_at, settled=tuple(settled))
    return job


@plant("I7")
def a_stale_extension_is_accepted(log: Forged) -> str:
    noted, claim = lost_lease(log)
    (first, before), *_ = log.claims(claim.job)
    answer = noted.answer
    late = Extended(
        answer.t + 1, answer.queue, claim.job, before.fence, True, answer.epoch, answer.step + 1, answer.now, 9
    )
    log.insert(first.file, late)
    return claim.job


@plant("I8")
def a_holder_is_lost_that_nothing_happened_to(log: Forged) -> str:
    log.drop(lambda record: not isinstance(record, Fault | Ended))
    return ""


@plant("I8")
def two_attempts_share_a_fence(log: Forged) -> str:
    job = log.plain()
    name, _, started = next(found for found in log.all(Started) if found[2].job == job)
    log.insert(name, replace(started, t=started.t + 1))
    return job


@plant("I8")
def a_holder_is_called_lost_while_its_lease_is_good(log: Forged) -> str:
    beats: dict[str, list[tuple[int, Beaten]]] = {}
    for name, at, beat in log.all(Beaten):
        beats.setdefault(name, []).append((at, beat))
    name, (_, (at, _), *_) = next((name, found) for name, found in beats.items() if len(found) > 2)
    log.put(name, at, known=False)
    return ""


@plant("I10")
def a_job_is_given_out_before_its_run_time(log: Forged) -> str:
    job = next(one.job for noted in log.calls() for one in noted.sent.enqueues if one.run_at and log.claims(one.job))
    change_asked(log, job, run_at=log.claims(job)[0][0].answer.wall + 1)
    return job


@plant("I10")
def a_job_is_given_out_before_its_delay_is_over(log: Forged) -> str:
    job = next(
        one.job
        for noted in log.calls()
        for one, status in zip(noted.sent.enqueues, noted.answer.statuses, strict=True)
        if one.delay and status == "a" and log.claims(one.job)
    )
    noted, _ = enqueue_of(log, job)
    change_asked(log, job, delay=log.claims(job)[0][0].answer.wall - noted.answer.wall + 10)
    return job


@plant("I10")
def a_job_is_tried_again_too_early(log: Forged) -> str:
    job, noted, one = retried_job(log)
    _, (again, _) = log.claims(job)
    settles = tuple(
        replace(other, delay=again.answer.wall - noted.answer.wall + 10) if other is one else other
        for other in noted.sent.settles
    )
    log.put(noted.file, noted.at, settles=settles)
    return job


@plant("I10")
def the_queues_clock_runs_back(log: Forged) -> str:
    noted = [noted for noted in log.calls() if noted.answer.statuses][4]
    log.put(noted.file, noted.answered_at, now=noted.answer.now - 500)
    return ""


@plant("I11")
def a_priority_is_changed(log: Forged) -> str:
    job = log.plain()
    ((noted, claim),) = log.claims(job)
    change_claim(log, noted, claim, priority=claim.priority + 20)
    return job


@plant("I11")
def a_batch_is_given_out_backwards(log: Forged) -> str:
    noted = next(
        noted
        for noted in log.calls()
        if sum(claim.priority == 5 and claim.job[0] == "p" for claim in noted.answer.claims) > 6
        and not noted.answer.recovered
    )
    fences = [claim.fence for claim in noted.answer.claims]
    jobs = [replace(claim, fence=fence) for claim, fence in zip(reversed(noted.answer.claims), fences, strict=True)]
    log.put(noted.file, noted.answered_at, claims=tuple(jobs))
    return ""


@plant("I12")
def a_lost_lease_is_not_counted(log: Forged) -> str:
    noted, claim = lost_lease(log)
    change_claim(log, noted, claim, stalls=0)
    return claim.job


@plant("I12")
def a_failure_is_not_counted(log: Forged) -> str:
    job, _, _ = retried_job(log)
    noted, claim = log.claims(job)[1]
    change_claim(log, noted, claim, failures=0)
    return job


@plant("I12")
def a_job_is_tried_beyond_its_failures(log: Forged) -> str:
    job, _, _ = retried_job(log)
    change_asked(log, job, max_failures=0)
    return job


@plant("I12")
def a_job_is_given_out_beyond_its_stalls(log: Forged) -> str:
    _, claim = lost_lease(log)
    change_asked(log, claim.job, max_stalls=0)
    return claim.job


@plant("I12")
def an_attempt_is_miscounted(log: Forged) -> str:
    job = log.plain()
    log.change(Started, job, attempt=2)
    return job


@plant("I12")
def a_dead_job_has_other_counts(log: Forged) -> str:
    name, at, left = next(found for found in log.all(Left) if found[2].job.startswith("p") and found[2].state == "dead")
    log.put(name, at, failures=left.failures + 1)
    return str(left.job)


@plant("I12")
def a_dead_job_has_another_reason(log: Forged) -> str:
    name, at, left = next(found for found in log.all(Left) if found[2].job.startswith("p") and found[2].state == "dead")
    log.put(name, at, reason="stalled" if left.reason != "stalled" else "failed")
    return str(left.job)


@plant("I12")
def a_dead_job_is_not_among_the_dead(log: Forged) -> str:
    _, _, left = next(found for found in log.all(Left) if found[2].job.startswith("p") and found[2].state == "dead")
    log.drop(lambda record: record != left)
    return str(left.job)


@plant("I12")
def a_queue_does_not_drain(log: Forged) -> str:
    name, at, _ = next(log.all(Inspected))
    log.put(name, at, drained=False)
    return ""


@plant("I12")
def a_job_is_left_waiting(log: Forged) -> str:
    job = log.plain()
    queue = log.claims(job)[0][0].answer.queue
    without_settle(log, job)
    name, _, seen = next(found for found in log.all(Inspected) if found[2].queue == queue)
    log.insert(name, Left(seen.t, queue, job, "ready", 0, 0, "", check_of(job)))
    return job


@plant("I12")
def an_audit_finds_something_amiss(log: Forged) -> str:
    name, at, _ = next(log.all(Inspected))
    log.put(name, at, problems=1)
    return ""


@plant("I12")
def counts_say_what_is_not_there(log: Forged) -> str:
    name, at, seen = next(log.all(Inspected))
    log.put(name, at, counts={**seen.counts, "running": 1})
    return ""


@plant("I12")
def keys_are_left_behind(log: Forged) -> str:
    name, at, _ = next(log.all(Inspected))
    log.put(name, at, keys=22)
    return ""


@plant("I12")
def nobody_looks_at_the_end(log: Forged) -> str:
    _, _, seen = next(log.all(Inspected))
    log.drop(lambda record: record != seen)
    return ""


@pytest.mark.parametrize("name", PLANTS)
def test_one_illegal_thing_is_found_by_its_name(name: str, legal: Forged, tmp_path: Path) -> None:
    invariant, change = PLANTS[name]
    log = legal.copy()
    job = change(log)
    report = log.check(tmp_path)
    found = [one for one in report.violations if one.invariant == invariant]
    assert found, report.text()
    assert not job or job in {one.job for one in found}
    assert not report.ok


def test_every_invariant_is_shown_to_bite() -> None:
    """Violations that need a story of their own are below."""
    assert {invariant for invariant, _ in PLANTS.values()} | {"I9"} == set(INVARIANTS)


# -- stories: I1, what may be lost -----------------------------------------------------------------


def test_an_unheard_completion_accounts_for_a_job_that_is_gone(story: Story) -> None:
    story.enqueue("p-1", "p-2")
    first = story.claim("w", "p-1")
    story.start("w", "p-1", first)
    story.finish("w", "p-1", first)
    story.settle("w", "p-1", first, heard=False)
    story.kill("w")
    story.complete("v", "p-2", story.claim("v", "p-2"))
    report = story.end()
    assert report.ok, report.text()
    assert (report.completed, report.ended_unheard, report.in_doubt) == (1, 1, 1)


def test_an_unheard_failure_does_not_account_for_a_job_that_lies_in_no_grave(story: Story) -> None:
    story.enqueue("p-1")
    first = story.claim("w", "p-1")
    story.settle("w", "p-1", first, "failed", heard=False)
    story.kill("w")
    report = story.end()
    assert broken(report) == {"I1"}
    assert report.lost.some == ("p-1",)


def test_an_unheard_failure_accounts_for_a_grave(story: Story) -> None:
    story.enqueue("p-1")
    first = story.claim("w", "p-1")
    story.settle("w", "p-1", first, "failed", heard=False)
    story.kill("w")
    story.bury("p-1", 1, 0, "failed")
    report = story.end()
    assert report.ok, report.text()


def test_a_lease_that_nobody_heard_of_shows_in_the_next_claim(story: Story) -> None:
    story.enqueue("p-1", "p-2", "p-3")
    story.claim("w", "p-1", heard=False)
    story.kill("w")
    second = story.claim("v", "p-2")
    story.complete("v", "p-2", second)
    third = story.claim("v", "p-3")
    story.complete("v", "p-3", third)
    story.at += 2
    back = story.claim("v", Claim("p-1", third + 1, check_of("p-1"), 5, 0, 1), recovered=1)
    story.complete("v", "p-1", back, attempt=2)
    report = story.end()
    assert report.ok, report.text()
    assert report.claimed_unheard == 1


def test_an_unheard_enqueue_may_come_or_not(story: Story) -> None:
    story.enqueue("p-1", "p-2", heard=False)
    story.complete("w", "p-1", story.claim("w", "p-1"))
    report = story.end()
    assert report.ok, report.text()
    assert (report.asked, report.acknowledged, report.recovered.some) == (2, 0, ("p-1",))


def test_an_unheard_enqueue_must_not_be_lost_once_it_was_given_out(story: Story) -> None:
    story.enqueue("p-1", heard=False)
    story.claim("w", "p-1")
    report = story.end()
    assert broken(report) == {"I1"}


def rewound(story: Story, how: str, level: str, age: float) -> Report:
    """A job is acknowledged at a level, `age` seconds before the server is killed, and is then missing."""
    story.enqueue("p-1", level="fsync")
    story.at = 10.0
    story.enqueue("p-2", level=level)
    story.at = 10.0 + age
    story.fault("kill server", "server")
    story.rewind(how, since=5.0)
    story.fault("kill server", "server", begins=False)
    story.step = 1
    story.complete("w", "p-1", story.claim("w", "p-1"))
    return story.end()


@pytest.mark.parametrize(
    ("how", "level", "age"),
    [
        ("killed", "memory", 3.0),
        ("killed", "everysec", 1.5),
        ("failover", "fsync", 1.0),
        ("restored", "fsync", 3.0),
        ("flushed", "replicated(2)", 1.0),
    ],
)
def test_what_a_level_allows_to_be_lost_is_listed(how: str, level: str, age: float, story: Story) -> None:
    report = rewound(story, how, level, age)
    assert report.forgotten.some == ("p-2",)
    assert "p-2" not in report.lost.some
    assert report.rewinds == 1


@pytest.mark.parametrize(
    ("how", "level", "age"),
    [("killed", "everysec", 2.5), ("killed", "fsync", 0.1), ("failover", "replicated(1)", 0.1)],
)
def test_what_a_level_does_not_allow_to_be_lost_is_lost(how: str, level: str, age: float, story: Story) -> None:
    report = rewound(story, how, level, age)
    assert broken(report) == {"I1"}
    assert report.lost.some == ("p-2",)


def test_what_was_acknowledged_before_the_window_of_a_rewind_must_be_there(story: Story) -> None:
    story.enqueue("p-1", level="memory")
    story.at = 10.0
    story.rewind("killed", since=5.0)
    report = story.end()
    assert broken(report) == {"I1"}


def test_a_completion_that_was_undone_by_a_rewind_is_counted_and_allowed(story: Story) -> None:
    story.enqueue("p-1", level="everysec")
    story.at = 10.0
    story.complete("w", "p-1", story.claim("w", "p-1"))
    story.fault("kill server", "server")
    story.rewind("killed", since=9.0)
    story.fault("kill server", "server", begins=False)
    story.step = 1
    story.complete("w", "p-1", story.claim("w", "p-1"))
    report = story.end()
    assert report.ok, report.text()
    assert (report.completed, report.rerun_after_rewind, report.settled_then_run_again) == (1, 1, 0)
    assert report.duplicates["rewind"] == 1


def test_where_jobs_were_lost_is_told_by_producer(story: Story) -> None:
    jobs = [f"p-{number}" for number in range(6)]
    story.enqueue(*jobs)
    for job in ("p-1", "p-2", "p-4"):
        story.complete("w", job, story.claim("w", job))
    report = story.end()
    assert (report.lost_first, report.lost_middle, report.lost_last) == (1, 1, 1)


# -- stories: I7 to I9 -----------------------------------------------------------------------------


def test_an_outcome_is_accepted_from_a_fence_that_nobody_was_given(story: Story) -> None:
    story.enqueue("p-1")
    story.settle("w", "p-1", 77)
    assert "I7" in broken(story.end())


def lost(story: Story, after: float, recovered: int = 1, **more: Any) -> Report:
    """A worker is killed while it holds a job; another gets that job `after` seconds later."""
    story.enqueue("p-1")
    story.start("w", "p-1", story.claim("w", "p-1"))
    if more.get("killed", True):
        story.kill("w")
    story.at += after
    story.clock_ahead += more.get("clock_ahead", 0)
    again = story.claim("v", Claim("p-1", 200, check_of("p-1"), 5, 0, more.get("stalls", 1)), recovered=recovered)
    story.complete("v", "p-1", again, attempt=2)
    return story.end()


def test_a_lost_lease_is_explained_by_a_death(story: Story) -> None:
    report = lost(story, after=1.1)
    assert report.ok, report.text()
    assert report.duplicates["lost lease"] == report.reaped == 1


def test_a_job_is_taken_back_before_its_lease_was_over(story: Story) -> None:
    report = lost(story, after=0.5)
    assert broken(report) == {"I8"}
    assert "before the lease" in report.violations[0].sentence
    assert report.duplicates["UNEXPLAINED"] == 1


def test_a_job_is_given_out_again_while_its_lease_is_good(story: Story) -> None:
    assert "I6" in broken(lost(story, after=0.5, recovered=0))


def test_a_job_is_given_out_again_and_nobody_took_it_back(story: Story) -> None:
    report = lost(story, after=5, recovered=0)
    assert broken(report) == {"I8"}
    assert "nothing ended its lease" in report.violations[0].sentence


def test_a_lease_is_cut_short_in_real_time_by_a_clock_that_runs_ahead(story: Story) -> None:
    report = lost(story, after=0.3, clock_ahead=5000)
    assert broken(report) == {"I8"}
    assert "in real time" in report.violations[0].sentence


def test_more_jobs_are_taken_back_than_were_held(story: Story) -> None:
    assert broken(lost(story, after=1.1, recovered=2)) == {"I8"}


def test_a_holder_is_lost_though_nothing_happened_to_it(story: Story) -> None:
    report = lost(story, after=1.1, killed=False)
    assert "I8" in broken(report)
    assert any("no fault" in one.sentence for one in report.violations)


def test_a_heartbeat_keeps_a_lease(story: Story) -> None:
    story.enqueue("p-1")
    fence = story.claim("w", "p-1")
    story.start("w", "p-1", fence)
    for _ in range(5):
        story.at += 0.6
        story.beat("w")
    story.kill("w")
    story.at += 0.5
    story.claim("v", Claim("p-1", 200, check_of("p-1"), 5, 0, 1), recovered=1)
    assert "I8" in broken(story.end())


def test_a_heartbeat_is_accepted_after_everything_was_taken_back(story: Story) -> None:
    story.enqueue("p-1")
    story.claim("w", "p-1")
    story.fault("stop worker", "w")
    story.at += 1.2
    story.complete("v", "p-1", story.claim("v", Claim("p-1", 200, check_of("p-1"), 5, 0, 1), recovered=1), attempt=2)
    story.fault("stop worker", "w", begins=False)
    story.beat("w")
    assert broken(story.end()) == {"I7"}


def test_jobs_are_given_to_a_holder_that_was_called_lost(story: Story) -> None:
    story.enqueue("p-1", "p-2")
    story.claim("w", "p-1")
    story.fault("stop worker", "w")
    story.at += 1.2
    story.complete("v", "p-1", story.claim("v", Claim("p-1", 200, check_of("p-1"), 5, 0, 1), recovered=1), attempt=2)
    story.fault("stop worker", "w", begins=False)
    story.complete("w", "p-2", story.claim("w", "p-2"))
    assert broken(story.end()) == {"I7"}


def single(number: int) -> EnqueueAsked:
    return EnqueueAsked("one-1", number, singleton=True)


def single_claim(fence: int, number: int) -> Claim:
    return Claim("one-1", fence, number, 5, 0, 0)


def test_two_of_a_singleton_run_one_after_the_other(story: Story) -> None:
    story.enqueue(single(1))
    first = story.claim("w", single_claim(200, 1))
    story.enqueue(single(2), statuses="b")
    story.start("w", "one-1", first, check=1)
    story.finish("w", "one-1", first)
    story.settle("w", "one-1", first)
    second = story.claim("v", single_claim(300, 2))
    story.start("v", "one-1", second, check=2)
    story.finish("v", "one-1", second)
    story.settle("v", "one-1", second)
    report = story.end()
    assert report.ok, report.text()
    assert (report.completed, report.duplicated.count) == (2, 0)


def test_two_of_a_singleton_are_given_out_at_once(story: Story) -> None:
    story.enqueue(single(1))
    story.claim("w", single_claim(200, 1))
    story.enqueue(single(2), statuses="b")
    story.claim("v", single_claim(300, 2))
    assert "I9" in broken(story.end())


def test_a_singleton_is_changed_while_it_runs(story: Story) -> None:
    story.enqueue(single(1))
    story.claim("w", single_claim(200, 1))
    story.enqueue(single(2), statuses="u")
    assert "I9" in broken(story.end())


def test_the_last_of_a_singleton_is_lost(story: Story) -> None:
    story.enqueue(single(1))
    first = story.claim("w", single_claim(200, 1))
    story.enqueue(single(2), statuses="b")
    story.start("w", "one-1", first, check=1)
    story.finish("w", "one-1", first)
    story.settle("w", "one-1", first)
    assert broken(story.end()) == {"I1"}


def overlap(story: Story, fault: str, lasts: float) -> Report:
    """A worker with a job is hit by a fault; another runs that job; the first one continues for a while."""
    story.enqueue("p-1")
    first = story.claim("w", "p-1")
    story.start("w", "p-1", first)
    if fault:
        story.fault(fault, "w")
    else:
        story.fault("kill server", "server")
        story.fault("kill server", "server", begins=False)
    story.at += 1.2
    second = story.claim("v", Claim("p-1", 200, check_of("p-1"), 5, 0, 1), recovered=1)
    story.start("v", "p-1", second, attempt=2)
    story.at += 0.5
    if fault:
        story.fault(fault, "w", begins=False)
    story.at += lasts
    story.finish("w", "p-1", first, "stopped")
    story.settle("w", "p-1", first, "released", ours=False)
    story.finish("v", "p-1", second)
    story.settle("v", "p-1", second)
    return story.end()


def test_a_short_overlap_after_a_stop_is_measured_and_allowed(story: Story) -> None:
    report = overlap(story, "stop worker", lasts=0.1)
    assert report.ok, report.text()
    assert report.overlaps == 1
    assert 95 < report.overlap_ms_max < 110
    assert report.stale_refused == 1


def test_a_long_overlap_after_a_stop_is_too_long(story: Story) -> None:
    assert broken(overlap(story, "stop worker", lasts=0.4)) == {"I9"}


def test_an_overlap_without_a_stop_is_never_allowed(story: Story) -> None:
    assert broken(overlap(story, "", lasts=0.1)) == {"I9"}


# -- stories: I10, I11, I12 ------------------------------------------------------------------------


def test_a_job_is_early_in_real_time_though_the_servers_clock_says_it_is_due(story: Story) -> None:
    story.enqueue(asked("p-1", run_at=story.wall + 3_600_000))
    story.wall_ahead = 3_600_000
    story.at += 1
    story.complete("w", "p-1", story.claim("w", "p-1"))
    report = story.end()
    assert broken(report) == {"I10"}
    assert "real time" in report.violations[0].sentence


def test_a_job_is_early_in_real_time_though_nobody_has_started_it(story: Story) -> None:
    story.enqueue(asked("p-1", delay=2000))
    story.wall_ahead = 5000
    story.at += 1
    story.settle("w", "p-1", story.claim("w", "p-1"))
    report = story.end()
    assert broken(report) == {"I10"}
    assert "was leased" in report.violations[0].sentence


def test_how_late_jobs_are_is_told(story: Story) -> None:
    story.enqueue(asked("p-1", delay=500))
    story.at += 0.8
    story.complete("w", "p-1", story.claim("w", "p-1"))
    report = story.end()
    assert report.ok, report.text()
    assert report.timed == 1
    assert 300 <= report.late_ms_max <= 310


@pytest.mark.parametrize("outcome", ["retried", "snoozed", "crashed"])
@pytest.mark.parametrize("early", [True, False])
def test_a_job_that_was_put_off_comes_back_before_its_time(story: Story, outcome: str, early: bool) -> None:
    story.enqueue("p-1")
    first = story.claim("w", "p-1")
    story.start("w", "p-1", first)
    if outcome != "crashed":
        story.finish("w", "p-1", first, "raised")
    story.settle("w", "p-1", first, outcome, delay=5000)
    story.at += 1 if early else 6
    counts = {"retried": (1, 0), "snoozed": (0, 0), "crashed": (0, 1)}[outcome]
    again = story.claim("w", Claim("p-1", 200, check_of("p-1"), 5, *counts))
    story.complete("w", "p-1", again, attempt=1 + sum(counts))
    assert broken(story.end()) == ({"I10"} if early else set())


def test_a_snooze_is_charged(story: Story) -> None:
    story.enqueue("p-1")
    first = story.claim("w", "p-1")
    story.start("w", "p-1", first)
    story.finish("w", "p-1", first, "raised")
    story.settle("w", "p-1", first, "snoozed")
    again = story.claim("w", Claim("p-1", 200, check_of("p-1"), 5, 1, 0))
    story.complete("w", "p-1", again, attempt=2)
    assert broken(story.end()) == {"I12"}


def in_order(story: Story, *jobs: str) -> Report:
    for job in jobs:
        story.complete("w", job, story.claim("w", job))
    return story.end()


def test_jobs_are_given_out_in_their_order(story: Story) -> None:
    story.enqueue("p-1", "p-2")
    story.enqueue("p-3")
    assert in_order(story, "p-1", "p-2", "p-3").ok


@pytest.mark.parametrize("order", [("p-3", "p-2", "p-1"), ("p-1", "p-3", "p-2"), ("p-2", "p-1", "p-3")])
def test_another_order_is_seen_at_once(order: tuple[str, ...], story: Story) -> None:
    story.enqueue("p-1", "p-2", "p-3")
    report = in_order(story, *order)
    assert broken(report) == {"I11"}


def test_a_job_of_a_lower_priority_is_given_out_first(story: Story) -> None:
    story.enqueue("p-1", asked("p-2", priority=3))
    assert broken(in_order(story, "p-1")) == {"I1", "I11"}


def test_a_released_job_goes_to_the_back_instead_of_its_old_place(story: Story) -> None:
    story.enqueue("p-1", "p-2", "p-3")
    first = story.claim("w", "p-1")
    story.settle("w", "p-1", first, "released")
    assert broken(in_order(story, "p-2", "p-3", "p-1")) == {"I11"}


def test_a_retried_job_goes_to_the_front_instead_of_behind_its_equals(story: Story) -> None:
    story.enqueue("p-1", "p-2")
    first = story.claim("w", "p-1")
    story.settle("w", "p-1", first, "retried")
    again = story.claim("w", Claim("p-1", 200, check_of("p-1"), 5, 1, 0))
    story.complete("w", "p-1", again, attempt=2)
    assert broken(in_order(story, "p-2")) == {"I11"}


def test_a_job_that_is_due_is_passed_over_for_long(story: Story) -> None:
    story.enqueue(asked("p-1", delay=100))
    story.at += 5
    story.enqueue("p-2")
    story.enqueue("p-3")
    assert broken(in_order(story, "p-2", "p-3", "p-1")) == {"I11"}


def test_a_job_that_was_due_only_when_the_answer_was_repeated_is_not_passed_over(story: Story) -> None:
    story.enqueue(asked("p-1", delay=1000), asked("p-2", priority=6))
    fence = story.claim("w", Claim("p-2", 200, check_of("p-2"), 6, 0, 0), took=6)
    story.complete("w", "p-2", fence)
    report = in_order(story, "p-1")
    assert report.ok, report.text()


def test_a_job_that_was_just_due_may_stand_before_or_behind(story: Story) -> None:
    story.enqueue(asked("p-1", delay=100))
    story.at += 0.5
    story.enqueue("p-2")
    assert in_order(story, "p-2", "p-1").ok


def crashes(story: Story, times: int) -> None:
    for number in range(times):
        claim = Claim("p-1", 200 + number, check_of("p-1"), 5, 0, number)
        story.start("w", "p-1", story.claim("w", claim), attempt=number + 1)
        story.settle("w", "p-1", 200 + number, "crashed")


def test_a_job_that_crashes_is_dead_after_exactly_its_crashes(story: Story) -> None:
    story.enqueue("p-1")
    crashes(story, 4)
    story.bury("p-1", 0, 4, "crashed")
    report = story.end()
    assert report.ok, report.text()
    assert (report.dead, report.duplicates["crash"]) == (1, 3)


def test_a_job_is_dead_before_its_crashes_are_used_up(story: Story) -> None:
    story.enqueue("p-1")
    crashes(story, 3)
    story.bury("p-1", 0, 3, "crashed")
    assert "I12" in broken(story.end())


def test_a_job_runs_on_after_its_crashes_are_used_up(story: Story) -> None:
    story.enqueue("p-1")
    crashes(story, 5)
    assert "I5" in broken(story.end())


def handle_failure(story: Story, name: str) -> None:
    fence = story.claim("w", Claim(name, story.claim("w") + 1, 5, 5, 0, 0, caught=True))
    story.settle("w", name, fence)


def test_a_failure_that_a_handler_took_lies_in_no_grave(story: Story) -> None:
    story.enqueue("p-1")
    story.settle("w", "p-1", story.claim("w", "p-1"), "failed")
    handle_failure(story, "failure-2")
    report = story.end()
    assert report.ok, report.text()
    assert (report.dead, report.handled, report.completed) == (1, 1, 0)


def test_a_handler_hears_of_more_failures_than_there_were(story: Story) -> None:
    story.enqueue("p-1")
    story.settle("w", "p-1", story.claim("w", "p-1"), "failed")
    handle_failure(story, "failure-2")
    handle_failure(story, "failure-3")
    assert broken(story.end()) == {"I12"}


def test_ready_jobs_that_nobody_claims_after_the_last_fault(story: Story) -> None:
    story.enqueue("p-1", "p-2")
    story.heal()
    story.complete("w", "p-1", story.claim("w", "p-1"))
    story.at += 12
    story.complete("w", "p-2", story.claim("w", "p-2"))
    assert broken(story.end()) == {"I12"}


def test_how_long_ready_jobs_may_wait_can_be_set(story: Story) -> None:
    story.enqueue("p-1")
    story.heal()
    story.at += 12
    story.complete("w", "p-1", story.claim("w", "p-1"))
    report = story.end(live=20.0)
    assert report.ok, report.text()


# -- output ----------------------------------------------------------------------------------------


def test_a_violation_tells_the_history_of_its_job(story: Story) -> None:
    story.enqueue("p-1", "p-10")
    first = story.claim("w", "p-1")
    story.complete("w", "p-1", first)
    story.claim("w", Claim("p-1", 200, check_of("p-1"), 5, 0, 0))
    (told,) = [one for one in story.end().violations if one.invariant == "I5"]
    assert (told.queue, told.job) == (QUEUE, "p-1")
    said = "\n".join(told.history)
    for part in ("enqueue", f"leased with fence {first}", "started", "finished (ok)", "settle", "with fence 200"):
        assert part in said
    assert "p-10" not in said


def test_the_command_prints_for_people_and_for_programs(story: Story, tmp_path: Path) -> None:
    story.enqueue("p-1")
    story.end()
    told = subprocess.run([sys.executable, "-m", "chaos.checker", tmp_path], capture_output=True, text=True)
    assert told.returncode == 1
    assert "BROKEN: I1" in told.stdout
    assert "lost         1: p-1" in told.stdout.replace(" (first 1, middle 0, last 0)", "")
    as_json = subprocess.run([sys.executable, "-m", "chaos.checker", tmp_path, "--json"], capture_output=True)
    assert json.loads(as_json.stdout)["violated"] == {"I1": 1}


def test_a_writer_notes_what_its_clock_shows(tmp_path: Path) -> None:
    LogWriter(tmp_path, "producer").close()
    (path,) = tmp_path.iterdir()
    (began,) = read_log(path)
    assert isinstance(began, Began)
    assert began.wall > 1_700_000_000_000
