"""Tasks: functions with a name, whose calls can be put on a queue. And handlers, which get a queue's payloads raw."""

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
from windlass.queue import FlowRunner, Queue
from windlass.storage.capabilities import need
from windlass.storage.port import Capability, Layout
from windlass.tasks.arguments import Arguments, Bound
from windlass.tasks.call import TaskCall
from windlass.tasks.context import Job
from windlass.tasks.declaration import Declaration, HandlerOptions, OnException, QueueOptions
from windlass.tasks.envelope import LONGEST_KEEP, around_arguments
from windlass.tasks.signature import Signature, parameters_of, takes_current
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Receipt
from windlass.values.options import JobOptions, new_job
from windlass.values.validation import check_known, check_priority

P = ParamSpec("P")
R = TypeVar("R")  # what calling the function gives: for an `async def` a coroutine
V = TypeVar("V")  # what comes out in the end, and is the result of the job

DEFAULT_QUEUE = "default"
MAX_TASK_NAME = 128
_WITH_OPTIONS = '.using(delay="5m", …).enqueue(…)'
_ELSEWHERE = {  # what other queues call it
    "delay": f".enqueue(…), or {_WITH_OPTIONS} to run it later",
    "apply_async": _WITH_OPTIONS,
    "send": ".enqueue(…)",
    "send_with_options": _WITH_OPTIONS,
    "s": ".call(…)",
}
_SENT = ("priority", "max_failures", "max_stalls", "min_backoff", "max_backoff")  # what a job takes from its task


class TaskOptions(HandlerOptions, total=False):
    """What can be said of a task."""

    queue: str
    name: str
    priority: int
    keep_result: Duration


class CallOptions(JobOptions, total=False):
    """What can be said of one call of a task."""

    queue: str
    keep_result: Duration


class TaskApp(FlowRunner, Protocol):
    """What a task needs of its app."""

    def queue(self, name: str) -> Queue: ...

    def layout(self, queue: str) -> Layout: ...

    def queue_defaults(self, name: str) -> QueueOptions: ...

    @property
    def on_exception(self) -> OnException: ...

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]: ...


class Sender(Generic[P, V]):
    """A task, and the options with which its calls are sent."""

    def __init__(self, task: Task[P, Any, V], given: CallOptions) -> None:
        check_known(given, CallOptions)
        self._task = task
        self._given = given
        self._home = task.home
        self._queue = self._home.layout(given["queue"]).queue if "queue" in given else task.queue
        if self._queue in self._home.handlers:
            raise InvalidOption(f"queue {self._queue!r} has a handler, and takes no tasks: choose another queue")
        self._keep = check_keep(given["keep_result"]) if "keep_result" in given else task.keep_result
        if self._keep:
            need(self._home.layout(self._queue), Capability.RESULTS, f"{task.title} with keep_result")
        own = cast(JobOptions, {name: value for name, value in given.items() if name not in ("queue", "keep_result")})
        new_job(b"", own, 0, spare_id="-")  # refuses what cannot be enqueued, while it is known who asked for it
        self._around = around_arguments(task.name, self._keep)
        self._options = cast(JobOptions, {**self._home.queue_defaults(self._queue), **task.sent, **own})

    def __repr__(self) -> str:
        return f"<{self._task.title} using {self._given}>"

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, V]:
        """The same with more options; those given last count."""
        return Sender(self._task, {**self._given, **options})

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Put a call on the queue. When it returns, the server has it; what it returns leads to the job."""
        return self._handle(self._target.enqueue(self._data(args, kwargs), **self._options))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Awaitable `enqueue`."""
        return self._handle(await self._target.aenqueue(self._data(args, kwargs), **self._options))

    def _handle(self, receipt: Receipt) -> JobHandle[V]:
        returns, keeps = self._task.returns, self._keep > 0
        return JobHandle(
            self._layout, self._home, receipt.id, receipt.status, receipt.durability, returns=returns, keeps=keeps
        )

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call to be sent later, by `app.enqueue_many`."""
        return TaskCall(self._task.name, self._queue, self._data(args, kwargs), self._options)

    def _data(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        before, behind = self._around
        return before + self._task.arguments.write(args, kwargs) + behind

    @functools.cached_property
    def _target(self) -> Queue:
        return self._home.queue(self._queue)

    @functools.cached_property
    def _layout(self) -> Layout:
        return self._home.layout(self._queue)


class Task(Declaration[P, R], Generic[P, R, V]):
    """A function that can be called here, or put on a queue to be called by a worker."""

    def __init__(self, home: TaskApp, function: Callable[P, R], name: str, options: TaskOptions) -> None:
        self.arguments = Arguments(Signature(function), f"{name}()")
        self.returns = _return_type(function)
        self.read_result: Callable[[bytes], Any] = json.Decoder(self.returns).decode
        check_known(options, TaskOptions)
        self.home = home
        self.name = check_task_name(name)
        self.queue = home.layout(options.get("queue", DEFAULT_QUEUE)).queue
        layout = home.layout(self.queue)
        defaults = home.queue_defaults(self.queue)
        super().__init__(f"task {name!r}", function, options, layout, defaults, home.on_exception)
        if "priority" in options:
            check_priority(options["priority"])
            need(layout, Capability.PRIORITY, f"task {name!r} with a priority")
        self.keep_result = check_keep(options.get("keep_result", 0))
        if self.keep_result:
            need(layout, Capability.RESULTS, f"task {name!r} with keep_result")
        self.sent = {option: value for option, value in options.items() if option in _SENT}
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name!r} on queue {self.queue!r}>"

    if not TYPE_CHECKING:  # for type checkers, what is not there is not there

        def __getattr__(self, name: str) -> NoReturn:
            if name in _ELSEWHERE:
                raise AttributeError(f"{self!r} has no {name!r}: use {_ELSEWHERE[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def decode(self, args: Raw) -> Bound:
        """The arguments of a job, read and checked: `.call(job)` runs the function. Raises `Undecodable`."""
        return self.arguments.read(args)

    def using(self, **options: Unpack[CallOptions]) -> Sender[P, V]:
        """The task with options for its next calls: `id`, `delay`, `priority`, `queue`, `keep_result` and so on."""
        return Sender(self, options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Put a call on the task's queue. When it returns, the server has it; what it returns leads to the job."""
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[V]:
        """Awaitable `enqueue`."""
        return await self._plain.aenqueue(*args, **kwargs)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """A call to be sent later, by `app.enqueue_many`."""
        return self._plain.call(*args, **kwargs)

    @functools.cached_property
    def _plain(self) -> Sender[P, V]:
        return Sender(self, {})


