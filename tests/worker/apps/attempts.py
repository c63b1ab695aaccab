"""What an attempt can come to, in each way of running."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from tests.support.workers import note
from windlass import Failure, Job, JobRecord, Retry, Windlass, current

app = Windlass()


@app.task
async def loop_fine(x: int, job: Job = current()) -> None:
    note("done", job, x=x)


@app.task
def thread_fine(x: int, job: Job = current()) -> None:
    note("done", job, x=x)


@app.task(run="process")
def process_fine(x: int, job: Job = current()) -> None:
    note("done", job, x=x, role=os.environ["WINDLASS_ROLE"])


@app.task(run="process")
async def process_coroutine(x: int, job: Job = current()) -> None:
    await asyncio.sleep(0.001)
    note("done", job, x=x, role=os.environ["WINDLASS_ROLE"])


@app.task(max_failures=2, min_backoff=0.02, max_backoff=0.1)
async def loop_raise(job: Job = current()) -> None:
    note("try", job, failures=job.failures)
    raise ValueError("no good")


@app.task(max_failures=2, min_backoff=0.02, max_backoff=0.1)
def thread_raise(job: Job = current()) -> None:
    note("try", job, failures=job.failures)
    raise ValueError("no good")


@app.task(run="process", max_failures=2, min_backoff=0.02, max_backoff=0.1)
def process_raise(job: Job = current()) -> None:
    note("try", job, failures=job.failures)
    raise ValueError("no good")


@app.task(on_exception="fail")
async def fail_at_once(job: Job = current()) -> None:
    note("try", job)
    raise ValueError("once is enough")


@app.task(max_failures=3, min_backoff=0.2, max_backoff=10)
async def backing_off(job: Job = current()) -> None:
    note("try", job)
    raise ValueError("later")


def _verdict(how: str, job: Job) -> Any:
    if job.failures:
        note("done", job)
        return None
    note("try", job)
    verdicts = {
        "delay": Retry("wait a little", delay=0.5),
        "at": Retry("wait until then", at=time.time() + 0.5),
        "now": Retry("again", delay=0),
        "failure": Failure("not for us"),
    }
    return verdicts[how]


@app.task
async def loop_verdict(how: str, raised: bool, job: Job = current()) -> Any:
    verdict = _verdict(how, job)
    if raised and verdict is not None:
        raise verdict
    return verdict


@app.task
def thread_verdict(how: str, raised: bool, job: Job = current()) -> Any:
    verdict = _verdict(how, job)
    if raised and verdict is not None:
        raise verdict
    return verdict


@app.task(run="process")
def process_verdict(how: str, raised: bool, job: Job = current()) -> Any:
    verdict = _verdict(how, job)
    if raised and verdict is not None:
        raise verdict
    return verdict


@app.task(max_failures=1, min_backoff=0.02, max_backoff=0.1)
async def loop_exit(job: Job = current()) -> None:
    note("try", job)
    sys.exit("that was it")


@app.task(max_failures=1, min_backoff=0.02, max_backoff=0.1)
def thread_exit(job: Job = current()) -> None:
    note("try", job)
    sys.exit("that was it")


@app.task(run="process", max_failures=1, min_backoff=0.02, max_backoff=0.1)
def process_exit(job: Job = current()) -> None:
    note("try", job)
    sys.exit("that was it")


async def _progress(job: Job, gate: str) -> None:
    job.progress(0.25)
    note("start", job)
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    note("done", job)


@app.task
async def loop_progress(gate: str, job: Job = current()) -> None:
    await _progress(job, gate)


@app.task
def thread_progress(gate: str, job: Job = current()) -> None:
    asyncio.run(_progress(job, gate))


@app.task(run="process")
async def process_progress(gate: str, job: Job = current()) -> None:
    await _progress(job, gate)


@app.handler("raw")
async def take_raw(data: bytes, job: Job = current()) -> None:
    note("done", job, data=data.hex())


# -- failure handlers ----------------------------------------------------------------------------


@app.task(queue="caught", max_failures=1, min_backoff=0.02, max_backoff=0.1)
async def caught_failure(name: str, times: int = 0, job: Job = current()) -> None:
    note("try", job)
    raise ValueError(f"no {name}")


@caught_failure.on_failure(max_failures=5, min_backoff=0.02, max_backoff=0.05)
async def on_caught_failure(data: dict[str, Any], job: JobRecord, error: Exception) -> None:
    note("caught", data=data, id=job.id, failures=job.failures, type=type(error).__name__, text=str(error))
    if data.get("times"):
        tries = _count_tries(job.id)
        if tries < data["times"]:
            raise RuntimeError("not yet")
    note("told", id=job.id)


def _count_tries(id: str) -> int:
    path = os.environ["WINDLASS_TEST_JOURNAL"] + ".tries." + id
    with open(path, "a") as file:
        file.write("x")
    return os.path.getsize(path)


@app.task(queue="caught", run="process", max_stalls=1, min_backoff=0)
def caught_crash(job: Job = current()) -> None:
    note("try", job)
    os.kill(os.getpid(), 9)


@caught_crash.on_failure
def on_caught_crash(job: JobRecord, error: Exception) -> None:
    note("caught", id=job.id, stalls=job.stalls, type=type(error).__name__, text=str(error))


@app.task(queue="caught", max_failures=0)
async def uncaught_failure(job: Job = current()) -> None:
    note("try", job)
    raise ValueError("nobody hears this")
