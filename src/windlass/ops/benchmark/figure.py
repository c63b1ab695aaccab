"""What one step measured, and what limits it, decided by who was busy for most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

BUSY = 0.8  # of one core

Program = Literal["client", "worker"]
Limit = Literal["server CPU", "client CPU", "worker CPU", "CPU in turns", "round trip", "round trip or server CPU"]


class Figure(Struct, frozen=True):
    """One row of the result. CPU times are of one job, in microseconds; shares are parts of one core.

    `program` says whose CPU time it is beside the server's. What the server does not tell is `None`, and so is the rate
    of jobs that were enqueued one now and then.
    """

    step: str
    jobs: int
    seconds: float
    rate: float | None
    program: Program
    program_cpu_us: float
    server_cpu_us: float | None
    program_share: float
    server_share: float | None
    limit: Limit
    p50_ms: float | None = None
    p99_ms: float | None = None


class Spent(Struct, frozen=True):
    """What a step took: elapsed time and CPU time in seconds; `server_share` is that of its main thread."""

    seconds: float
    program_cpu: float
    server_cpu: float | None
    server_share: float | None


def figure(
    step: str,
    jobs: int,
    spent: Spent,
    *,
    program: Program = "client",
    times: Sequence[float] | None = None,
    hurried: bool = True,
) -> Figure:
    """The row of a step that did so many jobs; `times` are those of single ones, in seconds.

    `hurried`: they were done as fast as possible, so there is a rate.
    """
    share = spent.program_cpu / spent.seconds
    return Figure(
        step=step,
        jobs=jobs,
        seconds=spent.seconds,
        rate=jobs / spent.seconds if hurried else None,
        program=program,
        program_cpu_us=spent.program_cpu / max(jobs, 1) * 1e6,
        server_cpu_us=None if spent.server_cpu is None else spent.server_cpu / max(jobs, 1) * 1e6,
        program_share=share,
        server_share=spent.server_share,
        limit=limit_of(program, share, spent.server_share),
        p50_ms=percentile(times, 0.50) * 1000 if times else None,
        p99_ms=percentile(times, 0.99) * 1000 if times else None,
    )


def limit_of(program: Program, program_share: float, server_share: float | None) -> Limit:
    """Who was busy, the server first: when both are, a faster program would only wait for it."""
    if server_share is not None and server_share > BUSY:
        return "server CPU"
    if program_share > BUSY:
        return "client CPU" if program == "client" else "worker CPU"
    if server_share is None:
        return "round trip or server CPU"
    # With one call under way at a time, one side waits while the other is at it: neither the way nor the other is slow.
    return "CPU in turns" if server_share + program_share > BUSY else "round trip"


def percentile(times: Sequence[float], part: float) -> float:
    """The time within which this part of them lies."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]
