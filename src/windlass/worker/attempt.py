"""One attempt at a job, as a straight line: plan it from the lease, run it, turn its end into an outcome.

Nothing here talks to the server or starts a process. The runner (event loop, threads) and its child processes share
this code.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from functools import partial
from types import CoroutineType
from typing import Any

import msgspec
from msgspec import Struct

from windlass.app import Windlass
from windlass.errors import Undecodable
from windlass.task import Task
from windlass.tasks.arguments import holds_nan, without_values
from windlass.tasks.codec import PLAIN, Codec
from windlass.tasks.context import Job
from windlass.tasks.control import Failure, Retry, Snooze
from windlass.tasks.declaration import Declaration, OnException, Run
from windlass.tasks.envelope import Envelope, read_envelope
from windlass.tasks.log_fields import running_job
from windlass.values.backoff import after_crash, after_failure, after_snooze
from windlass.values.job import Lease, Limits
from windlass.values.outcome import (
    Broken,
    Completed,
    Crashed,
    Failed,
    Kept,
    NoFailureHandler,
    Outcome,
    Retried,
    Snoozed,
    UnknownTask,
)
from windlass.values.printable import in_one_line
from windlass.values.validation import LARGEST_PAYLOAD, MAX_PAYLOAD, shortened
from windlass.worker.tracebacks import describe, title_and_trace

_CONTROL_TYPES = (Retry, Snooze, Failure)


class Plan(Struct, frozen=True):
    """The function to run for a lease, and the rules that turn its end into an outcome."""

    lease: Lease
    task: str | None
    run: Run
    timeout: float | None
    limits: Limits
    on_exception: OnException
    keep_ms: int
    call: Callable[[Job], Any]
    read_result: Callable[[bytes], Any] | None = None
    codec: Codec = PLAIN
    failed_id: str | None = None  # for a failure handler: the id of the job that failed

    @property
    def title(self) -> str:
        """The job's name in logs, without its arguments."""
        name = f"failure handler of {self.task or 'handler'}" if self.failed_id else self.task or "handler"
        return f"{name} {in_one_line(f'{self.lease.queue}/{self.failed_id or self.lease.id}')}"

    def __repr__(self) -> str:
        return f"<Plan of {self.title}>"


# -- planning ----------------------------------------------------------------------------------------


def plan(app: Windlass, lease: Lease) -> Plan | Outcome:
    """Return what to run for a lease, or an outcome if the job cannot run here."""
    try:
        return _plan_failure(app, lease) if lease.marks and lease.is_failure_job else _plan_job(app, lease)
    except Undecodable as error:
        return Broken(lease, shortened(error.reason), error.worker_specific)
    except Exception as error:  # a bug in the program, such as a type that cannot be found; the payload may be fine
        return after_failure(lease, None, describe(error))


def _plan_job(app: Windlass, lease: Lease) -> Plan | Outcome:
    if len(lease.data) > LARGEST_PAYLOAD:  # the server's own limit was raised, and another client wrote it
        raise Undecodable(
            f"the payload has {len(lease.data):,} bytes, and a worker takes at most {LARGEST_PAYLOAD:,}: store it "
            "elsewhere and enqueue a reference"
        )
    handler = app.handlers.get(lease.queue)
    if handler is not None:
        return _plan(lease, handler, None, 0.0, partial(handler.invoke, lease.data))
    envelope = read_envelope(lease.data)
    task = app.find_task(envelope.task)
    if task is None:
        return UnknownTask(lease, envelope.task)
    planned = _plan(lease, task, task.name, envelope.keep, task.decode(envelope.args).call)
    return (
        msgspec.structs.replace(planned, read_result=task.read_result, codec=task.codec) if envelope.keep else planned
    )


def _plan(
    lease: Lease, declared: Declaration[..., Any], task: str | None, keep: float, call: Callable[[Job], Any]
) -> Plan:
    limits = lease.limits
    # A job without limits of its own, such as one pushed by hand, uses the limits that its task gives.
    if declared.given_limits and not (lease.marks and lease.limited):
        limits = msgspec.structs.replace(limits, **declared.given_limits)
    keep_ms = round(keep * 1000) if keep else 0
    return Plan(lease, task, declared.run, declared.timeout, limits, declared.on_exception, keep_ms, call)


def _plan_failure(app: Windlass, lease: Lease) -> Plan | Outcome:
    """Plan the failure handler of the job that failed."""
    record = app.layout(lease.queue).failure(lease)
    declared: Declaration[..., Any] | None = app.handlers.get(lease.queue)
    name, data = None, record.data
    if declared is None:
        try:
            envelope = read_envelope(record.data)
        except Undecodable:
            return NoFailureHandler(lease)
        task = app.find_task(envelope.task)
        if task is None:
            return UnknownTask(lease, envelope.task)
        name, declared, data = task.name, task, _arguments(task, envelope)
    failure_handler = declared.failure_handler
    if failure_handler is None:
        return NoFailureHandler(lease)
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


def _arguments(task: Task[..., Any, Any], envelope: Envelope) -> Any:
    """Return the arguments by name, as the task would get them, or undecoded if they no longer fit the task."""
    try:
        return task.arguments.defaults() | task.decode(envelope.args).arguments
    except Undecodable:
        return msgspec.json.decode(envelope.args)


