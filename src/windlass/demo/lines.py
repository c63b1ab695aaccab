"""The run as plain lines, for a log or a pipe; and its end in words, for any output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.demo.frame import Frame
from windlass.demo.result import Result

EVERY = 1.0  # seconds between two lines of progress

FIRST_JOB = """\
from windlass import Windlass

queue = Windlass().queue("hello")
queue.enqueue(b"world")
lease = queue.lease(seconds=30, wait=1)
print(lease.data)
queue.complete(lease)"""


class Lines:
    """Events as they come, and a line of progress each second."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next = 0.0

    def show(self, frame: Frame) -> None:
        """Tell what is new in this frame."""
        if frame.at >= self._next and frame.completed:
            self._next = frame.at + EVERY
            counts = frame.counts
            self._write(
                f"{frame.at:6.2f} s  {'progress':<8} {frame.completed:,} of {frame.jobs:,} completed, "
                f"{frame.pace:,.0f}/s; {counts.ready:,} ready, {counts.scheduled:,} scheduled, {counts.leased:,} leased"
            )
        for event in frame.events:
            self._write(f"{event.at:6.2f} s  {event.topic:<8} {event.text}")


def verdict(result: Result) -> str:
    """The end in one sentence."""
    account = result.account
    if result.ok:
        return f"All {account.added:,} jobs are accounted for, each completed once. Lost: 0."
    troubles = {
        "lost": account.lost,
        "left on the queue": account.left,
        "completed twice": account.completed_twice,
        "runs unexplained": account.unexplained,
        "never added": account.unknown,
    }
    told = ", ".join(f"{count:,} {what}" for what, count in troubles.items() if count)
    return f"The account does not close: {told}."


def rows(result: Result) -> Iterator[tuple[str, str, str]]:
    """The account: what, how many, and what that means."""
    account, timing, kill = result.account, result.timing, result.kill
    yield "added", f"{account.added:,}", "acknowledged by the server" + (", on disk first" if result.durable else "")
    yield "completed", f"{account.completed:,}", "confirmed to one worker, once"
    if kill:
        yield "recovered", f"{account.recovered:,}", _recovered(result, kill.worker)
    if account.cut_off:
        yield (
            "cut off",
            f"{account.cut_off:,}",
            "completed as the worker was killed, and not noted",
        )
    yield "ran twice", f"{account.ran_twice:,}", _ran_twice(result)
    yield "lost", f"{account.lost:,}", ""
    if account.left:
        yield "left", f"{account.left:,}", "still on the queue"
    yield (
        "time",
        f"{timing.total:.1f} s",
        f"server {timing.server:.2f} s, enqueue {timing.enqueue:.2f} s, drain {timing.drain:.1f} s",
    )
    yield (
        "rate",
        f"{result.drain_rate:,.0f}/s",
        f"of jobs that work for {_mean_work(result):.1f} ms; {result.enqueue_rate:,.0f}/s enqueued",
    )


def _recovered(result: Result, killed: str) -> str:
    took = result.timing.recovery
    return f"held by {killed} when killed, done by others" + (f" in {took:.1f} s" if took else "")


def _ran_twice(result: Result) -> str:
    account, kill = result.account, result.kill
    if not account.ran_twice:
        return "no work was in vain"
    if account.unexplained:
        return f"{account.unexplained:,} runs unexplained"
    reasons = []
    if account.ran_twice > account.refused:
        reasons.append(f"{kill.worker if kill else 'a worker'} ran them, and was killed before it said so")
    if account.refused:
        reasons.append(f"{account.refused:,} ended after their lease had")
    return "; ".join(reasons)


def _mean_work(result: Result) -> float:
    return 1000 * result.work / max(1, result.account.added)


def where_next(result: Result) -> Iterator[str]:
    """Where what was kept is to be found."""
    if not result.ok or result.home:
        yield f"The workers' ledgers are in {result.ledgers}"
    if result.home:
        yield f"The server goes on: windlass server status --home {result.home}"
