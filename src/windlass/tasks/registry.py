"""The tasks of an app by name, and its handlers by queue. Refuses duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from windlass.errors import InvalidTask


class _HandlerLike(Protocol):
    """The part of a handler that the registry needs."""

    @property
    def queue(self) -> str: ...

    @property
    def place(self) -> str: ...


class _TaskLike(_HandlerLike, Protocol):
    """The part of a task that the registry needs."""

    @property
    def name(self) -> str: ...

    @property
    def short_name(self) -> str: ...


T = TypeVar("T", bound=_TaskLike)
H = TypeVar("H", bound=_HandlerLike)


class Registry(Generic[T, H]):
    """The tasks and handlers of one app."""

    def __init__(self) -> None:
        self._tasks: dict[str, T] = {}
        self._handlers: dict[str, H] = {}
        self._short: dict[str, T | None] = {}  # None if several tasks share the short name
        self.tasks: Mapping[str, T] = MappingProxyType(self._tasks)
        self.handlers: Mapping[str, H] = MappingProxyType(self._handlers)

    def add_task(self, task: T) -> None:
        """Add a task. Raises `InvalidTask` if its name is taken or its queue has a handler."""
        if task.name in self._tasks:
            raise InvalidTask(
                f"{task.place} and {self._tasks[task.name].place} have the same name: give one of them name=…"
            )
        if task.queue in self._handlers:
            raise InvalidTask(
                f"queue {task.queue!r} has a handler, {self._handlers[task.queue].place}. A queue takes tasks or one "
                "handler: choose another queue"
            )
        self._tasks[task.name] = task
        self._short[task.short_name] = None if task.short_name in self._short else task

    def find_task(self, name: str) -> T | None:
        """The task with this name, or the only one with this short name."""
        return self._tasks.get(name) or self._short.get(name)

    def task_names(self) -> list[str]:
        """All names and the short names that only one task has."""
        short = [name for name, task in list(self._short.items()) if task is not None]
        return list(dict.fromkeys([*self._tasks, *short]))

    def add_handler(self, handler: H) -> None:
        """Add a handler. Raises `InvalidTask` if its queue has tasks or a handler."""
        if handler.queue in self._handlers:
            raise InvalidTask(f"it is declared twice, also as {self._handlers[handler.queue].place}: keep one of them")
        for task in self._tasks.values():
            if task.queue == handler.queue:
                raise InvalidTask(
                    f"task {task.name!r}, {task.place}, uses this queue. A queue takes tasks or one handler: "
                    "choose another queue"
                )
        self._handlers[handler.queue] = handler
