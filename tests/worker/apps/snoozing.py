"""Jobs that put themselves off, in each way of running."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Job, Snooze, Windlass, current

app = Windlass()


def _snooze(times: int, delay: float, raised: bool, job: Job) -> Snooze | None:
    note("try", job, snoozes=job.snoozes, failures=job.failures)
    if job.snoozes >= times:
        return None
    snooze = Snooze("rate limit", delay=delay)
    if raised:
        raise snooze
    return snooze


@app.task(queue="snoozes", max_failures=0)
async def loop_snooze(times: int, delay: float, raised: bool, job: Job = current()) -> Snooze | None:
    return _snooze(times, delay, raised, job)


@app.task(queue="snoozes", max_failures=0)
def thread_snooze(times: int, delay: float, raised: bool, job: Job = current()) -> Snooze | None:
    return _snooze(times, delay, raised, job)


@app.task(queue="snoozes", max_failures=0, run="process")
def process_snooze(times: int, delay: float, raised: bool, job: Job = current()) -> Snooze | None:
    return _snooze(times, delay, raised, job)


@app.task(queue="snoozes", max_snoozes=2)
async def loop_bound(job: Job = current()) -> Snooze | None:
    return _snooze(1000, 0, False, job)


@app.task(queue="snoozes", max_snoozes=2, run="process")
def process_bound(job: Job = current()) -> Snooze | None:
    return _snooze(1000, 0, False, job)


@app.handler("raw-snoozes", max_snoozes=1)
def raw_bound(data: bytes, job: Job = current()) -> Snooze | None:
    return _snooze(1000, 0, False, job)


@app.task(queue="snoozes", max_failures=0)
async def fail_for_good() -> None:
    raise ValueError("no good")


@fail_for_good.on_failure(max_snoozes=1)
def told_of_failure(error: Exception) -> Snooze:
    note("told")
    return Snooze(delay=0)
