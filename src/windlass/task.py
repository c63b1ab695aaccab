"""`Task`: a named function whose calls become jobs. `Handler`: a function that gets every job of one queue as bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_type_hints,
    overload,
)

from msgspec import Raw, json

from windlass.errors import InvalidOption, InvalidTask
from windlass.handle import JobHandle
from windlass.queue import Queue
from windlass.storage.capabilities import need
from windlass.storage.port import Capability, Layout
from windlass.tasks.arguments import Arguments, Bound
from windlass.tasks.call import TaskCall
from windlass.tasks.codec import Codec
from windlass.tasks.context import Job
from windlass.tasks.declaration import Declaration, HandlerOptions, OnException, QueueOptions
from windlass.tasks.envelope import MAX_KEEP_S, around_arguments
from windlass.tasks.names import check_task_name, short_name
from windlass.tasks.signature import Signature, parameters_of, takes_current
from windlass.transport.subscription import FlowRunner
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Receipt
from windlass.values.options import COMMON_JOB_OPTIONS, CommonJobOptions, JobOptions, new_job
from windlass.values.validation import check_known

P = ParamSpec("P")
R = TypeVar("R")  # what the function returns: for an `async def` a coroutine
V = TypeVar("V")  # the job's result: for an `async def` the awaited value

DEFAULT_QUEUE = "default"
_WITH_OPTIONS = '.using(delay="5m", …).enqueue(…)'
_OTHER_NAMES = {  # the names of other job queues, for a helpful AttributeError
    "delay": f".enqueue(…), or {_WITH_OPTIONS} to run it later",
    "apply_async": _WITH_OPTIONS,
    "send": ".enqueue(…)",
    "send_with_options": _WITH_OPTIONS,
    "s": ".call(…)",
}


class TaskOptions(HandlerOptions, CommonJobOptions, total=False):
    """The options of `app.task`."""

    queue: str
    name: str
    keep_result: Duration


class CallOptions(JobOptions, total=False):
    """The options of `task.using`."""

    queue: str
    keep_result: Duration


class TaskApp(Protocol):
    """The part of the app that a task needs."""

    @property
    def _flows(self) -> FlowRunner: ...

    def queue(self, name: str) -> Queue: ...

    def layout(self, queue: str) -> Layout: ...

    def queue_defaults(self, name: str) -> QueueOptions: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def on_exception(self) -> OnException: ...

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]: ...


class Sender(Generic[P, V]):
    """A task with call options, from `task.using(…)`."""

    def __init__(self, task: Task[P, Any, V], given: CallOptions) -> None:
        check_known(given, CallOptions)
        self._task = task
        self._given = given
        self._app = task.app
        self._queue = self._app.layout(given["queue"]).queue if "queue" in given else task.queue
        if self._queue in self._app.handlers:
            raise InvalidOption(f"queue {self._queue!r} has a handler, so it takes no tasks: choose another queue")
        self._keep = check_keep(given["keep_result"]) if "keep_result" in given else task.keep_result
        if self._keep:
            need(self._app.layout(self._queue), Capability.RESULTS, f"{task.title} with keep_result")
        own = cast(JobOptions, {name: value for name, value in given.items() if name not in ("queue", "keep_result")})
        new_job(b"", own, 0, spare_id="-")  # checks the options now, where the caller passes them
        self._around = around_arguments(task.name, self._keep)
        self._options = cast(JobOptions, {**self._app.queue_defaults(self._queue), **task.job_options, **own})

    def __repr__(self) -> str:
        return f"<{self._task.title} using {self._given}>"

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, V]:
        """Add options for the next calls. They override earlier ones."""
        return Sender(self._task, {**self._given, **options})

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Enqueue a call with these options. When this returns, the server has the job. Errors as in `Task.enqueue`."""
        return self._handle(self._target.enqueue(self._data(args, kwargs), **self._options))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Awaitable `enqueue`."""
        return self._handle(await self._target.aenqueue(self._data(args, kwargs), **self._options))

    def _handle(self, receipt: Receipt) -> JobHandle[V]:
        return JobHandle.from_receipt(
            self._layout, self._app._flows, receipt, self._task.returns, self._keep > 0, self._app.codec
        )

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Build a call without sending it: for `app.enqueue_many`, `app.schedule` and `job.enqueue`."""
        data = self._data(args, kwargs)
        return TaskCall(self._task.name, self._queue, data, self._options, self._task.returns, self._keep > 0)

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        before, behind = self._around
        return before + self._task.arguments.write(args, kwargs) + behind

    @functools.cached_property
    def _target(self) -> Queue:
        return self._app.queue(self._queue)

    @functools.cached_property
    def _layout(self) -> Layout:
        return self._app.layout(self._queue)


