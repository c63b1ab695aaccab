"""An app without a server, two queues of one with a server, and a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from windlass import Job, Queue, Task, Windlass, current


@pytest.fixture
def here() -> Windlass:
    """An app that never speaks to a server."""
    return Windlass("redis://localhost:1", retry_for=0)


@pytest.fixture
def emails(app: Windlass) -> Iterator[Queue]:
    queue = app.queue("emails")
    yield queue
    queue.purge()


@pytest.fixture
def texts(app: Windlass) -> Iterator[Queue]:
    queue = app.queue("texts")
    yield queue
    queue.purge()


@pytest.fixture
def welcome(here: Windlass) -> Task[..., Any, Any]:
    @here.task
    async def welcome(user_id: int, locale: str = "en", *, tries: int = 1, job: Job = current()) -> None: ...

    return welcome
