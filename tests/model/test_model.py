"""Random operations on a real queue, compared with the model after every step.

Every step is a verb, time passing, a fault, or a look from the side. `WINDLASS_MODEL_STEPS` sets how many steps
are made at least (6,000 by default; a million takes about an hour), `WINDLASS_MODEL_SEED` where they begin.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.queue_model import DEFAULT_LIMITS, Change, Entry, QueueModel
from tests.support.internals import perform, settle
from tests.support.queue_clock import pass_time
from tests.support.server import Server
from windlass import Lease, Queue, RawJob, Windlass
from windlass.storage.native.keys import queue_key
from windlass.storage.port import LeaseRequest
from windlass.values.outcome import Broken, Crashed, Outcome, Snoozed, UnknownTask

STEPS = int(os.environ.get("WINDLASS_MODEL_STEPS", "6000"))
SHRINK = "WINDLASS_MODEL_SHRINK" in os.environ  # shrink a failing run; takes minutes instead of seconds
SEED = int(os.environ.get("WINDLASS_MODEL_SEED", "1"))

IDS = st.sampled_from(["a", "b", "c", "d", "é"])
LENGTHS = st.sampled_from([1050, 2050])  # with the delays below, no two moments come closer than real time can blur
HOLDERS = st.sampled_from([None, None, "w1", "w2"])
RUN_AT = st.sampled_from(["always", "never", "later", "earlier"])
TASKS = st.sampled_from(["task", "task2"])
PUBLIC_MODE: dict[str, Any] = {"always": True, "never": False, "later": "later", "earlier": "earlier"}


class QueueMachine(RuleBasedStateMachine):
    """The real queue and the model, side by side."""

    server: Server
    steps = 0

    @initialize()
    def begin(self) -> None:
        self.client: Any = self.server.client()
        self.client.flushall()
        self.app = Windlass(self.server.url, max_dead=3, max_broken=2, retry_for=20)
        self.queue: Queue = self.app.queue("model")
        self.model = QueueModel(max_dead=3, max_broken=2)
        self.leases: list[Lease] = []
        self.operations = 0
        self.restarts = 0
        self.raw_holders = 0
        self.queue.beat("w0", 10**6, register=True)  # so that the queue has a clock from the first step on
        self.model.beat("w0", 10**6, register=True)

    def teardown(self) -> None:
        if hasattr(self, "app"):
            self.app.close()
            self.client.close()

    def _delay(self, thousands: int) -> float:
        """A delay whose end is far from every other moment of this run."""
        self.operations += 1
        return thousands * 1000 + 20 + self.operations % 100 * 0.5 if thousands else 0

    def _run_at(self, delay: float) -> float:
        return self.model.now + delay if delay else 0

    def _raw_holder(self) -> str:
        self.raw_holders += 1
        return f".{self.raw_holders}"

    def _pick(self, index: int) -> Lease | None:
        return self.leases[index % len(self.leases)] if self.leases else None

    # -- putting jobs on the queue ---------------------------------------------------------------

    @rule(
        id=IDS,
        data=st.binary(max_size=8),
        priority=st.sampled_from([5, 5, 0, 9, 4]),
        delay=st.sampled_from([0, 0, 0, 1, 2]),
        limits=st.sampled_from([DEFAULT_LIMITS, (0, 0), (1, 1)]),
        update_data=st.booleans(),
        mode=RUN_AT,
        update_priority=st.booleans(),
        update_limits=st.booleans(),
        reset=st.sampled_from([None, True, False]),
        keep=st.sampled_from([False, False, True]),
        expires=st.sampled_from([0, 0, 1, 2]),
    )
    def enqueue(
        self, id: str, data: bytes, priority: int, delay: int, limits: tuple[int, int], update_data: bool, mode: Any,
        update_priority: bool, update_limits: bool, reset: bool | None, keep: bool, expires: int = 0,
    ) -> None:  # fmt: skip
        after, lasts = self._delay(delay), self._delay(expires)
        options: dict[str, Any] = {} if reset is None else {"reset_counts": reset}
        if lasts:
            options["expires"] = lasts
        receipt = self.queue.enqueue(
            data,
            id=id,
            priority=priority,
            delay=after,
            max_failures=limits[0],
            max_stalls=limits[1],
            update_data=update_data,
            update_run_at=PUBLIC_MODE[mode],
            update_priority=update_priority,
            update_max_failures=update_limits,
            update_max_stalls=update_limits,
            if_exists="keep" if keep else "update",
            **options,
        )
        change = Change(
            data, priority, self._run_at(after), limits, update_data, mode, update_priority, update_limits,
            update_data if reset is None else reset, keep,
            lasts=lasts or None, replace_extras=update_data,
        )  # fmt: skip
        assert receipt.status == self.model.enqueue(id, change)

    @rule(index=st.integers(0, 5), delay=st.sampled_from([0, 0, 1, 2]), update_data=st.booleans(), mode=RUN_AT)
    def enqueue_behind(self, index: int, delay: int, update_data: bool, mode: Any) -> None:
        """The next enqueue for an id that probably runs."""
        lease = self._pick(-1 - index)
        if lease is not None:
            self.enqueue(
                lease.id, b"behind %d" % index, 5, delay, DEFAULT_LIMITS, update_data, mode, False, False, None, False
            )

    @rule(ids=st.lists(IDS, max_size=6), plain=st.booleans())
    def enqueue_many(self, ids: list[str], plain: bool) -> None:
        jobs = [RawJob(id.encode(), id=id) if plain else RawJob(id.encode(), id=id, priority=3) for id in ids]
        statuses = [receipt.status for receipt in self.queue.enqueue_many(jobs)]
        assert statuses == [self.model.enqueue(id, Change(id.encode(), priority=5 if plain else 3)) for id in ids]

    @rule(count=st.integers(1, 3))
    def enqueue_anonymous(self, count: int) -> None:
        for receipt in self.queue.enqueue_many([b"anonymous"] * count):
            assert self.model.enqueue(receipt.id, Change(b"anonymous")) == "added"

    @rule(
        id=IDS,
        data=st.none() | st.binary(max_size=4),
        delay=st.sampled_from([0, 1, 3]),
        mode=RUN_AT,
        priority=st.none() | st.just(1),
        expires=st.sampled_from([None, None, 0, 2]),
    )
    def update(
        self, id: str, data: bytes | None, delay: int, mode: Any, priority: int | None, expires: int | None
    ) -> None:
        changes: dict[str, Any] = {}
        after = self._delay(delay) if mode != "never" else 0
        lasts = self._delay(expires or 0)
        if expires is not None:
            changes["expires"] = lasts or None
        if data is not None:
            changes["data"] = data
        if mode != "never":
            changes |= {"delay": after, "when": mode}
        if priority is not None:
            changes["priority"] = priority
        if not changes:
            return
        change = Change(
            data or b"", priority or 5, self._run_at(after), DEFAULT_LIMITS, data is not None, mode,
            priority is not None, False, False, must_exist=True,
            lasts=None if expires is None else lasts, replace_extras=False,
        )  # fmt: skip
        assert self.queue.update(id, **changes) == (self.model.enqueue(id, change) is not None)

    # -- leases ----------------------------------------------------------------------------------

    @rule(n=st.integers(1, 2), seconds=LENGTHS)
    def lease_a_few(self, n: int, seconds: int) -> None:
        self.lease(n, seconds, None)

    @rule(n=st.integers(1, 4), seconds=LENGTHS, holder=HOLDERS)
    def lease(self, n: int, seconds: int, holder: str | None) -> None:
        leases = self.queue.lease_many(n, seconds, holder=holder)
        self.model.upkeep()
        self._compare(leases, self.model.lease(n, seconds, holder or self._raw_holder()))

    @rule(n=st.integers(1, 4), seconds=LENGTHS, task=TASKS)
    def claim(self, n: int, seconds: int, task: str) -> None:
        """As a worker that knows this task."""
        request = LeaseRequest(want=n, seconds=seconds, holder="w1", claims=(task,))
        leases = perform(self.queue, lambda layout: layout.turn((), request)).leases
        self.model.upkeep()
        self._compare(leases, self.model.lease(n, seconds, "w1", self.model.claim(task, n)))

    def _compare(self, leases: Sequence[Lease], expected: Sequence[Entry]) -> None:
        assert [lease.id for lease in leases] == [job.id for job in expected]
        for lease, job in zip(leases, expected, strict=True):
            assert (lease.data, lease.priority, lease.failures, lease.stalls, lease.snoozes, lease.suspect) == (
                job.data, job.priority, job.failures, job.stalls, job.snoozes, job.suspect,
            )  # fmt: skip
            assert all(lease.fence > older.fence for older in self.leases)
            job.fence = lease.fence
            self.leases.append(lease)

    @rule(
        index=st.integers(0, 50),
        verb=st.sampled_from(
            ["complete", "complete", "release", "retry", "snooze", "fail", "crash", "suspect", "break", "put aside"]
        ),
        delay=st.integers(0, 2),
        task=TASKS,
    )
    def settle(self, index: int, verb: str, delay: int, task: str) -> None:
        lease = self._pick(index)
        if lease is None:
            return
        after = self._delay(delay)
        after_ms = round(after * 1000)
        kept = {
            "complete": lambda: self.queue.complete(lease),
            "release": lambda: self.queue.release(lease),
            "retry": lambda: self.queue.retry(lease, delay=after),
            "fail": lambda: self.queue.fail(lease, "no"),
            "snooze": lambda: self._settle(Snoozed(lease, ("in", after_ms))),
            "crash": lambda: self._settle(Crashed(lease, "killed", True, delay_ms=after_ms)),
            "suspect": lambda: self._settle(Crashed(lease, "killed", False)),
            "break": lambda: self._settle(Broken(lease, "not JSON")),
            "put aside": lambda: self._settle(UnknownTask(lease, task)),
        }[verb]()
        run_at = self._run_at(after)
        assert kept == self.model.settle(lease.id, lease.fence, verb, run_at, task)
        self.model.upkeep()

    def _settle(self, outcome: Outcome) -> bool:
        return settle(self.queue, outcome)[0]

    @rule(
        verb=st.sampled_from(["complete", "release", "retry", "snooze", "crash", "suspect", "put aside"]),
        delay=st.sampled_from([0, 0, 1]),
        task=TASKS,
    )
    def settle_the_latest(self, verb: str, delay: int, task: str) -> None:
        self.settle(len(self.leases) - 1, verb, delay, task)

    @rule(task=TASKS)
    def unpark(self, task: str) -> None:
        assert perform(self.queue, lambda layout: layout.unpark([task])) == self.model.unpark(task)

    @rule(ids=st.lists(IDS, min_size=1, max_size=3))
    def revive(self, ids: list[str]) -> None:
        assert self.queue.revive(ids) == [self.model.revive(id) for id in ids]

    @rule()
    def complete_everything(self) -> None:
        if not self.leases:
            return
        expected = [self.model.settle(lease.id, lease.fence, "complete") for lease in self.leases]
        assert self.queue.complete_many(self.leases) == expected
        self.leases.clear()
        self.model.upkeep()

    @rule(
        index=st.integers(0, 50),
        seconds=LENGTHS,
        verb=st.sampled_from(["extend", "progress", "beat"]),
        register=st.booleans(),
    )
    def while_it_runs(self, index: int, seconds: int, verb: str, register: bool) -> None:
        lease = self._pick(index)
        if verb == "beat":
            holder = ("w1", "w2")[index % 2]
            expected = self.model.beat(holder, seconds, register)
            assert self.queue.beat(holder, seconds, register=register) == expected
        elif lease is not None and verb == "extend":
            expected = self.model.extend(lease.id, lease.fence, seconds, self._raw_holder())
            assert self.queue.extend(lease, seconds) == expected
        elif lease is not None:
            value = index / 50
            assert self.queue.progress(lease, value) == self.model.progress(lease.id, lease.fence, value)

    # -- orders ----------------------------------------------------------------------------------

    @rule(id=IDS, running=st.booleans())
    def cancel(self, id: str, running: bool) -> None:
        assert self.queue.cancel(id, running=running) == self.model.cancel(id, running)

    @rule(paused=st.sampled_from([False, False, True]))
    def pause_or_resume(self, paused: bool) -> None:
        changed = self.queue.pause() if paused else self.queue.resume()
        assert changed == (self.model.paused != paused)
        self.model.paused = paused

    @rule(deep=st.booleans())
    def clean(self, deep: bool) -> None:
        if deep:
            assert self.queue.audit(repair=True).repaired == 0, "a healthy queue has nothing to mend"
        else:
            self.queue.clean()
        self.model.upkeep()

    @precondition(lambda self: self.operations % 7 == 0)
    @rule(state=st.sampled_from(["ready", "scheduled", "blocked", "dead", "broken"]))
    def purge(self, state: str) -> None:
        assert self.queue.purge(state) == self.model.purge(state)

    # -- time and faults -------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([400, 900, 1500, 2600]))
    def time_passes(self, seconds: int) -> None:
        pass_time(self.client, "model", seconds)
        self.model.now += seconds

    @rule(fault=st.sampled_from(["flush scripts", "cut connections", "kill server"]))
    def fault(self, fault: str) -> None:
        if fault == "flush scripts":
            self.client.script_flush()
        elif fault == "cut connections":
            self.client.execute_command("CLIENT", "KILL", "SKIPME", "yes")
        elif not self.restarts:
            self.restarts += 1
            self.server.kill()
            self.server.start()
            self.client.close()
            self.client = self.server.client()

    # -- invariants after every step --------------------------------------------------------------

    @invariant()
    def same_as_model(self) -> None:
        if not hasattr(self, "model"):
            return
        QueueMachine.steps += 1
        queue, model = self.queue, self.model
        counts = queue.counts()
        overdue = sum(job.run_at <= model.now for job in model.scheduled.values())
        assert (counts.ready, counts.scheduled) == (len(model.ready) + overdue, len(model.scheduled) - overdue)
        assert (counts.running, counts.blocked, counts.dead) == (len(model.leased), len(model.blocked), len(model.dead))
        assert (counts.holders, counts.paused) == (len(model.holders), model.paused)
        assert (counts.broken, counts.parked) == (len(model.broken), len(model.parked))
        assert counts.dropped == model.dropped
        ready = sorted(model.ready.values(), key=lambda job: (job.priority, job.turn))
        seen = [
            (job.id, job.data, job.priority, job.failures, job.stalls, job.snoozes) for job in queue.all_jobs("ready")
        ]
        assert seen == [(job.id, job.data, job.priority, job.failures, job.stalls, job.snoozes) for job in ready]
        expiring = {job.id for state in ("ready", "scheduled") for job in queue.all_jobs(state) if job.expires_at}
        assert expiring == {job.id for job in (*model.ready.values(), *model.scheduled.values()) if job.expires}
        scheduled = sorted(model.scheduled.values(), key=lambda job: (job.run_at, job.turn))
        assert [job.id for job in queue.all_jobs("scheduled")] == [job.id for job in scheduled]
        leased = {job.id: (job.fence, job.progress, job.cancelled) for job in queue.all_jobs("running")}
        assert leased == {job.id: (job.fence, job.progress, job.cancelled) for job in model.leased.values()}
        blocked = {job.id: (job.data, job.priority) for job in queue.all_jobs("blocked")}
        assert blocked == {id: (change.data, change.priority) for id, change in model.blocked.items()}
        marks = {id: perform(queue, lambda layout, id=id: layout.remains(id)).mark for id in {*"abcdé", *model.marks}}  # type: ignore[misc]
        assert {id: mark.name for id, mark in marks.items() if mark is not None} == model.marks
        for state, dead_records in (("dead", model.dead), ("broken", model.broken)):
            buried = {job.id: (job.data, job.failures, job.stalls, job.snoozes) for job in queue.all_jobs(state)}
            assert buried == {
                job.id: (job.data, job.failures, job.stalls, job.snoozes) for job in dead_records.values()
            }
        assert self.client.hlen(queue_key("model", "data")) == len(model.ready) + len(model.scheduled) + len(
            model.leased
        )


@pytest.mark.timeout(0 if STEPS > 100_000 else 600)
def test_the_queue_does_what_the_model_does() -> None:
    with Server(appendonly=True, appendfsync="always") as server:
        QueueMachine.server = server
        QueueMachine.steps = 0
        round = 0
        while QueueMachine.steps < STEPS:
            run_state_machine_as_test(
                with_seed(SEED + round)(QueueMachine),
                settings=settings(
                    max_examples=20,
                    stateful_step_count=60,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
            round += 1
    print(f"{QueueMachine.steps:,} steps, 0 divergences (seed {SEED})")
