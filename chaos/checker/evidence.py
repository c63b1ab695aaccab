"""Faults, deaths and rewinds of a run, and whether they explain what happened to a job."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from chaos.checker.index import Index
from chaos.log import Fault

NEVER = 1 << 62
_SECOND_NS = 10**9
_DEATH_LOG_DELAY_NS = _SECOND_NS  # ns by which the log of a death may lag behind the death
_OVERLAP_FAULTS = ("stop", "partition")  # these may keep a holder from noticing that its lease has expired


class Span(NamedTuple):
    """One fault, from its beginning to its end."""

    name: str
    begin: int
    end: int
    pids: frozenset[int]

    @property
    def hits_all(self) -> bool:
        """Whether it hits every process: it names none, or it names the server."""
        return not self.pids or 0 in self.pids or "server" in self.name

    def concerns(self, pids: Collection[int]) -> bool:
        """Whether it hits one of these processes."""
        return self.hits_all or not self.pids.isdisjoint(pids)


class Evidence:
    """All faults and deaths of a run."""

    def __init__(self, index: Index) -> None:
        self.spans = list(_spans(index.faults))
        self._begins = [span.begin for span in self.spans]
        self._longest = max((span.end - span.begin for span in self.spans if span.end < NEVER), default=0)
        self._endless = [span for span in self.spans if span.end >= NEVER]
        self.deaths: dict[int, list[int]] = {}
        for ended in index.ended:
            self.deaths.setdefault(ended.pid, []).append(ended.t)
        for span in self.spans:
            if span.name.startswith("kill"):
                for pid in span.pids:
                    self.deaths.setdefault(pid, []).append(span.begin)
        for times in self.deaths.values():
            times.sort()
        self._signs: dict[int, list[tuple[int, int]]] = {}
        for process in index.processes.values():
            self._signs.setdefault(process.pid, []).append((process.first, process.last))
        self.clock_jumps = sorted(
            t for span in self.spans if "clock" in span.name for t in (span.begin, span.end) if t < NEVER
        )
        self.server_kills = [span.begin for span in self.spans if "kill" in span.name and "server" in span.name]
        self.healed = index.healed
        self.rewinds = index.rewinds
        self.wall_ahead = index.wall_ahead

    @property
    def by_name(self) -> dict[str, int]:
        """Number of faults by name."""
        return dict(sorted(Counter(span.name for span in self.spans).items()))

    @property
    def worker_kills(self) -> int:
        """Number of kills that hit a worker or a part of one."""
        return sum(span.name.startswith("kill") and "server" not in span.name for span in self.spans)

    def between(self, since: int, until: int) -> Iterable[Span]:
        """Faults active at some time in this interval."""
        low = bisect_left(self._begins, since - self._longest)
        high = bisect_right(self._begins, until)
        yield from (span for span in self.spans[low:high] if since <= span.end < NEVER)
        yield from (span for span in self._endless if span.begin <= until)

    def explains(self, pids: Collection[int], since: int, until: int) -> bool:
        """Whether a known fault or death may have kept these processes from renewing a lease."""
        for pid in pids:
            times = self.deaths.get(pid, ())
            if bisect_right(times, until + _DEATH_LOG_DELAY_NS) > bisect_left(times, since):
                return True
        return any(span.concerns(pids) for span in self.between(since, until))

    def jumps_between(self, since: int, until: int) -> int:
        """How often the server's clock was set in this interval."""
        return bisect_right(self.clock_jumps, until) - bisect_left(self.clock_jumps, since)

    def last_sign(self, pid: int, after: int) -> int:
        """Time of the last sign of life of the process that had this pid at this time."""
        return max((last for first, last in self._signs.get(pid, ()) if first <= after), default=after)

    def excuses_overlap(self, pids: Collection[int], since: int, until: int) -> bool:
        """Whether one of these was stopped or cut off, so that it could not know that its lease had expired."""
        return any(
            span.name.startswith(_OVERLAP_FAULTS) and (not span.pids or not span.pids.isdisjoint(pids))
            for span in self.between(since, until)
        )

    def stopped_for(self, pids: Collection[int], since: int, until: int) -> int:
        """How long one of these processes was stopped in this interval, in ns."""
        stood, at = 0, since
        for span in sorted(self.between(since, until), key=lambda span: span.begin):
            if span.name.startswith("stop") and not span.pids.isdisjoint(pids):
                stood += max(0, min(until, span.end) - max(at, span.begin))
                at = max(at, span.end)
        return stood

    def kill_before(self, t: int) -> int:
        """Time of the last server kill before `t`; `t` if no kill is logged."""
        at = bisect_right(self.server_kills, t)
        return self.server_kills[at - 1] if at else t


def _spans(faults: list[Fault]) -> Iterable[Span]:
    """Pair each begin with its end: the next end with the same name and the same or no processes."""
    open_ones: list[tuple[Fault, frozenset[int]]] = []
    spans: list[Span] = []
    for fault in faults:
        pids = frozenset(fault.pids)
        if fault.begins:
            open_ones.append((fault, pids))
            continue
        same = [one for one in open_ones if one[0].name == fault.name]
        fitting = [one for one in same if one[1] == pids] or [one for one in same if one[1] & pids] or same
        if fitting:
            open_ones.remove(fitting[0])
            begun, begun_pids = fitting[0]
            spans.append(Span(fault.name, begun.t, fault.t, begun_pids | pids))
        else:
            spans.append(Span(fault.name, fault.t, fault.t, pids))
    for fault, pids in open_ones:
        end = fault.t if fault.name.startswith("kill") else NEVER
        spans.append(Span(fault.name, fault.t, end, pids))
    return sorted(spans, key=lambda span: (span.begin, span.name))
