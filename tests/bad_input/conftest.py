"""The check that something is refused and leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from tests.support.bad_input import Refused, dump
from windlass.errors import WindlassError


@pytest.fixture
def refused(client: redis.Redis) -> Refused:
    """The block raises exactly this error, its message has these words, and not one byte changes on the server."""

    @contextmanager
    def check(error: type[WindlassError], *words: str) -> Iterator[None]:
        before = dump(client)
        with pytest.raises(WindlassError) as caught:
            yield
        assert type(caught.value) is error
        for word in words:
            assert word in str(caught.value)
        assert dump(client) == before

    return check
