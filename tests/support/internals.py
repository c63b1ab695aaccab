"""The only module of the tests that uses names of the product that begin with an underscore.

There is one function for each need, so a rename inside the product changes only this module.
`tests/test_architecture.py` enforces the rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from windlass import Queue, Windlass
from windlass.handle import JobHandle
from windlass.storage.compat.base import ForeignLayout
from windlass.storage.native.layout import NativeLayout
from windlass.storage.port import Call, Layout
from windlass.transport import Flow, Session
from windlass.transport.enqueue_batcher import EnqueueBatcher
from windlass.transport.io_steps import Exchange
from windlass.transport.session import Caller
from windlass.transport.subscription import FlowRunner
from windlass.values.job import Lease, Receipt, Status
from windlass.values.outcome import Outcome
from windlass.worker.attempt import Plan
from windlass.worker.executors.base import Executor
from windlass.worker.executors.processes import ChildConnection, ProcessExecutor
from windlass.worker.executors.threads import ThreadExecutor
from windlass.worker.in_process import Worker
from windlass.worker.ipc.prefetch import Prefetch
from windlass.worker.runner.queue_consumer import QueueConsumer
from windlass.worker.runner.runner import Runner

T = TypeVar("T")
Exchanger = Callable[[Exchange], list[Any]]

# -- calls and flows -------------------------------------------------------------------------------------------


def perform(queue: Queue, make_call: Callable[[Layout], Call[T]]) -> T:
    """Send a call of the queue's layout, and return what the server answers."""
    return run_flow(queue, lambda session: session.perform(make_call(layout_of(queue))))


def perform_call(on: Queue | Windlass, call: Call[T]) -> T:
    """Send a call that is already made, and return what the server answers."""
    return run_flow(on, lambda session: session.perform(call))


async def aperform_call(on: Queue | Windlass, call: Call[T]) -> T:
    """Awaitable `perform_call`."""
    return await arun_flow(on, lambda session: session.perform(call))


def settle(queue: Queue, *outcomes: Outcome) -> tuple[bool, ...]:
    """Settle leases in one turn, and return for each whether it was still held."""
    return perform(queue, lambda layout: layout.turn(outcomes)).settled


def run_flow(on: Queue | Windlass, flow: Callable[[Session], Flow[T]]) -> T:
    """Run a flow in this thread, on the connections of an app."""
    return _flow_runner_of(on).run(flow)


async def arun_flow(on: Queue | Windlass, flow: Callable[[Session], Flow[T]]) -> T:
    """Run a flow on this event loop, on the connections of an app."""
    return await _flow_runner_of(on).arun(flow)


def _flow_runner_of(on: Queue | Windlass) -> FlowRunner:
    return on._flows if isinstance(on, Windlass) else on._flow_runner


# -- queues and layouts ----------------------------------------------------------------------------------------


def layout_of(queue: Queue) -> Layout:
    """The layout object behind a queue."""
    return queue._layout


def use_layout(app: Windlass, layout: Layout) -> None:
    """Let the app use this layout object for its queue."""
    app._layouts[(layout.queue, layout.name)] = layout


def keep_at_most(queue: Queue, *, dead: int | None = None, broken: int | None = None) -> None:
    """Change how many dead and broken jobs a queue keeps."""
    layout: Any = layout_of(queue)
    if dead is not None:
        layout.max_dead = dead
    if broken is not None:
        layout.max_broken = broken


def handle_on(
    queue: Queue, id: str, status: Status | None = None, *, returns: Any = Any, keeps: bool | None = None
) -> JobHandle[Any]:
    """A handle on a job of a queue, made from the parts of the queue. It has not seen the job on the queue."""
    return JobHandle(layout_of(queue), _flow_runner_of(queue), id, status, returns=returns, keeps=keeps)


