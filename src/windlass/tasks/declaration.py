"""What is said of a function when it becomes a task, a handler or a failure handler: where and how it runs.

Everything is checked when it is declared: an option that cannot be honoured is refused here, not ignored later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

from msgspec import Struct, structs

from windlass.errors import InvalidInput, InvalidOption, InvalidTask
from windlass.storage.capabilities import need
from windlass.storage.port import Capability, Layout
from windlass.tasks.signature import parameters_of
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Limits
from windlass.values.options import LIMITS, check_numbers
from windlass.values.validation import check_choice, check_known, check_name, check_priority

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Run = Literal["loop", "thread", "process"]
OnException = Literal["retry", "fail"]

_RUNS = ("loop", "thread", "process")
_CONTROLS = ("retry", "fail")
_FACTS = frozenset({"data", "job", "error"})

# A failure handler is the last to hear of a job: it is tried for days if need be.
FAILURE_LIMITS = Limits(max_failures=100, min_backoff=2.0, max_backoff=3600.0)


class QueueOptions(TypedDict, total=False):
    """The defaults of a queue, for the tasks that are sent to it."""

    priority: int
    max_failures: int
    max_stalls: int
    min_backoff: Duration
    max_backoff: Duration


class FailureOptions(TypedDict, total=False):
    """What can be said of a failure handler."""

    run: Run
    timeout: Duration | None
    max_failures: int
    max_stalls: int
    min_backoff: Duration
    max_backoff: Duration


class HandlerOptions(FailureOptions, total=False):
    """What can be said of a handler."""

    on_exception: OnException


class FailureHandler(Struct, frozen=True):
    """The function that is told of a job that failed for good, and what it wants to know of it."""

    function: Callable[..., Any]
    run: Run
    timeout: float | None
    limits: Limits
    wants: frozenset[str]

    def call(self, **facts: Any) -> Any:
        """Run it with those of the facts (`data`, `job`, `error`) that it wants."""
        return self.function(**{name: facts[name] for name in self.wants})


class Declaration(Generic[P, R]):
    """A function, and how a worker runs it."""

    def __init__(
        self,
        title: str,
        function: Callable[P, R],
        options: HandlerOptions,
        layout: Layout,
        defaults: QueueOptions,
        on_exception: OnException,
    ) -> None:
        self.title = title
        self._layout = layout
        if any(name in options for name in LIMITS):
            need(layout, Capability.LIMITS, f"{title} with limits")
        self.function = function
        self.run: Run = choose_run(function, options.get("run"))
        self.timeout = check_timeout(options.get("timeout"), self.run)
        self.limits = read_limits({**defaults, **options})
        self.on_exception = check_on_exception(options.get("on_exception", on_exception))
        self.failure_handler: FailureHandler | None = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now."""
        return self.function(*args, **kwargs)

    @property
    def place(self) -> str:
        """Where it was written."""
        return place_of(self.function)

    @overload
    def on_failure(self, function: F, /) -> F: ...

    @overload
    def on_failure(self, /, **options: Unpack[FailureOptions]) -> Callable[[F], F]: ...

    def on_failure(self, function: F | None = None, /, **options: Unpack[FailureOptions]) -> F | Callable[[F], F]:
        """Declare what is run when a job failed for good: a function of any of `data`, `job` and `error`.

        Options: `run`, `timeout`, `max_failures` (100), `max_stalls`, `min_backoff`, `max_backoff` (1 hour).
        """
        if function is not None:
            return self._catch(function, options)
        return lambda function: self._catch(function, options)

    def _catch(self, function: F, options: FailureOptions) -> F:
        with declaring(f"the failure handler of {self.title}"):
            if self.failure_handler is not None:
                raise InvalidTask(f"there is one already, {place_of(self.failure_handler.function)}: keep one of them")
            need(self._layout, Capability.FAILURE_HANDLERS, "catch failures")
            check_known(options, FailureOptions)
            wants = _wanted_facts(function)
            run = choose_run(function, options.get("run"))
            timeout = check_timeout(options.get("timeout"), run)
            limits = read_limits(options, FAILURE_LIMITS)
            self.failure_handler = FailureHandler(function, run, timeout, limits, wants)
        return function


@contextmanager
def declaring(title: str) -> Iterator[None]:
    """Whatever is wrong with a declaration is an `InvalidTask` that names it."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidTask(f"{title}: {error}") from None


def place_of(function: Callable[..., Any]) -> str:
    """Where a function was written, for people."""
    function = inspect.unwrap(function)
    name = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', repr(function))}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def choose_run(function: Callable[..., Any], run: object) -> Run:
    """Where a function runs: an `async def` on the loop, a `def` in a thread, either in a process if told so."""
    is_async = inspect.iscoroutinefunction(function)
    chosen = check_choice(("loop" if is_async else "thread") if run is None else run, "run", _RUNS)
    if chosen == "loop" and not is_async:
        raise InvalidOption(
            'run="loop" would block the event loop, for this is a plain def: '
            'write async def, or use run="thread" or run="process"'
        )
    if chosen == "thread" and is_async:
        raise InvalidOption('run="thread" is for a plain def: leave run away for async def, or use run="process"')
    return cast(Run, chosen)


def check_timeout(timeout: Duration | None, run: Run) -> float | None:
    """A time limit in seconds, where it can be kept."""
    if timeout is None:
        return None
    if run == "thread":
        raise InvalidOption(
            'timeout cannot be kept with run="thread", for a thread cannot be killed: use run="process", or async def'
        )
    return milliseconds(timeout, "timeout", least=0.001) / 1000


def read_limits(options: Mapping[str, Any], plain: Limits | None = None) -> Limits:
    """The limits that these options ask for."""
    numbers = check_numbers({name: options[name] for name in LIMITS if name in options})
    changes = {name: value / 1000 if name.endswith("backoff") else value for name, value in numbers.items()}
    limits = structs.replace(plain or Limits(), **changes)
    if "min_backoff" in options and limits.min_backoff > limits.max_backoff:
        raise InvalidOption(
            f"min_backoff ({limits.min_backoff:g} s) is longer than max_backoff ({limits.max_backoff:g} s): raise both"
        )
    return limits


def check_on_exception(given: object) -> OnException:
    """What an exception other than Retry and Failure means."""
    return cast(OnException, check_choice(given, "on_exception", _CONTROLS))


def check_queue_options(given: Mapping[str, QueueOptions]) -> dict[str, QueueOptions]:
    """The defaults of queues by their names, checked."""
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        raise InvalidOption('queue_options must be options by queue, like {"emails": {"max_failures": 3}}')
    checked: dict[str, QueueOptions] = {}
    for name, options in given.items():
        check_name(name)
        try:
            check_known(options, QueueOptions)
            read_limits(options)
            check_priority(options.get("priority", 5))
        except InvalidOption as error:
            raise InvalidOption(f"queue_options of {name!r}: {error}") from None
        checked[name] = options.copy()
    return checked


def _wanted_facts(function: Callable[..., Any]) -> frozenset[str]:
    parameters = parameters_of(function)
    for parameter in parameters:
        if parameter.name not in _FACTS or parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            raise InvalidTask(f"parameter {parameter} has no meaning: it may take data, job and error, by these names")
    return frozenset(parameter.name for parameter in parameters)
