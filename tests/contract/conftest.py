"""More of the same face, for the tests that need a second queue or a second app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from tests.support.faces import Face
from windlass import Queue

SameFace = Callable[[Queue], Queue]


@pytest.fixture
def same_face(queue: Queue) -> Iterator[SameFace]:
    """Shows any queue through the face (blocking or awaitable) that the test runs for."""
    made: list[Face] = []

    def show(other: Queue) -> Queue:
        made.append(cast(type[Face], type(queue))(other))
        return cast(Queue, made[-1])

    yield show
    for face in made:
        face.close()