class Task(Declaration[P, R], Generic[P, R, V]):
    """A function that you can call directly, or enqueue so that a worker calls it. Made by `@app.task`."""

    def __init__(self, app: TaskApp, function: Callable[P, R], name: str, options: TaskOptions) -> None:
        self.short_name = options.get("name") or short_name(function)
        self.arguments = Arguments(Signature(function), f"{self.short_name}()", app.codec)
        self.returns = _return_type(function)
        self.codec = app.codec
        self.read_result: Callable[[bytes], Any] = app.codec.decoder(self.returns).decode
        check_known(options, TaskOptions)
        self.app = app
        self.name = check_task_name(name)
        self.queue = app.layout(options.get("queue", DEFAULT_QUEUE)).queue
        layout = app.layout(self.queue)
        defaults = app.queue_defaults(self.queue)
        super().__init__(f"task {name!r}", function, options, layout, defaults, app.on_exception)
        self.job_options = {option: value for option, value in options.items() if option in COMMON_JOB_OPTIONS}
        layout.check(new_job(b"", cast(JobOptions, self.job_options), 0, spare_id="-"))
        self.keep_result = check_keep(options.get("keep_result", 0))
        if self.keep_result:
            need(layout, Capability.RESULTS, f"task {name!r} with keep_result")
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self.queue!r}>"

    if not TYPE_CHECKING:  # type checkers must still report unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OTHER_NAMES:
                raise AttributeError(f"{self!r} has no {name!r}: use {_OTHER_NAMES[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def decode(self, args: Raw) -> Bound:
        """Read and check the arguments of a job; `.call(job)` then runs the function. Raises `Undecodable`."""
        return self.arguments.read(args)

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, V]:
        """Set options for the next calls: `welcome.using(delay="5m", id="user-42").enqueue(42)`.

        Options: `queue`, `keep_result` (as in `app.task`), and all of `Queue.enqueue`: `id`, `delay` or `run_at`,
        `priority`, `max_failures`, `max_stalls`, `max_snoozes`, `min_backoff`, `max_backoff`, `tags`, `expires`,
        `if_exists`, `update_…`, `reset_counts`, `durability`. Raises `InvalidOption`, and `UnsupportedByLayout` if the
        queue's layout lacks an option.
        """
        return Sender(self, options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Enqueue a call. When this returns, the server has the job. The handle gives its result and events.

        Raises `InvalidArguments` if the arguments do not fit the signature, `PayloadTooLarge`, `NotDurable` if the job
        is on the queue but did not reach the durability asked for, `NotApplied` (such as `ServerUnreachable` or
        `QueueFull`) if it is not on the queue, and `OutcomeUnknown` if the reply was lost.
        """
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Awaitable `enqueue`."""
        return await self._plain.aenqueue(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Build a call without sending it: for `app.enqueue_many`, `app.schedule` and `job.enqueue`.

        Raises `InvalidArguments`.
        """
        return self._plain.call(*args, **kwargs)

    @functools.cached_property
    def _plain(self) -> Sender[P, V]:
        return Sender(self, {})


class TaskMaker(Protocol):
    """The decorator that `@app.task(…)` returns."""

    @overload
    def __call__(  # the coroutine overload comes first, so that V is the awaited value
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...

    @overload
    def __call__(self, function: Callable[P, V], /) -> Task[P, V, V]: ...


class Handler(Declaration[Concatenate[bytes, P], R]):
    """A function that gets every payload of one queue as raw bytes. Made by `@app.handler`."""

    def __init__(
        self, app: TaskApp, queue: str, function: Callable[Concatenate[bytes, P], R], options: HandlerOptions
    ) -> None:
        check_known(options, HandlerOptions)
        self.queue = app.layout(queue).queue
        defaults = app.queue_defaults(queue)
        title = f"the handler of queue {queue!r}"
        super().__init__(title, function, options, app.layout(queue), defaults, app.on_exception)
        self._job_names = _job_names(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Handler of queue {self.queue!r}>"

    def invoke(self, data: bytes, job: Job) -> R:
        """Call the function with a payload. Returns its value, or the coroutine of an `async def`."""
        function = cast(Callable[..., R], self.function)
        return function(data, **dict.fromkeys(self._job_names, job))


def _return_type(function: Callable[..., Any]) -> Any:
    """The type to decode a result to: `Any` without a return annotation, or for a type that JSON cannot carry."""
    try:
        kind = get_type_hints(function, include_extras=True).get("return", Any)
        json.Decoder(kind)
    except Exception:
        return Any
    return kind


def check_keep(length: Duration) -> float:
    """How long a result is kept, in seconds. 0 means that it is not kept."""
    return milliseconds(length, "keep_result", most=MAX_KEEP_S) / 1000


def _job_names(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = parameters_of(function)
    if not parameters or parameters[0].kind not in (
        parameters[0].POSITIONAL_ONLY,
        parameters[0].POSITIONAL_OR_KEYWORD,
    ):
        raise InvalidTask("the function must take the payload as its first parameter: def handle(data: bytes)")
    for parameter in parameters[1:]:
        if not takes_current(parameter) or parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidTask(
                f"parameter {parameter} cannot be filled: after the payload only job: Job = current() is allowed"
            )
    return tuple(parameter.name for parameter in parameters[1:])
