"""A turn: settle outcomes, promote due jobs, reclaim lost jobs, and lease the next jobs."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from chaos.simulation.commands import ScriptCall
from chaos.simulation.jobs import EXPIRES, LIMITED, NOW, PLAIN_LIMITS, SUSPECT, UNDECODABLE, Answer, Hold, Job, When
from chaos.simulation.moves import Moves
from chaos.simulation.violation import Violation
from windlass.storage.formats import META, read_meta

ROUNDING_MS = 4.0  # ms of rounding error
MAX_JUMP_MS = 1_000.0  # ms that the queue's clock may follow a jump of the server's clock
TOLERANCE_MS = 2_000.0  # ms that the clock of run times may be off after a jump of the server's clock

_FENCE = struct.Struct(">Q")


class Turns(Moves):
    """The script of all settles and leases."""

    def _turn(self, call: ScriptCall, reply: Any, before: Any) -> str:
        args = call.args
        holder = args[3].decode() or f".{args[0].decode()}.{args[1].decode()}"
        ms, want, registered = int(args[4]), int(args[5]), args[8] == b"1"
        if before is not None:
            return self._turn_again(before, reply, holder)
        flags, touched, at = self._settle_completed(args)
        other_flags, touched_too = self._settle_others(args, at)
        self._drop_raw(touched | touched_too)
        self._promote()
        swept = self._sweep()
        base = max(self.fence, self.moment.wall_us)
        answer = Answer(flags + other_flags, base, swept=swept)
        if want and registered and holder not in self.holders:
            answer.lost = True
        elif want:
            self._choose_jobs(answer, want)
        self._compare_turn(answer, reply, args)
        self._lease(answer, holder, ms)
        self.answer = answer
        outcomes = self._describe_outcomes(args)
        leases = " ".join(f"{job.id}^{job.fence}" for job in answer.leased)
        return (
            f"turn {holder}{outcomes} settled {answer.flags or '-'} leased {leases or '-'}"
            f"{f' swept {swept}' * bool(swept)}{' lost' * answer.lost}"
        )

    def _choose_jobs(self, answer: Answer, want: int) -> None:
        """Choose the next jobs. Those before the last one that expired before their first attempt are dropped."""
        for job in sorted(self.ready.values(), key=lambda job: (job.priority, job.order)):
            if len(answer.leased) == want:
                break
            if job.expires and job.expires <= self.due:
                answer.expired.append(job.id)
            else:
                answer.leased.append(job)

    def _settle_completed(self, args: list[bytes]) -> tuple[str, set[str], int]:
        count = int(args[9])
        touched: set[str] = set()
        flags = ""
        done: list[str] = []
        for id_, (fence,) in zip(args[10 : 10 + count], _FENCE.iter_unpack(args[10 + count]), strict=True):
            id = id_.decode()
            job = self.leased.get(id)
            if job is None or job.fence != fence:
                flags += "0"
                continue
            flags += "1"
            touched.add(job.holder)
            self._end(job, "complete")
            done.append(id)
        for id in done:
            self._gone(id)
        return flags, touched, _others_at(args)

    def _settle_others(self, args: list[bytes], at: int) -> tuple[str, set[str]]:
        touched: set[str] = set()
        flags = ""
        for id, fence, verb, rest in _other_outcomes(args, at):
            job = self.leased.get(id)
            if job is None or job.fence != fence:
                flags += "0"
                continue
            full = verb == "broken" and len(self.broken) >= int(rest[0]) and job.id not in self.broken
            no_room = full and not job.cancelled
            flags += "2" if no_room else "1"
            verb = "release" if no_room else verb
            touched.add(job.holder)
            self._end(job, verb)
            if job.cancelled or verb == "complete":
                self._gone(job.id)
            else:
                self._settle_one(job, verb, rest)
        return flags, touched

    def _settle_one(self, job: Job, verb: str, args: list[bytes]) -> None:
        match verb:
            case "release":
                self._place_again(job, NOW, keep_order=True)
            case "retry":
                job.failures += 1
                self._postpone(job, args)
            case "snooze":
                job.snoozes += 1
                self._postpone(job, args)
            case "fail":
                job.failures += 1
                self._bury(job, "failed")
            case "broken":
                self._bury(job, UNDECODABLE)
            case "suspect":
                job.marks |= SUSPECT
                self._place_again(job, NOW, keep_order=True)
            case "crash":
                self._crash(job, allowed=int(args[1]), delay_ms=int(args[2]))
            case _:
                raise AssertionError(f"unknown outcome {verb!r}")

    def _postpone(self, job: Job, args: list[bytes]) -> None:
        job.marks &= ~SUSPECT
        kind, ms = int(args[0]), int(args[1])
        when = When(ms) if kind == 1 else self._from_now(ms) if kind == 2 else NOW
        self._place_again(job, when, keep_order=False)

    def _crash(self, job: Job, allowed: int, delay_ms: int) -> None:
        job.stalls += 1
        if allowed >= 0 and not job.marks & LIMITED:
            job.limits = (job.limits[0], allowed, *job.limits[2:])
        if job.stalls > job.limits[1]:
            self._bury(job, "crashed")
        else:
            self._place_again(job, self._from_now(delay_ms) if delay_ms else NOW, keep_order=True)

    def _end(self, job: Job, how: str) -> None:
        del self.leased[job.id]
        self.settled[job.fence] = how
        self.changed = True

    def _sweep(self) -> int:
        swept = 0
        lost = [(hold.ends, name) for name, hold in self.holders.items() if hold.ends <= self.now]
        for ends, name in sorted(lost, key=lambda each: (each[0], each[1].encode())):
            if not (name.startswith(".") or self.now >= self.open_grace or ends <= self.open_grace_from):
                continue
            hold = self.holders.pop(name)
            self.changed = True
            held = [job for job in self.leased.values() if job.holder == name]
            if held:
                self._check_not_cut_short(name, hold, held)
            for job in sorted(held, key=lambda job: job.id.encode()):
                self._reap(job)
                swept += 1
        self.reaped += swept
        return swept

    def _reap(self, job: Job) -> None:
        del self.leased[job.id]
        self.settled[job.fence] = "swept"
        job.stalls += 1
        if job.cancelled:
            self._gone(job.id)
        elif job.stalls > job.limits[1]:
            self._bury(job, "stalled")
        else:
            self._place_again(job, NOW, keep_order=True)

    def _check_not_cut_short(self, name: str, hold: Hold, held: list[Job]) -> None:
        early = hold.surely - self.moment.true_ms
        self.shortest = max(self.shortest, early)
        if early > ROUNDING_MS + MAX_JUMP_MS * (self.moment.jumps - hold.jumps):
            ids = [job.id for job in held]
            raise Violation("I8", f"the lease of {name} on {ids} was cut short by {early:.0f} ms", *ids)

    def _lease(self, answer: Answer, holder: str, ms: int) -> None:
        for id in answer.expired:
            del self.ready[id]
            self.changed = True
        self.expired += len(answer.expired)
        for i, job in enumerate(answer.leased, 1):
            del self.ready[job.id]
            job.fence, job.holder, job.cancelled = answer.base + i, holder, False
            self.leased[job.id] = job
            self.given[job.fence] = replace(job)
        if answer.leased:
            self.changed = True
            self.fence = answer.base + len(answer.leased)
            self._sign_of_life(holder, ms)
            answer.leased = [replace(job) for job in answer.leased]

    def _compare_turn(self, answer: Answer, reply: Any, args: list[bytes]) -> None:
        _, flags, base, ids, data, metas, priorities, _, swept, _, _, lost, _, *rare = reply
        flags = flags.decode()
        if flags != answer.flags:
            self._blame_flags(answer.flags, flags, args)
        if swept != answer.swept:
            raise Violation("I8", f"{answer.swept} jobs should be swept, but {swept} were")
        if bool(lost) != answer.lost:
            raise Violation("I8", f"the holder should be {'lost' if answer.lost else 'known'}")
        expired = [id.decode() for id in rare[0][1]] if rare else []
        if expired != answer.expired:
            text = f"{answer.expired} should have expired, but {expired} did"
            raise Violation("I1", text, *(set(expired) ^ set(answer.expired)))
        found = [id.decode() for id in ids]
        expected = [job.id for job in answer.leased]
        if found != expected:
            self._blame_leases(expected, found)
        if expected and int(base) != answer.base:
            raise Violation("I6", f"fences should follow {answer.base}, but follow {base}", *expected)
        metas = metas or [None] * len(ids)
        priorities = priorities * len(ids) if len(priorities) == 1 else priorities
        for job, payload, meta, priority in zip(answer.leased, data, metas, priorities, strict=True):
            self._compare_lease(job, payload, meta, priority)

    def _compare_lease(self, job: Job, payload: bytes, meta: bytes | None, priority: int) -> None:
        if payload != job.data:
            raise Violation("I2", f"{job.id} was leased with {payload!r}, but enqueued with {job.data!r}", job.id)
        plain = (0, 0, 0, *PLAIN_LIMITS[:2], 0, 0, *PLAIN_LIMITS[2:], 0, 0)
        _, marks, _, *limits = META.unpack_from(meta) if meta else plain
        max_failures, max_stalls, failures, stalls, least, most, _, _ = limits
        snoozes = read_meta(meta).extras.snoozes
        found = (priority, marks, failures, stalls, snoozes, (max_failures, max_stalls, least, most))
        expected_marks = job.marks | EXPIRES * bool(job.expires)
        expected = (job.priority, expected_marks, job.failures, job.stalls, job.snoozes, job.limits)
        if found != expected:
            raise Violation("I12", f"{job.id} should have {expected}, but has {found}", job.id)
        early = job.when.truly - self.moment.true_ms
        self.earliest = max(self.earliest, early)
        allowed = ROUNDING_MS + job.when.late + (TOLERANCE_MS if self.moment.jumps else 0)
        if early > allowed and job.when.jumps == self.moment.jumps:
            raise Violation("I10", f"{job.id} was given out {early:.0f} ms before its delay was over", job.id)

    def _blame_flags(self, expected: str, found: str, args: list[bytes]) -> None:
        for (id, fence, _), ours, theirs in zip(self._outcomes(args), expected, found, strict=True):
            if ours == "0" != theirs:
                raise Violation("I7", f"an outcome of {id} with fence {fence} was accepted, but it is stale", id)
            if (ours != "2" and theirs == "2") or (ours == "2" and theirs == "1"):
                raise Violation("I1", f"{id} is broken, but the queue should{' not' * (ours == '2')} keep it", id)
            if ours != theirs:
                raise Violation("I4", f"an outcome of {id} with fence {fence} was refused, but it is current", id)

    def _blame_leases(self, expected: list[str], found: list[str]) -> None:
        wrong = next((id for id in found if id not in expected), None)
        if wrong is None:
            missing = [id for id in expected if id not in found]
            what = f"{missing} should be leased" if missing else f"the order should be {expected}, but is {found}"
            raise Violation("I11", f"{what}; leased were {found}", *(missing or expected))
        if wrong in self.leased:
            raise Violation("I6", f"{wrong} was leased while another lease on it lives", wrong)
        if wrong in self.scheduled:
            raise Violation("I10", f"{wrong} was leased before its run time", wrong)
        if wrong in self.ready:
            raise Violation("I11", f"{wrong} was leased before {expected}", wrong, *expected)
        raise Violation("I5", f"{wrong} was leased, but no longer exists", wrong)

    def _turn_again(self, before: Answer, reply: Any, holder: str) -> str:
        """A repeat returns the leases still held from the first answer, and changes nothing."""
        _, flags, base, ids, data, _, priorities, _, swept, *_ = reply
        held = [(self.leased.get(job.id), job) for job in before.leased]
        still = [here is not None and (here.fence, here.holder) == (job.fence, job.holder) for here, job in held]
        expected = [job.id if kept else "" for job, kept in zip(before.leased, still, strict=True)]
        found = [id.decode() for id in ids]
        first = (before.flags, before.base, before.swept)
        again = (flags.decode(), int(base), swept)
        if first != again or expected != found:
            names = [job.id for job in before.leased]
            raise Violation(
                "I3", f"a repeat answers {again} {found}; the first answer was {first}, expected {expected}", *names
            )
        priorities = priorities * len(ids) if len(priorities) == 1 else priorities
        for job, payload, priority, kept in zip(before.leased, data, priorities, still, strict=True):
            if (payload is not None) != kept or (kept and payload != job.data):
                raise Violation("I2", f"a repeat returns {job.id} with {payload!r}, but it was {job.data!r}", job.id)
            if kept and priority != job.priority:
                raise Violation("I3", f"a repeat returns {job.id} with priority {priority}", job.id)
        return f"turn {holder} leased {' '.join(filter(None, found)) or '-'}"

    def _outcomes(self, args: list[bytes]) -> Iterable[tuple[str, int, str]]:
        count = int(args[9])
        for completed, (fence,) in zip(args[10 : 10 + count], _FENCE.iter_unpack(args[10 + count]), strict=True):
            yield completed.decode(), fence, "complete"
        for id, number, verb, _ in _other_outcomes(args, _others_at(args)):
            yield id, number, verb

    def _describe_outcomes(self, args: list[bytes]) -> str:
        return "".join(f" {verb}({id}^{fence})" for id, fence, verb in self._outcomes(args))


def _others_at(args: list[bytes]) -> int:
    """Where the outcomes begin that are not plain completions: behind the results of these, if they have any."""
    count = int(args[9])
    results_at = 11 + count
    return results_at + 1 + (count + 1 if args[results_at] != b"0" else 0)


def _other_outcomes(args: list[bytes], at: int) -> Iterable[tuple[str, int, str, list[bytes]]]:
    """Id, fence, verb and the verb's arguments of each outcome that is not a plain completion."""
    for _ in range(int(args[at])):
        id, fence, verb, count = args[at + 1 : at + 5]
        first, at = at + 5, at + 4 + int(count)
        yield id.decode(), int(fence), verb.decode(), args[first : at + 1]
