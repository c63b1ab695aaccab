"""The app of a chaos run: tasks that do what their payload says, one for each executor.

Each task logs its start and its end. Importing this module installs the tap, so every process that a forkserver forks
has it.
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
from windlass import Failure, Job, Retry, Snooze, Windlass, current
from windlass.task import Task
from windlass.tasks.declaration import QueueOptions

tap.install("worker")

MAX_DEAD = 1_000_000  # high enough to keep every dead job: the checker looks for each of them at the end
SHORT_BACKOFF: QueueOptions = {"min_backoff": 0.02, "max_backoff": 0.3}  # keeps default retries short enough for a run

app = Windlass(max_dead=MAX_DEAD, queue_options=dict.fromkeys(QUEUES, SHORT_BACKOFF))


class JobError(Exception):
    """Raised by jobs that are meant to fail."""


@app.task(name=LOOP, queue=LOOP)
async def on_loop(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """Runs on the event loop of the runner."""
    with _noted(job):
        if ms and do not in ("retry", "snooze"):
            await asyncio.sleep(ms / 1000)
        if do == "progress":
            await job.aprogress(0.5)
        _act(do, times, ms, job)


@app.task(name=THREAD, queue=THREAD)
def in_thread(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """Runs in a thread of the runner."""
    with _noted(job):
        _wait_and_act(do, times, ms, job)


@app.task(name=PROCESS, queue=PROCESS, run="process")
def in_process(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """Runs in a child process."""
    with _noted(job):
        _wait_and_act(do, times, ms, job)


@app.task(name=CAUGHT, queue=CAUGHT)
async def with_handler(do: str, times: int, ms: int, pad: str, job: Job = current()) -> None:
    """Runs on the event loop; a permanent failure goes to a failure handler."""
    with _noted(job):
        _act(do, times, ms, job)


@with_handler.on_failure(max_failures=5, min_backoff=0.02, max_backoff=0.3)
async def hear_of_failure(data: dict[str, Any]) -> None:
    """The failure handler. It sometimes fails at first, too."""
    if data["times"] % 2 and random.random() < 0.1:
        raise JobError("the handler failed, too")


def _wait_and_act(do: str, times: int, ms: int, job: Job) -> None:
    if ms and do not in ("retry", "snooze"):
        time.sleep(ms / 1000)
    if do == "progress":
        job.progress(0.5)
    _act(do, times, ms, job)


@contextmanager
def _noted(job: Job) -> Iterator[None]:
    tap.note_started(job)
    how = "stopped"  # cancelled; a job killed here logs nothing
    try:
        yield
        how = "ok"
    except Exception:
        how = "raised"
        raise
    finally:
        tap.note_finished(job, how)


def _act(do: str, times: int, ms: int, job: Job) -> None:
    """Perform the payload's action `times` times, then succeed. Only the job's own failures and crashes count."""
    match do:
        case "raise" if job.failures < times:
            raise JobError(f"failure {job.failures + 1} of {times}")
        case "retry" if job.failures < times:
            raise Retry("not yet", delay=ms / 1000)
        case "snooze" if job.snoozes < times:
            raise Snooze("later", delay=ms / 1000)
        case "fail":
            raise Failure("for good")
        case "exit" if job.stalls < times:
            os._exit(7)
        case "segfault" if job.stalls < times:
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hand over":
            _hand_over(times, job)


def _hand_over(count: int, job: Job) -> None:
    """Hand jobs over to the same queue, and to other queues through the outbox; ids derive from the parent's id."""
    tasks: list[Task[..., Any, Any]] = [on_loop, in_thread, in_process, with_handler]
    for number in range(count):
        task = tasks[(QUEUES.index(job.queue) + number) % len(tasks)]
        id = f"{job.id}.{number}"
        job.enqueue(task.using(id=id).call(do="ok", times=0, ms=0, pad=id))
