"""Failovers and moves of slots under load, as `python -m chaos.failovers` has them by the dozen: here one of each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chaos.failovers import (
    Completion,
    Crash,
    Ledger,
    Nodes,
    Receipt,
    Report,
    Sentinels,
    cluster_of_six,
    fail_over,
    hold_back,
    reshard,
    sentinel_group,
)

from tests.support.cluster import Cluster
from tests.support.sentinel import SentinelGroup

SEED = 5


@pytest.fixture(scope="module")
def durable_group() -> Iterator[SentinelGroup]:
    """Other than the shared one, these write to their disks before they answer: `replicated` means that as well."""
    with sentinel_group() as group:
        yield group


@pytest.fixture(scope="module")
def durable_cluster() -> Iterator[Cluster]:
    with cluster_of_six() as cluster:
        yield cluster


def test_what_all_replicas_confirmed_outlives_the_primary(durable_group: SentinelGroup) -> None:
    report = fail_over(Sentinels(durable_group), 1, SEED)
    assert report.missed() == []
    assert report.ledger.at_risk() > 0, "nothing was acknowledged shortly before the kill"
    assert {receipt.level for receipt in report.ledger.acknowledged.values()} == {"replicated(2)"}


def test_what_the_replica_confirmed_outlives_a_node_of_a_cluster(durable_cluster: Cluster) -> None:
    report = fail_over(Nodes(durable_cluster), 1, SEED)
    assert report.missed() == []
    assert report.ledger.at_risk() > 0, "nothing was acknowledged shortly before the kill"
    assert {receipt.level for receipt in report.ledger.acknowledged.values()} == {"replicated(1)"}


def test_what_only_the_primary_has_dies_with_it_and_is_missed(cluster: Cluster) -> None:
    """Nothing of this is a fault: it is what `memory` means. But a loss must be seen when there is one."""
    report = hold_back(Nodes(cluster), 1, SEED, "memory")
    assert report.missed() == []
    assert 0 < len(report.ledger.lost()) <= report.ledger.at_risk()
    report.may_lose = False
    assert report.missed() == [f"{len(report.ledger.lost())} lost"]


def test_slots_that_move_under_load_lose_and_double_nothing(durable_cluster: Cluster) -> None:
    """Once key by key, once as a whole."""
    report = reshard(durable_cluster, 2, SEED)
    assert report.missed() == []
    assert report.ledger.completed.keys() == report.ledger.acknowledged.keys()


# -- whether the ledger would tell -----------------------------------------------------------------


@pytest.fixture
def report() -> Report:
    """Job `a` was acknowledged at 1, leased at 2 and completed at 3; the primary died at 10, and had an heir at 11."""
    ledger = Ledger(
        sent={"a": "q", "b": "other"},
        acknowledged={"a": Receipt("replicated(2)", 1.0)},
        completed={"a": [Completion(2.0, 3.0)]},
        crashes=[Crash(frozenset({"q"}), 9.0, 10.0, 11.0)],
        leases=[(2.0, "q"), (11.5, "other"), (12.0, "q")],
    )
    return Report("planted", "Valkey", 1, done=1, ledger=ledger)


def test_a_run_in_which_all_is_well(report: Report) -> None:
    assert report.missed() == []
    assert report.ledger.resumed_after(report.ledger.crashes[0]) == 1.0, "other queues do not count"


def test_a_job_that_is_gone_is_lost(report: Report) -> None:
    report.ledger.acknowledged["b"] = Receipt("replicated(2)", 1.0)
    assert report.missed() == ["1 lost"]


def test_a_job_that_is_still_there_is_not_lost_but_was_not_worked_off(report: Report) -> None:
    report.ledger.acknowledged["b"] = Receipt("replicated(2)", 1.0)
    report.ledger.left.add("b")
    assert report.missed() == ["1 left on the servers"]


def test_a_second_completion_is_explained_by_a_promotion_in_between(report: Report) -> None:
    report.ledger.completed["a"] = [Completion(2.0, 9.5), Completion(12.0, 13.0)]
    assert report.missed() == []
    assert report.ledger.doubled() == ([], [0.5])


@pytest.mark.parametrize("second", [Completion(4.0, 5.0), Completion(10.5, 12.0)], ids=["before", "leased before"])
def test_a_second_completion_without_one_is_a_fault(report: Report, second: Completion) -> None:
    report.ledger.completed["a"].append(second)
    assert report.missed() == ["1 completed twice without a failover in between"]


def test_a_promotion_on_another_node_explains_nothing(report: Report) -> None:
    report.ledger.completed["b"] = [Completion(2.0, 9.5), Completion(12.0, 13.0)]
    assert report.missed() == ["1 completed twice without a failover in between"]


def test_a_job_that_nobody_sent_is_a_fault(report: Report) -> None:
    report.ledger.completed["c"] = [Completion(2.0, 3.0)]
    assert report.missed() == ["1 completed but never sent"]


def test_work_that_is_resumed_late_is_a_fault(report: Report) -> None:
    report.ledger.leases[-1] = (14.5, "q")
    assert report.missed() == ["no job was leased for 3.5 s after a promotion"]


def test_a_run_that_was_broken_off_has_failed(report: Report) -> None:
    report.done = 0
    assert report.missed() == ["only 0 of 1 faults were injected"]
