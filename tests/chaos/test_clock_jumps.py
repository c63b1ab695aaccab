"""The short form of `python -m chaos.clock_jumps`: the server's clock jumps by hours and days under load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from chaos.clock_jumps.__main__ import Orders, run
from chaos.clock_jumps.judge import Findings, Jump, Line, judge
from chaos.nemesis.clock import JumpClock

SEED = int(os.environ.get("WINDLASS_JUMPS_SEED", 1))


@pytest.mark.skipif(JumpClock.available() is not None, reason=str(JumpClock.available()))
def test_no_jump_of_the_server_s_clock_starts_a_job_early_or_keeps_a_lease_too_long(tmp_path: Path) -> None:
    result = run(Orders(jumps=3, seed=SEED, gap=(0.8, 1.2), lease=1.5), tmp_path)
    print(f"\n{result.report()}")
    assert result.findings.taken_over, "leases were abandoned"
    assert {"delay", "run_at"} <= set(result.findings.starts)
    assert result.faults() == []


# -- the judge finds violations ------------------------------------------------------------------------


def told(*lines: tuple[str, float, dict[str, Any]], jumps: tuple[Jump, ...] = ()) -> Findings:
    """The judge's findings for these actions on one job; each action takes no time."""
    return judge([Line(what, "job", at, at, more) for what, at, more in lines], jumps)


def lease(at: float, fence: int, holder: str | None = None) -> tuple[str, float, dict[str, Any]]:
    return "lease", at, {"fence": fence, "holder": holder, "seconds": 2.0}


def deed(what: str, at: float, fence: int, told: bool = True) -> tuple[str, float, dict[str, Any]]:
    return what, at, {"fence": fence, "told": told}


def enqueued(at: float, wait: float = 0.0) -> tuple[str, float, dict[str, Any]]:
    return "enqueue", at, {"kind": "delay", "wait": wait}


def test_a_job_that_begins_before_its_time_is_found() -> None:
    assert told(enqueued(10, wait=3), lease(13.1, 1)).early == []
    assert len(told(enqueued(10, wait=3), lease(12.9, 1)).early) == 1


def test_a_lease_that_is_cut_short_is_found_unless_the_clock_leapt_ahead_over_it() -> None:
    assert told(enqueued(0), lease(10, 1), lease(12.1, 2)).faults == []
    assert len(told(enqueued(0), lease(10, 1), lease(11.5, 2)).too_short) == 1
    excused = told(enqueued(0), lease(10, 1), lease(11.5, 2), jumps=(Jump(11, 3600),))
    assert excused.faults == []
    assert excused.cut_by_jump == [pytest.approx(0.5, abs=0.01)]
    for jump in (Jump(11, -3600), Jump(9, 3600)):
        assert len(told(enqueued(0), lease(10, 1), lease(11.5, 2), jumps=(jump,)).too_short) == 1
    assert len(told(enqueued(0), lease(10, 1), lease(10.5, 2), jumps=(Jump(10.2, 3600),)).too_short) == 1


def test_a_little_is_forgiven_only_where_it_is_asked_for() -> None:
    lines = [
        Line("enqueue", "job", 0, 0, enqueued(0)[2]),
        *(Line("lease", "job", at, at, lease(at, n)[2]) for n, at in ((1, 10), (2, 11.95))),
    ]
    assert len(judge(lines).too_short) == 1
    kind = judge(lines, forgiven=0.05)
    assert (kind.too_short, len(kind.forgiven)) == ([], 1)


def test_a_lease_that_was_renewed_counts_from_then() -> None:
    assert len(told(enqueued(0), lease(10, 1), deed("extend", 11.5, 1), lease(12.5, 2)).too_short) == 1
    assert told(enqueued(0), lease(10, 1), deed("extend", 11.5, 1, told=False), lease(12.5, 2)).too_short == []
    beat = ("beat", 11.5, {"holder": "w", "told": True})
    assert len(told(enqueued(0), lease(10, 1, "w"), beat, lease(12.5, 2)).too_short) == 1
    assert told(enqueued(0), lease(10, 1, "another"), beat, lease(12.5, 2)).too_short == []


def test_a_lease_that_lasts_too_long_is_found() -> None:
    assert told(enqueued(0), lease(10, 1), lease(13.9, 2)).too_long == []
    assert len(told(enqueued(0), lease(10, 1), lease(14.1, 2)).too_long) == 1


def test_a_completion_that_was_refused_in_time_and_one_that_came_twice_are_found() -> None:
    assert len(told(enqueued(0), lease(10, 1), deed("complete", 11, 1, told=False)).lost_unduly) == 1
    assert told(enqueued(0), lease(10, 1), deed("complete", 13, 1, told=False)).lost_unduly == []
    refused = lease(10, 1), deed("complete", 11, 1, told=False)
    assert told(enqueued(0), *refused, jumps=(Jump(10.5, 3600),)).lost_unduly == [], "what a jump took off it"
    for jump in (Jump(10.5, -3600), Jump(9.9, 3600)):
        assert len(told(enqueued(0), *refused, jumps=(jump,)).lost_unduly) == 1
    at_once = lease(10, 1), deed("complete", 10.7, 1, told=False)
    assert len(told(enqueued(0), *at_once, jumps=(Jump(10.5, 3600),)).lost_unduly) == 1, "more than that"
    twice = told(enqueued(0), lease(10, 1), deed("complete", 11, 1), lease(13, 2), deed("complete", 13.5, 2))
    assert twice.done_twice == ["job"]
