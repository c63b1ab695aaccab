"""The app of a chaos run: tasks that do what their payload says, one for each way that a job can be run.

Each notes when it begins and how it ends. Importing this module installs the tap: whatever a forkserver forks has it
then.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from chaos import tap
from chaos.load import CAUGHT, LOOP, PROCESS, QUEUES, THREAD
from windlass import Failure, Job, Retry, Windlass, current
from windlass.task import Task
from windlass.tasks.declaration import QueueOptions

tap.install("worker")

MOST_DEAD = 1_000_000  # every dead job is looked for in the end, so none may be thrown away
SHORT: QueueOptions = {"min_backoff": 0.02, "max_backoff": 0.3}  # for what fails and has not said how long to wait

app = Windlass(max_dead=MOST_DEAD, queue_options=dict.fromkeys(QUEUES, SHORT))


class Trouble(Exception):
    """What a job raises that is meant to fail."""


@app.task(name=LOOP, queue=LOOP)
async def on_loop(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """On the event loop of the runner."""
    with _noted(job):
        if ms and do != "retry":
            await asyncio.sleep(ms / 1000)
        if do == "progress":
            await job.aprogress(0.5)
        _act(do, times, ms, job)


@app.task(name=THREAD, queue=THREAD)
def in_thread(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """In a thread of the runner."""
    with _noted(job):
        _wait_and_act(do, times, ms, job)


@app.task(name=PROCESS, queue=PROCESS, run="process")
def in_process(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """In a child."""
    with _noted(job):
        _wait_and_act(do, times, ms, job)


@app.task(name=CAUGHT, queue=CAUGHT)
async def with_handler(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """On the loop as well; when it fails for good somebody is told."""
    with _noted(job):
        _act(do, times, ms, job)


@with_handler.on_failure(max_failures=5, min_backoff=0.02, max_backoff=0.3)
async def hear_of_failure(data: dict[str, Any]) -> None:
    """Is told of the arguments of a job that failed, and now and then is not up to it at first."""
    if data["times"] % 2 and random.random() < 0.1:
        raise Trouble("the handler failed, too")


def _wait_and_act(do: str, times: int, ms: int, job: Job) -> None:
    if ms and do != "retry":
        time.sleep(ms / 1000)
    if do == "progress":
        job.progress(0.5)
    _act(do, times, ms, job)


@contextmanager
def _noted(job: Job) -> Iterator[None]:
    tap.note_started(job)
    how = "stopped"  # cancelled, or killed in the middle: then nothing is noted at all
    try:
        yield
        how = "ok"
    except Exception:
        how = "raised"
        raise
    finally:
        tap.note_finished(job, how)


def _act(do: str, times: int, ms: int, job: Job) -> None:
    """Do what the payload says, so often; from then on the job ends well. Only its own failures and crashes count."""
    match do:
        case "raise" if job.failures < times:
            raise Trouble(f"failure {job.failures + 1} of {times}")
        case "retry" if job.failures < times:
            raise Retry("not yet", delay=ms / 1000)
        case "fail":
            raise Failure("for good")
        case "exit" if job.stalls < times:
            os._exit(7)
        case "segfault" if job.stalls < times:
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hand over":
            _hand_over(times, job)


def _hand_over(count: int, job: Job) -> None:
    """Children on the same queue, and on the others by way of the outbox; named after their parent."""
    tasks: list[Task[..., Any, Any]] = [on_loop, in_thread, in_process, with_handler]
    for number in range(count):
        task = tasks[(QUEUES.index(job.queue) + number) % len(tasks)]
        id = f"{job.id}.{number}"
        job.enqueue(task.using(id=id).call(do="ok", times=0, ms=0, pad=id))
