"""The run as plain lines, for a log or a pipe; and its end in words, for any output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.ops.demo.frame import Frame
from windlass.ops.demo.result import Result

EVERY = 1.0  # seconds between two lines of progress

FIRST_JOB = """\
from windlass import Windlass

app = Windlass()  # a durable server of its own, or the one that WINDLASS_URL names

@app.task
def greet(name: str) -> None:
    print(f"hello, {name}!")

if __name__ == "__main__":
    greet.enqueue("world")  # `windlass worker jobs:app` runs it"""


class Lines:
    """Events as they come, and a line of progress each second."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next = 0.0

    def show(self, frame: Frame) -> None:
        """Tell what is new in this frame."""
        if frame.at >= self._next and frame.done:
            self._next = frame.at + EVERY
            parts = ", ".join(f"{done:,} of {whole:,} {name}" for name, done, whole in frame.parts)
            self._write(
                f"{frame.at:6.2f} s  {'progress':<8} {parts}; "
                f"{frame.ready:,} ready, {frame.scheduled:,} scheduled, {frame.leased:,} leased"
            )
        for event in frame.events:
            self._write(f"{event.at:6.2f} s  {event.topic:<8} {event.text}")


def verdict(result: Result) -> str:
    """The end in one sentence."""
    account = result.account
    if result.ok:
        return f"All {account.orders:,} orders are accounted for, each fulfilled once. Lost: 0."
    troubles = {
        "lost": account.lost,
        "left on the queue": account.left,
        "steps with two jobs": account.doubled,
        "attempts unexplained": account.unexplained,
        "never placed": account.unknown,
        "ticks lost": account.ticks_lost,
        "job that should have died of 3 crashes": int(not account.poisoned),
    }
    told = ", ".join(f"{count:,} {what}" for what, count in troubles.items() if count)
    return f"The account does not close: {told}."


def rows(result: Result) -> Iterator[tuple[str, str, str]]:
    """The account: what, how many, and what that means."""
    account, timing = result.account, result.timing
    yield "orders", f"{account.orders:,}", "acknowledged by the server" + (", on disk first" if result.durable else "")
    yield "thumbnails", f"{account.thumbnails:,}", "one job for each order, by the ledger outside the server"
    yield "e-mails", f"{account.emails:,}", "sent, one job for each order"
    yield "failures", f"{account.called:,}", "no such mailbox: the customer is called instead, by on_failure"
    yield "retries", f"{account.retries:,}", "the mail server was busy: tried again after a pause"
    yield "crashes", f"{account.crashes:,}", f"by a job that kills its process: {_dead(account.poisoned)}"
    yield "ticks", f"{account.ticks:,}", "of a schedule, one each second"
    yield "kills", f"{sum(kill.processes for kill in result.kills):,}", f"processes, in {len(result.kills)} kills"
    for kill in result.kills:
        jobs = "the job" if kill.under_way == 1 else f"all {kill.under_way} jobs"
        yield "", _rerun(kill.last), f"{kill.whom}: until {jobs} in its hands ran again"
    if account.fell:
        yield "fell", f"{account.fell:,}", f"processes that the demo did not kill: {result.log} says why"
    yield "run again", f"{account.cut_short + account.in_vain:,}", _run_again(result)
    yield "lost", f"{account.lost:,}", ""
    if account.left:
        yield "left", f"{account.left:,}", "still on the queue"
    yield (
        "time",
        f"{timing.total:.1f} s",
        f"server {timing.server:.2f} s, placing the orders {timing.place:.2f} s, fulfilling them {timing.drain:.1f} s",
    )


def _dead(poisoned: bool) -> str:
    return "dead then, and nobody else charged" if poisoned else "not dead then, as it should be"


def _rerun(last: float | None) -> str:
    return "never" if last is None else f"{last:.2f} s"


def _run_again(result: Result) -> str:
    account = result.account
    told = f"{account.cut_short:,} cut short by a kill"
    if account.in_vain:
        told += f", {account.in_vain:,} killed after their work and before they could say so"
    return told + (f"; {account.unexplained:,} unexplained" if account.unexplained else "")


def where_next(result: Result) -> Iterator[str]:
    """Where the program is, and what was kept."""
    yield f"The shop is {result.shop}"
    if result.kept:
        yield f"Its ledger and its thumbnails are in {result.folder}, the worker's log is {result.log}"
    if result.home:
        yield f"The server goes on: windlass server status --home {result.home}"