def handle_from(queue: Queue, receipt: Receipt, *, returns: Any = Any, keeps: bool | None = None) -> JobHandle[Any]:
    """The handle that a task's enqueue returns, for a job of raw bytes."""
    return JobHandle.from_receipt(layout_of(queue), _flow_runner_of(queue), receipt, returns, keeps)


def holders_of(queue: Queue) -> set[str]:
    """The holders that this program has used on a queue of another system's layout."""
    return cast(ForeignLayout, layout_of(queue))._holders


def shift_clock_reading(queue: Queue, *, age_s: float = 0.0, due_ms: int = 0) -> None:
    """Make the last reading of the queue's clock older, or let it claim a later time for run times."""
    view = cast(NativeLayout, layout_of(queue))._clock_view
    known = view._reading
    view._reading = known._replace(at=known.at - age_s, due=known.due + due_ms)


def batchers_of(queue: Queue) -> list[EnqueueBatcher]:
    """The batchers of a queue, one for each event loop."""
    return list(queue._batchers.values())


def batches_on_their_way(batcher: EnqueueBatcher) -> list[asyncio.Task[None]]:
    """The tasks of a batcher that send a batch now."""
    return list(batcher._sending)


# -- the app and its connections -------------------------------------------------------------------------------


def seal_of(app: Windlass) -> object:
    """The object that holds an app's signing and encryption keys."""
    return app._seal


def wrap_exchanges(app: Windlass, wrap: Callable[[Exchanger], Exchanger]) -> None:
    """Let `wrap` replace how the blocking methods of an app send a request and read its replies."""
    driver = app._flows.blocking
    driver._exchange = wrap(driver._exchange)  # type: ignore[assignment, method-assign]


def take_caller(session: Session, call: Call[Any]) -> Caller:
    """Take an idle caller of a session, as `perform` does before it sends a call."""
    return session._take_caller(call)


def give_back_caller(session: Session, caller: Caller) -> None:
    """Give a caller back to its session, as `perform` does after the reply."""
    session._idle.append(caller)


# -- workers ---------------------------------------------------------------------------------------------------


def admit(runner: Runner, lease: Lease) -> None:
    """Let a runner begin with a job, as if it had leased the job itself."""
    runner._admit(lease)


def app_of(consumer: QueueConsumer) -> Windlass:
    """The app of one queue's side of a runner."""
    return consumer._app


def executor_of(worker: Worker, kind: str) -> Executor:
    """One of the executors of a worker that runs."""
    runner = worker._runner
    assert runner is not None, "the worker does not run"
    return runner.executors[kind]


def startable(executor: Executor) -> int:
    """How many waiting jobs an executor could start now."""
    return executor._startable()


def on_each_start(executor: Executor, called: Callable[[], object]) -> None:
    """Have `called` called each time when the executor's starter asks for the next job to start."""
    starter = executor._starter
    start_next = starter._start_next

    def noted() -> Any:
        called()
        return start_next()

    starter._start_next = noted


def set_typical_duration(executor: Executor, seconds: float) -> None:
    """Make an executor believe that its jobs take so long."""
    executor._typical = seconds


def prefetched_plans(executor: ProcessExecutor) -> list[Plan]:
    """The jobs that lie ready for the children of an executor."""
    return executor._prefetched_plans()


def only_child_of(executor: ProcessExecutor) -> ChildConnection:
    """The child of an executor that has exactly one."""
    (child,) = executor._children.values()
    return child


def replace_prefetch(child: ChildConnection, prefetch: Prefetch) -> Prefetch:
    """Give the runner's side of a child another prefetch, and return the one before."""
    before = child._prefetch
    assert before is not None, "this child has no prefetch"
    child._prefetch = prefetch
    return before


def end_stream(child: ChildConnection) -> None:
    """Let the runner believe that a child has closed its socket, as when it dies."""
    child.stream._end()


def is_work_of_a_thread(function: object) -> bool:
    """Whether a function is the one that a thread of a thread executor runs."""
    return getattr(function, "__func__", None) is ThreadExecutor._work
