"""The steps that only workers take, for queues whose raw face has no verb for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from windlass import Queue
from windlass.storage.port import Call, Layout
from windlass.values.outcome import Outcome

T = TypeVar("T")


def perform(queue: Queue, make: Callable[[Layout], Call[T]]) -> T:
    """What the server answers to a call of the queue's layout."""
    return queue._flow_runner.run(lambda session: session.perform(make(queue._layout)))


def settle(queue: Queue, *outcomes: Outcome) -> tuple[bool, ...]:
    """Settles leases in one turn; for each whether it was still ours."""
    return perform(queue, lambda layout: layout.turn(outcomes)).settled
