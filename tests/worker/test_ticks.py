"""Schedules with real workers: every worker ticks, each tick fires once, and a dead worker loses no tick."""

from __future__ import annotations

from tests.support.workers import Workshop


def test_two_workers_tick_each_second_once_and_a_kill_loses_none(shop: Workshop) -> None:
    first = shop.start("ticking", lease=2.0)
    shop.start("ticking", lease=2.0)
    shop.journal.wait(2, "tick")
    first.kill_everything()
    ticks = shop.journal.wait(6, "tick")
    names = [entry.id for entry in ticks]
    assert len(set(names)) == len(names), "each tick is a job with the tick's time as its id"
    (record,) = shop.app.schedules.list("ticks")
    assert record.fired >= 6
    assert record.missed == 0


def test_an_added_schedule_ticks_and_can_be_paused(shop: Workshop) -> None:
    shop.start("ticking")
    call = shop.call("tick", "added", queue="ticks")
    shop.app.schedules.add("added", call, every="1s")
    shop.wait(lambda: [e for e in shop.journal.all("tick") if e.more["name"] == "added"], "a tick of it")
    assert shop.app.schedules.pause("ticks", "added")
    (added,) = [record for record in shop.app.schedules.list("ticks") if record.name == "added"]
    fired = added.fired
    shop.journal.wait(len(shop.journal.all("tick")) + 2, "tick")  # the other one goes on
    record = shop.app.schedules.get("ticks", "added")
    assert record is not None
    assert record.fired == fired
    assert shop.app.schedules.delete("ticks", "added")
