"""The run as plain lines, for a log or a pipe; and the account in words, for any output."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.ops.demo.frame import Frame
from windlass.ops.demo.result import Result

PROGRESS_INTERVAL_S = 1.0

FIRST_JOB = """\
from windlass import Windlass

app = Windlass()  # a durable server of its own, or the server at WINDLASS_URL

@app.task
def greet(name: str) -> None:
    print(f"hello, {name}!")

if __name__ == "__main__":
    greet.enqueue("world")  # `windlass worker jobs:app` runs it"""


class Lines:
    """Writes each event, and a line of progress each second."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._next = 0.0

    def show(self, frame: Frame) -> None:
        """Write the news of this frame."""
        if frame.at >= self._next and frame.done:
            self._next = frame.at + PROGRESS_INTERVAL_S
            parts = ", ".join(f"{done:,} of {whole:,} {name}" for name, done, whole in frame.parts)
            self._write(
                f"{frame.at:6.2f} s  {'progress':<8} {parts}; "
                f"{frame.ready:,} ready, {frame.scheduled:,} scheduled, {frame.running:,} running"
            )
        for event in frame.events:
            self._write(f"{event.at:6.2f} s  {event.topic:<8} {event.text}")


def summary(result: Result) -> str:
    """The account in one sentence."""
    account = result.account
    if result.ok:
        return f"All {account.orders:,} orders are accounted for, each fulfilled once. Lost: 0."
    troubles = {
        "lost": account.lost,
        "left on the queue": account.left,
        "steps with two jobs": account.doubled,
        "attempts without explanation": account.unexplained,
        "never placed": account.unknown,
        "ticks lost": account.ticks_lost,
        "job that is not dead after 3 crashes": int(not account.poisoned),
    }
    shown = ", ".join(f"{count:,} {what}" for what, count in troubles.items() if count)
    return f"The account does not balance: {shown}."


def rows(result: Result) -> Iterator[tuple[str, str, str]]:
    """The account: name, number, explanation."""
    account, timing = result.account, result.timing
    synced = ", after a write to disk" if result.durable else ""
    yield (
        "orders",
        f"{account.orders:,}",
        f"acknowledged by the server{synced}",
    )
    yield "thumbnails", f"{account.thumbnails:,}", "one job per order, according to the ledger outside the server"
    yield "e-mails", f"{account.emails:,}", "sent, one job per order"
    yield "failures", f"{account.called:,}", "no such mailbox: on_failure called the customer instead"
    yield "retries", f"{account.retries:,}", "the mail server was busy: retried with backoff"
    yield "crashes", f"{account.crashes:,}", f"by a job that kills its process: {_dead(account.poisoned)}"
    yield "ticks", f"{account.ticks:,}", "of a schedule, one per second"
    yield "kills", f"{sum(kill.processes for kill in result.kills):,}", f"processes, in {len(result.kills)} kills"
    for kill in result.kills:
        jobs = "the job" if kill.under_way == 1 else f"all {kill.under_way} jobs"
        yield "", _rerun(kill.last), f"{kill.whom}: time until {jobs} it ran began again"
    if account.fell:
        yield "fell", f"{account.fell:,}", f"processes ended that the demo did not kill: see {result.log}"
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
    return "now dead, with no crash charged to another job" if poisoned else "it should be dead, and is not"


def _rerun(last: float | None) -> str:
    return "never" if last is None else f"{last:.2f} s"


def _run_again(result: Result) -> str:
    account = result.account
    text = f"{account.cut_short:,} interrupted by a kill"
    if account.in_vain:
        text += f", {account.in_vain:,} killed after their work but before the settle"
    return text + (f"; {account.unexplained:,} without explanation" if account.unexplained else "")


def where_next(result: Result) -> Iterator[str]:
    """The paths of the program and of the kept files."""
    yield f"The shop is {result.shop}"
    if result.kept:
        yield f"Its ledger and its thumbnails are in {result.folder}, the worker's log is {result.log}"
    if result.home:
        yield f"The server still runs: windlass server status --home {result.home}"
