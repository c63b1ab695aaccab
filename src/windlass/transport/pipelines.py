"""Commands that a program sends itself, in a pipeline of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from windlass.errors import InvalidOption
from windlass.storage.port import Argument


class CommandPipeline(Protocol):
    """A pipeline of redis-py, blocking or asyncio."""

    def execute_command(self, *args: Any) -> Any:
        """Append a command."""
        ...


def append(pipeline: CommandPipeline, commands: Iterable[tuple[Argument, ...]]) -> None:
    """Append commands to a pipeline. Refuses a pipeline that would send them at once."""
    if not callable(getattr(pipeline, "execute", None)):  # a client has no such method
        raise InvalidOption(
            f"enqueue_in needs a pipeline of redis-py, not {type(pipeline).__name__}. Pass client.pipeline()"
        )
    if getattr(pipeline, "watching", False) and not getattr(pipeline, "explicit_transaction", False):
        raise InvalidOption(
            "enqueue_in: the pipeline still watches keys and sends each command at once. Call its multi()"
        )
    for command in commands:
        pipeline.execute_command(*command)
