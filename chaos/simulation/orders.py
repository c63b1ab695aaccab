"""Enqueues, orders, and calls of running jobs: each repeated on the book, and the answer compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from chaos.simulation.commands import ScriptCall
from chaos.simulation.jobs import (
    KEEP,
    MUST_EXIST,
    NOW,
    RUN_AT_MODES,
    SUSPECT,
    Asked,
    Job,
    When,
    name_of,
    new_job,
)
from chaos.simulation.moves import Moves
from chaos.simulation.violation import Violation
from windlass.storage.formats import CHANGE


class Orders(Moves):
    """Every script except the turn."""

    # -- enqueue and orders ----------------------------------------------------------------------

    def _enqueue(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        self._promote()
        letters = ""
        jobs: list[tuple[bytes, bytes, bytes]]
        if call.args[3] == b"2":  # an empty call
            jobs = [(id, data, b"") for id, data in zip(call.args[4::2], call.args[5::2], strict=True)]
        else:
            jobs = list(zip(call.args[4::3], call.args[5::3], call.args[6::3], strict=True))
        for id_, data, text in jobs:
            id = id_.decode()
            letter = self._put(id, self._asked(data, text))
            letters += letter
            name = name_of(data)
            if name in self.enqueued:
                raise Violation("I3", f"one enqueue of {id} was applied twice", id)
            if name:
                self.enqueued[name] = letter
        self.answer = letters
        ids = [id.decode() for id, _, _ in jobs]
        if letters != told:
            wrong = [id for id, ours, theirs in zip(ids, letters, told, strict=True) if ours != theirs]
            raise Violation("I3", f"enqueue of {wrong} should answer {letters}, but answers {told}", *wrong)
        return f"enqueue {' '.join(ids)} {letters}"

    def _asked(self, data: bytes, text: bytes) -> Asked:
        if not text:
            return Asked(data)
        priority, kind, ms, *limits, flags, extras = CHANGE.unpack_from(text)
        when = NOW
        if kind == 1:
            when = When(ms)
        elif kind == 2:
            when = self._from_now(ms)
        given = msgspec.msgpack.decode(text[-extras:]).get("expires") if extras else None
        asked = Asked(data, when, priority, tuple(limits), flags)
        if given and given[0] == "in":
            asked.lasts = given[1]
        elif given is not None:
            asked.expires = given[1] if given else 0
        return asked

    def _put(self, id: str, asked: Asked) -> str:
        waiting, running = self.ready.get(id) or self.scheduled.get(id), self.leased.get(id)
        if self._is_past_expiry(waiting):
            if asked.has(MUST_EXIST):
                return "m"
            self.ready.pop(id, None)
            self.scheduled.pop(id, None)
            waiting = None
        if (waiting or running) and asked.has(KEEP):
            return "k"
        if running:
            return self._block(id, asked)
        if waiting:
            self._update(waiting, asked)
            return "u"
        if asked.has(MUST_EXIST):
            return "m"
        self._set_expiry(asked, moved=False)
        self._place(new_job(id, asked))
        return "a"

    def _update(self, job: Job, asked: Asked) -> None:
        was_scheduled = job.id in self.scheduled
        if not was_scheduled:
            job.when = NOW
        old = job.when
        self._merge(job, asked)
        self._set_expiry(job, moved=job.when.at != old.at)
        if was_scheduled and job.when.at == old.at:
            return
        if was_scheduled:
            del self.scheduled[job.id]
            self._place(job)
        elif job.when.at > self.due:
            del self.ready[job.id]
            self._place(job)

    def _block(self, id: str, asked: Asked) -> str:
        first = self.blocked.get(id)
        if first is None or self._is_past_expiry(first):
            if asked.has(MUST_EXIST):
                return "m"
            self.blocked[id] = replace(asked)
            self._set_expiry(self.blocked[id], moved=False)
            return "b"
        began = first.when.at
        old, new = first.mode, asked.mode
        mode = old if new == "never" else "always" if old == "always" else new
        self._merge(first, asked)
        self._set_expiry(first, moved=first.when.at != began)
        kept = (first.updates | asked.updates) & ~(2 * 3 | KEEP | MUST_EXIST)
        first.updates = kept | RUN_AT_MODES.index(mode) << 1
        return "b"

    def _cancel(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        running = call.args[3] == b"1"
        flags = ""
        ids = [id.decode() for id in call.args[4:]]
        for id in ids:
            job = self.leased.get(id)
            flag = 0
            if job is not None:
                flag = 1 if self.blocked.pop(id, None) is not None else 0
                if running and not job.cancelled:
                    job.cancelled = True
                    flag += 2
            elif self.ready.pop(id, None) or self.scheduled.pop(id, None):
                flag = 1
            flags += str(flag)
        self.answer = flags
        if flags != told:
            raise Violation("I4", f"cancel of {ids} should answer {flags}, but answers {told}", *ids)
        return f"cancel {' '.join(ids)} {flags}"

    def _revive(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        flags = ""
        ids = [id.decode() for id in call.args[3:]]
        for id in ids:
            here = id in self.ready or id in self.scheduled or id in self.leased
            job = None if here else self.dead.pop(id, None) or self.broken.pop(id, None)
            flags += "1" if job else "0"
            if job:
                job.failures = job.stalls = job.snoozes = 0
                job.marks &= ~SUSPECT
                job.when = NOW
                self._place(job)
        self.answer = flags
        if flags != told:
            raise Violation("I4", f"revive of {ids} should answer {flags}, but answers {told}", *ids)
        return f"revive {' '.join(ids)} {flags}"

    # -- calls of running jobs -------------------------------------------------------------------

    def _beat(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        holder, ms, register = call.args[3].decode(), int(call.args[4]), call.args[5] == b"1"
        known = holder in self.holders
        if known or register:
            self._sign_of_life(holder, ms)
        self.answer = "1" if known else "0"
        if self.answer != told:
            raise Violation(
                "I8", f"holder {holder} should be {'known' if known else 'unknown'}, but beat answers {told}"
            )
        return f"beat {holder} {told}"

    def _extend(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        ms, count = int(call.args[3]), int(call.args[4])
        ids = [id.decode() for id in call.args[5 : 5 + count]]
        fences = list(map(int, call.args[5 + count : 5 + 2 * count]))
        raw = f".{call.args[0].decode()}.{call.args[1].decode()}"
        flags, left = "", set()
        for id, fence in zip(ids, fences, strict=True):
            job = self.leased.get(id)
            ours = job is not None and job.fence == fence and not job.cancelled
            if ours and job is not None and job.holder.startswith("."):
                left.add(job.holder)
                job.holder = raw
                self.holders[raw] = self._hold(ms)
            elif ours and job is not None and job.holder in self.holders:
                self._sign_of_life(job.holder, ms)
            else:
                ours = False
            flags += "1" if ours else "0"
        self._drop_raw(left - {raw})
        self.answer = flags
        if flags != told:
            raise Violation("I7", f"extend of {ids} should answer {flags}, but answers {told}", *ids)
        return f"extend {' '.join(ids)} {flags}"

    def _progress(self, call: ScriptCall, reply: Any, before: Any) -> str:
        told = reply[1].decode()
        if before is not None:
            return self._same(before, told)
        id, fence = call.args[3].decode(), int(call.args[4])
        job = self.leased.get(id)
        self.answer = "1" if job is not None and job.fence == fence and not job.cancelled else "0"
        if self.answer != told:
            raise Violation("I7", f"progress of {id} should answer {self.answer}, but answers {told}", id)
        return f"progress {id} {told}"

    def _audit(self, call: ScriptCall, reply: Any, before: Any) -> str:
        self.answer = True
        return ""

    def _unregister(self, call: ScriptCall, reply: Any) -> str:
        names = list(call.args)
        waiters, holders, callers = (_counted(names) for _ in range(3))
        busy = {job.holder for job in self.leased.values()}
        for holder in holders:
            if holder not in busy:
                self.holders.pop(holder, None)
        for caller in callers:
            self.callers.pop(caller, None)
        if reply == 1:
            if any((self.ready, self.scheduled, self.leased, self.blocked, self.dead, self.broken, self.holders)):
                raise Violation("I1", "the queue's state was dropped while it was in use")
            if not self.callers:  # otherwise the state is kept for late requests
                self.clock, self.step, self.fence = None, 0, 0
        return f"unregister {len(waiters)} {' '.join(holders)} {' '.join(callers)} {reply}"


def _counted(names: list[bytes]) -> list[str]:
    count = int(names.pop(0))
    found = [name.decode() for name in names[:count]]
    del names[:count]
    return found