# -- running -----------------------------------------------------------------------------------------


def run(plan: Plan, job: Job, wait_for: Callable[[Awaitable[Any]], Any] | None = None) -> Outcome:
    """Run a function to its end in this thread. No exception escapes, not even `SystemExit`.

    `wait_for` runs the awaitable if the function returns one.
    """
    forks = _forks
    running_job.set(job)
    try:
        returned = plan.call(job)
        if wait_for is not None and inspect.isawaitable(returned):
            returned = wait_for(returned)
    except BaseException as error:
        return classify_error(plan, job, error)
    finally:
        running_job.set(None)
        if forks != _forks:
            _exit_copy()
    return classify_result(plan, job, returned)


async def arun(plan: Plan, job: Job) -> Outcome:
    """Run a coroutine function to its end. `CancelledError` passes through: only the canceller knows its reason."""
    forks = _forks
    running_job.set(job)
    try:
        returned = plan.call(job)
        if type(returned) is CoroutineType or inspect.isawaitable(returned):
            returned = await returned
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # also SystemExit and KeyboardInterrupt, which would end the event loop
        return classify_error(plan, job, error)
    finally:
        running_job.set(None)
        if forks != _forks:
            _exit_copy()
    return classify_result(plan, job, returned)


_forks = 0  # forks between the first process and this one


def _count_forks() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_forks)


def _exit_copy() -> None:
    """End the copy of this process that a job forked: it would otherwise go on as a second runner."""
    os._exit(0)


# -- outcomes ----------------------------------------------------------------------------------------


def classify_result(plan: Plan, job: Job, returned: Any) -> Outcome:
    """Turn a returned value into an outcome."""
    if isinstance(returned, _CONTROL_TYPES):
        return classify_error(plan, job, returned)
    if not plan.keep_ms:
        return Completed(plan.lease, None, job.hand_overs) if job.hand_overs else Completed(plan.lease)
    try:
        data = plan.codec.write(returned)
    except Exception as error:
        return fail(plan, f"keep_result: the returned value cannot be encoded as JSON ({error})")
    if returned is not None and b"null" in data and holds_nan(returned, plan.codec):
        return fail(plan, "keep_result: the returned value holds NaN or infinity, which JSON cannot encode")
    if len(data) > MAX_PAYLOAD:
        return fail(
            plan,
            f"keep_result: the returned value has {len(data):,} bytes, and the limit is {MAX_PAYLOAD:,}: store it "
            "elsewhere and return a reference, such as a path or an id",
        )
    if (misfit := _mismatch(plan, data)) is not None:
        kind = type(returned).__name__
        return fail(plan, f"keep_result: the task returned {kind}, which does not fit its annotation ({misfit})")
    return Completed(plan.lease, Kept(data, plan.keep_ms), job.hand_overs)


def _mismatch(plan: Plan, data: bytes) -> str | None:
    """Say why a result does not fit the task's return annotation, so that the job fails and not its caller."""
    try:
        if plan.read_result is not None:
            plan.read_result(data)
    except Exception as error:  # a __post_init__ of the user's types may raise anything
        return without_values(str(error))
    return None


def classify_error(plan: Plan, job: Job, error: BaseException) -> Outcome:
    """Turn a raised error into an outcome: `Retry`, `Snooze` and `Failure` first, then the rules of the task."""
    if isinstance(error, _CONTROL_TYPES):
        return _obey(plan, error, _with_causes(job, error))
    job.raised, message = error, describe(error)
    return fail(plan, message) if plan.on_exception == "fail" else retry_or_fail(plan, message)


def _obey(plan: Plan, control: Retry | Snooze | Failure, message: str) -> Outcome:
    if isinstance(control, Snooze):
        return _snooze_or_fail(plan, message, control.when)
    return retry_or_fail(plan, message, control.when) if isinstance(control, Retry) else fail(plan, message)


def _with_causes(job: Job, control: Retry | Snooze | Failure) -> str:
    """Return the message, with the traceback if it was raised because of another error."""
    if control.__cause__ is None and (control.__context__ is None or control.__suppress_context__):
        return control.message
    job.raised = control
    return title_and_trace(control.message, control)


def retry_or_fail(plan: Plan, message: str, when: tuple[str, int] | None = None) -> Retried | Failed:
    """Retry a failed attempt while the task's limits allow it, else fail the job."""
    outcome = after_failure(_limited_lease(plan), when, shortened(message))
    return fail(plan, message) if isinstance(outcome, Failed) else outcome


def _snooze_or_fail(plan: Plan, message: str, when: tuple[str, int]) -> Snoozed | Failed:
    outcome = after_snooze(_limited_lease(plan), when, shortened(message))
    return fail(plan, outcome.message) if isinstance(outcome, Failed) else outcome


def crash(plan: Plan, message: str) -> Crashed:
    """The job killed its process."""
    return after_crash(_limited_lease(plan), shortened(message), plan.keep_ms)


def _limited_lease(plan: Plan) -> Lease:
    """The lease with the limits that hold for this attempt."""
    return msgspec.structs.replace(plan.lease, limits=plan.limits)


def fail(plan: Plan, message: str) -> Failed:
    """Fail the job without another attempt."""
    return Failed(plan.lease, shortened(message), plan.keep_ms)
