"""A model of one queue that predicts every answer, in the server's own order.

The server is sequential, and the simulation sees every request and every answer, including lost ones. So nothing is
guessed: the book makes the same step on plain values and compares. It knows nothing of keys, scores or packed records;
order is a counter.

It takes one thing from the answer: the queue's clock. That clock is checked separately against virtual time: no lease
and no delay may be cut short.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from chaos.simulation.commands import ScriptCall
from chaos.simulation.jobs import Done, Moment, Reading
from chaos.simulation.orders import Orders
from chaos.simulation.turns import MAX_JUMP_MS, ROUNDING_MS, Turns
from chaos.simulation.violation import Violation

SILENCE_MS = 5_000  # ms without a step after which named holders get this long for a heartbeat


class Book(Orders, Turns):
    """The model of one queue."""

    def follow(self, call: ScriptCall, reply: Any, moment: Moment) -> str:
        """Repeat the server's step on the model and compare; returns a line for the history."""
        self.moment = moment
        handler = getattr(self, f"_{call.script}", None)
        if handler is None:
            return ""
        if call.script == "unregister":
            return self._unregister(call, reply)
        caller, number = call.args[0].decode(), int(call.args[1])
        done = self.callers.get(caller)
        if isinstance(reply, RedisError):
            return self._refuse(done, number, reply)
        if done is not None and done.number > number:
            raise Violation("I3", f"operation {number} of caller {caller} was applied after {done.number}")
        self.reading = Reading(*reply[0])
        if done is not None and done.number == number:
            self.replays += 1
            if self.reading.step != done.step:
                raise Violation("I3", f"a repeat of step {done.step} says that it was step {self.reading.step}")
            return "again " + str(handler(call, reply, done.answer))
        self._open()
        told = handler(call, reply, None)
        self._close(call.script, caller, number)
        return f"#{self.reading.step} {told}"

    def _refuse(self, done: Done | None, number: int, reply: RedisError) -> str:
        text = str(reply)
        if "STALEOP" not in f"{getattr(reply, 'status_code', '')} {text}":
            raise Violation("I12", f"the server answered with an error: {text}")
        if done is None or done.number <= number:
            raise Violation("I3", f"operation {number} was refused as old, and the last one was {done}")
        self.stale += 1
        return "STALEOP"

    def _open(self) -> None:
        reading = self.reading
        self.now, self.due = reading.now, reading.due
        self.changed = False
        self.answer: Any = None
        self.open_grace, self.open_grace_from = self.grace, self.grace_from
        self.open_behind, self.open_frame = self.behind, self.frame
        if self.clock is not None:
            moved = self.moment.wall - self.wall
            self.open_behind = max(0, self.behind + moved - (self.now - self.clock)) if moved >= 0 else 0
            if self.now < self.clock:
                raise Violation("clock", f"the queue's clock ran back from {self.clock} to {self.now}")
            if self.now - self.clock > SILENCE_MS:
                self.open_grace, self.open_grace_from = self.now + SILENCE_MS, self.clock
        self._check_clock()

    def _check_clock(self) -> None:
        """The queue's clock may be late, because it distrusts unexplained jumps; it must never run ahead."""
        self.ahead = self.now - self.moment.true_ms
        if self.clock is None:
            self.most_ahead = max(self.most_ahead, self.ahead - MAX_JUMP_MS * self.moment.jumps)
        most = self.most_ahead + MAX_JUMP_MS * self.moment.jumps
        if self.ahead > most + ROUNDING_MS:
            raise Violation("clock", f"the queue's clock has run {self.ahead - most:.0f} ms ahead of the time")

    def _close(self, script: str, caller: str, number: int) -> None:
        reading = self.reading
        if reading.step == self.step:
            if self.changed or script != "turn":
                raise Violation("I12", f"a {script} changed something and is no step of its own")
            return
        if reading.step != self.step + 1:
            raise Violation("I12", f"step {reading.step} came after step {self.step}")
        if self.clock is not None and reading.epoch != self.epoch:
            raise Violation("I12", f"the epoch changed from {self.epoch} to {reading.epoch}")
        if reading.frame < self.open_frame:
            raise Violation("clock", f"frame {reading.frame} came after frame {self.frame}")
        self.step, self.epoch, self.belief = reading.step, reading.epoch, reading.belief
        self.clock, self.wall, self.skew = self.now, self.moment.wall, self.moment.wall - self.due
        self.behind, self.frame = self.open_behind, reading.frame
        self.grace, self.grace_from = self.open_grace, self.open_grace_from
        self.callers[caller] = Done(number, self.answer, reading.step)

    # -- the whole -------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """Number of jobs that have not ended."""
        return len(self.ready) + len(self.scheduled) + len(self.leased) + len(self.blocked)

    def compare(self, seen: dict[str, list[str]]) -> None:
        """Check that every job is in exactly one, correct place on the server."""
        ours = {
            "ready": [job.id for job in sorted(self.ready.values(), key=lambda job: (job.priority, job.order))],
            "scheduled": [job.id for job in sorted(self.scheduled.values(), key=lambda job: (job.when.at, job.order))],
            "leased": sorted(self.leased),
            "held": sorted(f"{job.holder}\0{job.id}" for job in self.leased.values()),
            "blocked": sorted(self.blocked),
            "dead": sorted(self.dead),
            "broken": sorted(self.broken),
            "holders": sorted(self.holders),
            "data": sorted([*self.ready, *self.scheduled, *self.leased]),
        }
        for place, expected in ours.items():
            if seen[place] != expected:
                odd = sorted(set(expected) ^ set(seen[place])) or expected
                text = f"{place} should contain {expected}, but contains {seen[place]}"
                raise Violation("I1" if set(expected) - set(seen[place]) else "I12", text, *odd)
