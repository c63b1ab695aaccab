"""The declaration of a task, handler or failure handler: the function, where it runs, and its limits.

All options are checked at declaration. An option that cannot work is refused here, not ignored later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec import Struct, structs

from windlass.errors import InvalidInput, InvalidOption, InvalidTask
from windlass.storage.capabilities import need
from windlass.storage.port import Capability, Layout
from windlass.tasks.signature import parameters_of
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Limits
from windlass.values.options import (
    LIMITS,
    CommonJobOptions,
    JobOptions,
    LimitOptions,
    check_max_snoozes,
    check_numbers,
    new_job,
)
from windlass.values.validation import check_choice, check_known, check_name

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Run = Literal["loop", "thread", "process"]
OnException = Literal["retry", "fail"]

_RUNS = ("loop", "thread", "process")
_CONTROLS = ("retry", "fail")
_FACTS = frozenset({"data", "job", "error"})

# After a failure handler nothing else reports the lost job: so it is retried for days.
FAILURE_LIMITS = Limits(max_failures=100, min_backoff=2.0, max_backoff=3600.0)


class QueueOptions(CommonJobOptions, total=False):
    """The defaults for the tasks of one queue."""


class FailureOptions(LimitOptions, total=False):
    """The options of a failure handler."""

    run: Run
    timeout: Duration | None


class HandlerOptions(FailureOptions, total=False):
    """The options of a handler."""

    on_exception: OnException


class FailureHandler(Struct, frozen=True):
    """The function that runs when a job failed for good, and the facts (`data`, `job`, `error`) that it takes."""

    function: Callable[..., Any]
    run: Run
    timeout: float | None
    limits: Limits
    wants: frozenset[str]

    def call(self, **facts: Any) -> Any:
        """Call the function with the facts that it takes."""
        return self.function(**{name: facts[name] for name in self.wants})


class Declaration(Generic[P, R]):
    """A function and how a worker runs it."""

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
        if "max_snoozes" in options:
            need(layout, Capability.MAX_SNOOZES, f"{title} with max_snoozes")
        self.function = function
        self.run: Run = choose_run(function, options.get("run"))
        self.timeout = check_timeout(options.get("timeout"), self.run)
        self.limits = read_limits({**defaults, **options})
        self.given_limits = given_limits({**defaults, **options})
        self.on_exception = check_on_exception(options.get("on_exception", on_exception))
        self.failure_handler: FailureHandler | None = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly, without the queue."""
        return self.function(*args, **kwargs)

    @property
    def kinds(self) -> list[Run]:
        """Where its function and its failure handler run."""
        return [each.run for each in (self, self.failure_handler) if each is not None]

    @property
    def place(self) -> str:
        """Where the function is defined, for error messages."""
        return place_of(self.function)

    @overload
    def on_failure(self, function: F, /) -> F: ...

    @overload
    def on_failure(self, /, **options: Unpack[FailureOptions]) -> Callable[[F], F]: ...

    def on_failure(self, function: F | None = None, /, **options: Unpack[FailureOptions]) -> F | Callable[[F], F]:
        """Declare the function that runs when a job failed for good: `@welcome.on_failure`.

        It takes any of `data` (payload), `job` and `error`. It runs as a job of its own, with retries. Options: `run`,
        `timeout`, `max_failures` (100), `max_stalls`, `max_snoozes`, `min_backoff`, `max_backoff` (1 h). Raises
        `InvalidTask`.
        """
        if function is not None:
            return self._add_failure_handler(function, options)
        return lambda function: self._add_failure_handler(function, options)

    def _add_failure_handler(self, function: F, options: FailureOptions) -> F:
        with declaring(f"the failure handler of {self.title}"):
            if self.failure_handler is not None:
                other = place_of(self.failure_handler.function)
                raise InvalidTask(f"it is declared twice, also as {other}: keep one of them")
            need(self._layout, Capability.FAILURE_HANDLERS, "handle failures")
            check_known(options, FailureOptions)
            if "max_snoozes" in options:
                need(self._layout, Capability.MAX_SNOOZES, "max_snoozes")
            wants = _wanted_facts(function)
            run = choose_run(function, options.get("run"))
            timeout = check_timeout(options.get("timeout"), run)
            limits = read_limits(options, FAILURE_LIMITS)
            self.failure_handler = FailureHandler(function, run, timeout, limits, wants)
        return function


@contextmanager
def declaring(title: str) -> Iterator[None]:
    """Turn every `InvalidInput` of a declaration into an `InvalidTask` that names it."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidTask(f"{title}: {error}") from None


def place_of(function: Callable[..., Any]) -> str:
    """Where a function is defined, for error messages."""
    function = inspect.unwrap(function)
    name = f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', repr(function))}"
    code = getattr(function, "__code__", None)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def choose_run(function: Callable[..., Any], run: object) -> Run:
    """Where a function runs: an `async def` on the loop, a `def` in a thread; either one in a process on request."""
    is_async = inspect.iscoroutinefunction(function)
    chosen = check_choice(("loop" if is_async else "thread") if run is None else run, "run", _RUNS)
    if chosen == "loop" and not is_async:
        raise InvalidOption(
            'run="loop" would block the event loop, because this is a plain def: '
            'write async def, or use run="thread" or run="process"'
        )
    if chosen == "thread" and is_async:
        raise InvalidOption('run="thread" is for a plain def: omit run for async def, or use run="process"')
    return cast(Run, chosen)


def check_timeout(timeout: Duration | None, run: Run) -> float | None:
    """The time limit in seconds. Refused for threads, which cannot be stopped."""
    if timeout is None:
        return None
    if run == "thread":
        raise InvalidOption(
            'timeout cannot work with run="thread", because a thread cannot be killed: use run="process", or async def'
        )
    return milliseconds(timeout, "timeout", least=0.001) / 1000


def read_limits(options: Mapping[str, Any], plain: Limits | None = None) -> Limits:
    """The limits from these options."""
    limits = structs.replace(plain or Limits(), **given_limits(options))
    if "min_backoff" in options and limits.min_backoff > limits.max_backoff:
        raise InvalidOption(
            f"min_backoff ({limits.min_backoff:g} s) is longer than max_backoff ({limits.max_backoff:g} s): raise both"
        )
    return limits


def given_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Limits` that these options give."""
    numbers = check_numbers({name: options[name] for name in LIMITS if name in options})
    limits = {name: value / 1000 if name.endswith("backoff") else value for name, value in numbers.items()}
    if "max_snoozes" in options:
        limits["max_snoozes"] = check_max_snoozes(options["max_snoozes"])
    return limits


def check_on_exception(given: object) -> OnException:
    """What happens when a job raises an exception other than Retry, Snooze and Failure."""
    return cast(OnException, check_choice(given, "on_exception", _CONTROLS))


def check_queue_options(given: Mapping[str, QueueOptions]) -> dict[str, QueueOptions]:
    """Check the `queue_options` of an app."""
    if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
        raise InvalidOption('queue_options must map queue names to options, like {"emails": {"max_failures": 3}}')
    checked: dict[str, QueueOptions] = {}
    for name, options in given.items():
        check_name(name)
        try:
            check_known(options, QueueOptions)
            read_limits(options)
            new_job(b"", cast(JobOptions, options), 0, spare_id="-")  # checks the other options
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
            raise InvalidTask(f"parameter {parameter} cannot be filled: only data, job and error are allowed")
    return frozenset(parameter.name for parameter in parameters)