class TaskMaker(Protocol):
    """What `@app.task(…)` gives: it makes a task of a function."""

    @overload
    def __call__(  # what is awaited comes first: only then is its value meant
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...

    @overload
    def __call__(self, function: Callable[P, V], /) -> Task[P, V, V]: ...


class Handler(Declaration[Concatenate[bytes, P], R]):
    """A function that gets every payload of one queue, as it is."""

    def __init__(
        self, home: TaskApp, queue: str, function: Callable[Concatenate[bytes, P], R], options: HandlerOptions
    ) -> None:
        check_known(options, HandlerOptions)
        self.queue = home.layout(queue).queue
        defaults = home.queue_defaults(queue)
        title = f"the handler of queue {queue!r}"
        super().__init__(title, function, options, home.layout(queue), defaults, home.on_exception)
        self._job_names = _job_names(function)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Handler of queue {self.queue!r}>"

    def invoke(self, data: bytes, job: Job) -> R:
        """Run the function on a payload: gives the return value, or the coroutine of an `async def`."""
        function = cast(Callable[..., R], self.function)
        return function(data, **dict.fromkeys(self._job_names, job))


def _return_type(function: Callable[..., Any]) -> Any:
    """As what a result is read; anything goes where the function does not say, or says what JSON cannot carry."""
    try:
        kind = get_type_hints(function, include_extras=True).get("return", Any)
        json.Decoder(kind)
    except Exception:
        return Any
    return kind


def check_task_name(name: object) -> str:
    """A task's name: text that people can read and type."""
    if not isinstance(name, str) or not name.isprintable() or " " in name or not 1 <= len(name) <= MAX_TASK_NAME:
        raise InvalidTask(f"{name!r} is no task name: use 1 to {MAX_TASK_NAME} printable characters without spaces")
    if name == "<lambda>":
        raise InvalidTask("every lambda is called like this: give it a name with name=…, or write a def")
    return name


def check_keep(length: Duration) -> float:
    """How long a result is kept, in seconds; 0 for not at all."""
    return milliseconds(length, "keep_result", most=LONGEST_KEEP) / 1000


def _job_names(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = parameters_of(function)
    if not parameters or parameters[0].kind not in (
        parameters[0].POSITIONAL_ONLY,
        parameters[0].POSITIONAL_OR_KEYWORD,
    ):
        raise InvalidTask("it must take the payload as its first parameter: def handle(data: bytes)")
    for parameter in parameters[1:]:
        if not takes_current(parameter) or parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidTask(
                f"parameter {parameter} has no meaning: beside the payload it may take job: Job = current()"
            )
    return tuple(parameter.name for parameter in parameters[1:])
