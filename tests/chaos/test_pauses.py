"""The short form of `python -m chaos.pauses`: workers are stopped or cut off for longer than their lease."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.log import Answered, Claim, LogWriter, Sent, SettleAsked, Started
from chaos.nemesis.network import lacking_namespaces
from chaos.pauses.__main__ import Orders, run
from chaos.pauses.app import RECORD
from chaos.pauses.judge import judge
from chaos.pauses.pausing import Pause

SEED = int(os.environ.get("WINDLASS_PAUSES_SEED", 1))


def test_a_worker_that_was_paused_for_longer_than_its_lease_changes_nothing(tmp_path: Path) -> None:
    partitions = 0 if lacking_namespaces() else 1
    result = run(Orders(stops=2, partitions=partitions, seed=SEED, lease=1.5, workers=2), tmp_path)
    print(f"\n{result.report()}")
    assert result.toll.refused["complete"] > 0, "old fences were tried"
    assert result.faults() == []


# -- the judge finds violations ------------------------------------------------------------------------


class Story:
    """A log as workers would write it: one job, step by step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = LogWriter(folder, "runner")
        self._step = 0

    def claim(self, fence: int, worker: str = "here0") -> None:
        self._step += 1
        claim = Claim("job", fence, 0, 5, 0, 0)
        self._log.write(Answered(0, -1, "loops", 1, self._step, 0, claims=(claim,), holder=f"{worker}-x.1"))

    def settle(self, fence: int, accepted: bool, outcome: str = "completed") -> None:
        self._step += 1
        self._log.write(Sent(0, self._step, "loops", settles=(SettleAsked("job", fence, outcome),)))
        self._log.write(Answered(0, self._step, "loops", 1, self._step, 0, settled=(accepted,)))

    def ran(self, fence: int, began: float, lived: float) -> None:
        self._log.write(Started(round(began * 1e9), 1, "loops", "job", fence, 0, 1))
        (self._folder / f"{fence}.pulse").write_bytes(RECORD.pack(fence, round(lived * 1e9)))


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.mark.parametrize("accepted", [False, True])
def test_a_settle_under_an_old_fence_is_told_from_one_that_was_refused(
    tmp_path: Path, story: Story, accepted: bool
) -> None:
    story.claim(1)
    story.claim(2)
    story.settle(1, accepted, "released")
    story.settle(2, True)
    found = judge(tmp_path, [])
    assert (found.stale_refused, len(found.stale_accepted)) == ((0, 1) if accepted else (1, 0))
    assert found.done == {"job"}


def test_a_job_that_is_given_out_after_it_was_done_is_found(tmp_path: Path, story: Story) -> None:
    story.claim(1)
    story.settle(1, True)
    story.claim(2)
    assert judge(tmp_path, []).done_twice == ["job"]


def test_an_overlap_counts_unless_the_older_one_stood_still(tmp_path: Path, story: Story) -> None:
    story.claim(1)
    story.claim(2, "here1")
    story.ran(1, began=10.0, lived=13.1)
    story.ran(2, began=12.0, lived=15.0)
    (overlap,) = judge(tmp_path, []).unexplained
    assert overlap.seconds == pytest.approx(1.1)
    stop = Pause("stop", "here0", began=10.5, ended=13.0, held=1, taken=1, back_after=0.1)
    stopped = judge(tmp_path, [stop])
    assert stopped.unexplained == []
    assert [each.seconds for each in stopped.overlaps] == [pytest.approx(0.1)]
    assert stopped.ran_on == [pytest.approx(0.1)]
    cut = Pause("partition", "here0", began=10.5, ended=13.0, held=1, taken=1, back_after=0.1)
    assert len(judge(tmp_path, [cut]).unexplained) == 1, "one that is cut off can stop its jobs itself"
