"""One attempt at a job, as a straight line: read what the lease carries, run it, judge how it ended.

Nothing here speaks to the server or starts a process. The same text serves the runner (event loop, threads) and its
child processes; what comes out is an outcome.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import Windlass
from windlass.errors import Undecodable
from windlass.tasks.arguments import holds_nan, without_values
from windlass.tasks.context import Job
from windlass.tasks.control import Failure, Retry
from windlass.tasks.declaration import Declaration, OnException, Run
from windlass.tasks.envelope import Envelope, read_envelope
from windlass.values.backoff import after_failure
from windlass.values.job import Lease, Limits
from windlass.values.outcome import Broken, Completed, Failed, Kept, Outcome, Retried, Unhandled, Unknown
from windlass.values.validation import MAX_MESSAGE, MAX_PAYLOAD, in_one_line, shortened

_encode = msgspec.json.Encoder().encode
_CONTROLS = (Retry, Failure)


class Plan(Struct, frozen=True):
    """What is to be run for a lease, and by which rules its end is judged."""

    lease: Lease
    task: str | None
    run: Run
    timeout: float | None
    limits: Limits
    on_exception: OnException
    keep_ms: int
    call: Callable[[Job], Any]
    read_result: Callable[[bytes], Any] | None = None
    failed_id: str | None = None  # of the job whose failure is told, where this is for a failure handler

    @property
    def title(self) -> str:
        """How logs call it: without its arguments."""
        whose = f"failure handler of {self.task or 'handler'}" if self.failed_id else self.task or "handler"
        return f"{whose} {in_one_line(f'{self.lease.queue}/{self.failed_id or self.lease.id}')}"

    def __repr__(self) -> str:
        return f"<Plan of {self.title}>"


# -- reading what a lease carries --------------------------------------------------------------------


def plan(app: Windlass, lease: Lease) -> Plan | Outcome:
    """What to run; or the outcome at once, where nothing can be run."""
    try:
        return _plan_failure(app, lease) if lease.marks and lease.is_failure_job else _plan_job(app, lease)
    except Undecodable as error:
        return Broken(lease, shortened(error.reason), error.worker_specific)
    except Exception as error:  # a fault of the program, such as a type that cannot be found: not the payload's
        return after_failure(lease, None, describe(error))


def _plan_job(app: Windlass, lease: Lease) -> Plan | Outcome:
    handler = app.handlers.get(lease.queue)
    if handler is not None:
        return _plan(lease, handler, None, 0.0, partial(handler.invoke, lease.data))
    envelope = read_envelope(lease.data)
    task = app.tasks.get(envelope.task)
    if task is None:
        return Unknown(lease, envelope.task)
    planned = _plan(lease, task, task.name, envelope.keep, task.decode(envelope.args).call)
    return msgspec.structs.replace(planned, read_result=task.read_result) if envelope.keep else planned


def _plan(
    lease: Lease, declared: Declaration[..., Any], task: str | None, keep: float, call: Callable[[Job], Any]
) -> Plan:
    # A job that says nothing of its own, such as one that was pushed by hand, follows what its task says.
    limits = lease.limits if lease.marks and lease.limited else declared.limits
    keep_ms = round(keep * 1000) if keep else 0
    return Plan(lease, task, declared.run, declared.timeout, limits, declared.on_exception, keep_ms, call)


def _plan_failure(app: Windlass, lease: Lease) -> Plan | Outcome:
    """The failure handler of the job that failed."""
    record = app.layout(lease.queue).failure(lease)
    declared: Declaration[..., Any] | None = app.handlers.get(lease.queue)
    name, data = None, record.data
    if declared is None:
        try:
            envelope = read_envelope(record.data)
        except Undecodable:
            return Unhandled(lease)
        name, declared = envelope.task, app.tasks.get(envelope.task)
        if declared is None:
            return Unknown(lease, envelope.task)
        data = _arguments(app, envelope)
    failure_handler = declared.failure_handler
    if failure_handler is None:
        return Unhandled(lease)
    facts = {"data": data, "job": record, "error": record.error()}
    return Plan(
        lease,
        name,
        failure_handler.run,
        failure_handler.timeout,
        failure_handler.limits,
        "retry",
        0,
        lambda job: failure_handler.call(**facts),
        failed_id=record.id,
    )


def _arguments(app: Windlass, envelope: Envelope) -> Any:
    """The arguments by name, as the task would get them; as they were written if they do not fit any more."""
    task = app.tasks[envelope.task]
    try:
        return task.arguments.defaults() | task.decode(envelope.args).arguments
    except Undecodable:
        return msgspec.json.decode(envelope.args)


# -- running -----------------------------------------------------------------------------------------


def run(plan: Plan, job: Job, wait_for: Callable[[Awaitable[Any]], Any] | None = None) -> Outcome:
    """Run a function to its end, in this thread. Nothing that it raises gets further, `sys.exit()` included.

    `wait_for` runs what a coroutine function returns, where such may come.
    """
    forks = _forks
    try:
        returned = plan.call(job)
        if wait_for is not None and inspect.isawaitable(returned):
            returned = wait_for(returned)
    except BaseException as error:
        return judge_error(plan, error)
    finally:
        if forks != _forks:
            _end_copy()
    return judge(plan, job, returned)


async def arun(plan: Plan, job: Job) -> Outcome:
    """Run a coroutine function to its end. A cancellation passes through: only who cancelled knows what it means."""
    forks = _forks
    try:
        returned = plan.call(job)
        if type(returned) is CoroutineType or inspect.isawaitable(returned):
            returned = await returned
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # also those that the loop would let end the program
        return judge_error(plan, error)
    finally:
        if forks != _forks:
            _end_copy()
    return judge(plan, job, returned)


_forks = 0  # how often this process was forked from another, from the first one on


def _count_forks() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_forks)


def _end_copy() -> None:
    """A job that forked may come back twice. The copy has nothing to say here: it would act as the runner."""
    os._exit(0)


# -- judging -----------------------------------------------------------------------------------------


def judge(plan: Plan, job: Job, returned: Any) -> Outcome:
    """What a returned value means."""
    if isinstance(returned, _CONTROLS):
        return judge_error(plan, returned)
    if not plan.keep_ms:
        return Completed(plan.lease, None, job.children) if job.children else Completed(plan.lease)
    try:
        data = _encode(returned)
    except Exception as error:
        return fail(plan, f"keep_result: what it returned cannot be written as JSON ({error})")
    if b"null" in data and holds_nan(returned):
        return fail(plan, "keep_result: what it returned holds NaN or infinity, which JSON cannot say")
    if len(data) > MAX_PAYLOAD:
        return fail(
            plan,
            f"keep_result: what it returned has {len(data):,} bytes, and the limit is {MAX_PAYLOAD:,}: store it "
            "elsewhere and return a reference, such as a path or an id",
        )
    if (misfit := _mismatch(plan, data)) is not None:
        kind = type(returned).__name__
        return fail(plan, f"keep_result: it returned {kind}, which does not fit its annotation ({misfit})")
    return Completed(plan.lease, Kept(data, plan.keep_ms), job.children)


def _mismatch(plan: Plan, data: bytes) -> str | None:
    """Why a result could not be read as what the task says that it returns: better told here than to who waits."""
    try:
        if plan.read_result is not None:
            plan.read_result(data)
    except Exception as error:  # also what a __post_init__ of the user's own types raises
        return without_values(str(error))
    return None


def judge_error(plan: Plan, error: BaseException) -> Outcome:
    """What a raised error means: a verdict of the job's own, or by the rules of its task."""
    if isinstance(error, Failure):
        return fail(plan, error.message)
    if isinstance(error, Retry):
        return fall_back(plan, error.message, error.when)
    if plan.on_exception == "fail":
        return fail(plan, describe(error))
    return fall_back(plan, describe(error))


def fall_back(plan: Plan, message: str, when: tuple[str, int] | None = None) -> Retried | Failed:
    """The attempt failed: another try while failures are forgiven, else the end."""
    lease = msgspec.structs.replace(plan.lease, limits=plan.limits)
    outcome = after_failure(lease, when, shortened(message))
    return fail(plan, message) if isinstance(outcome, Failed) else outcome


def fail(plan: Plan, message: str) -> Failed:
    """Failed for good."""
    return Failed(plan.lease, shortened(message), plan.keep_ms)


def describe(error: BaseException) -> str:
    """An error in its own words first, then where it came from. No values of variables."""
    try:
        words = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # an error whose own text fails
        words = type(error).__name__
    trace = "".join(traceback.format_tb(error.__traceback__))
    room = MAX_MESSAGE - len(words.encode("utf-8", "replace")) - 20
    return f"{words}\n{trace[-room:]}" if trace and room > 0 else words
