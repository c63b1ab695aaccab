"""The figures of one step, and its limit: the CPU that was busy for most of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

BUSY_SHARE = 0.8  # of one core

Program = Literal["client", "worker"]
Limit = Literal["server CPU", "client CPU", "worker CPU", "CPU in turns", "round trip", "round trip or server CPU"]


class Figure(Struct, frozen=True):
    """One row of the result. CPU times are per job, in microseconds; shares are parts of one core.

    `program_cpu_us` and `program_share` belong to `program`. Figures that the server does not report are None. So is
    the rate of a step that enqueues a job only now and then.
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
    """Elapsed time and CPU times of a step, in seconds; `server_share` is that of the server's main thread."""

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
    full_speed: bool = True,
) -> Figure:
    """The row of a step. `times` are the times of single jobs, in seconds.

    A step that does not run `full_speed` has no rate.
    """
    share = spent.program_cpu / spent.seconds
    return Figure(
        step=step,
        jobs=jobs,
        seconds=spent.seconds,
        rate=jobs / spent.seconds if full_speed else None,
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
    """The busy CPU, the server's first: if both are busy, a faster program would only wait for the server."""
    if server_share is not None and server_share > BUSY_SHARE:
        return "server CPU"
    if program_share > BUSY_SHARE:
        return "client CPU" if program == "client" else "worker CPU"
    if server_share is None:
        return "round trip or server CPU"
    # With one call at a time, program and server work in turns: each waits while the other works.
    return "CPU in turns" if server_share + program_share > BUSY_SHARE else "round trip"


def percentile(times: Sequence[float], part: float) -> float:
    """The time that this share of `times` does not exceed."""
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]
