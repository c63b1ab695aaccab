"""URLs that cannot be used are refused with an example of one that can, and no message ever holds a password."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.server import Server
from windlass import Windlass
from windlass.errors import InvalidOption, ServerUnreachable, WindlassError

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://localhost", "'http'"),
        ("amqp://localhost", "'amqp'"),
        ("REDIS://localhost", "'REDIS'"),
        ("localhost:6379", "as a URL"),
        ("/tmp/redis.sock", "as a URL"),
        ("redis:localhost", "as a URL"),
        ("redis://", "no host"),
        ("redis://:6379", "no host"),
        ("redis://host:port", "cannot be parsed"),
        ("redis://host:99999", "cannot be parsed"),
        ("redis://[::1", "cannot be parsed"),
        ("redis://host/one", "its database is not a number"),
        ("redis://host/-1", "its database is not a number"),
        ("redis://host?db=x", "its database is not a number"),
        ("redis://host?colour=red", "an unknown option"),
        ("redis://host?ssl_certfile=x", "rediss://"),
        ("unix://", "no socket path"),
        ("redis+sentinel://host:26379", "no Sentinel service name"),
        ("redis+sentinel:///name", "no host"),
        (5, "as a URL"),
        (b"redis://host", "as a URL"),
    ],
)
def test_a_url_that_is_none(url: Any, word: str) -> None:
    with pytest.raises(WindlassError) as caught:
        Windlass(url)
    assert type(caught.value) is InvalidOption
    assert word in str(caught.value)
    assert "redis://host:6379/0" in str(caught.value), "an example of what can be used"


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{SECRET}@host",
        f"redis://:{SECRET}@host:port",
        f"redis://user:{SECRET}@host/x",
        f"redis://user:{SECRET}@host?colour=red",
        f"redis://user:{SECRET}",  # the host forgotten
        f"redis://user:{SECRET}/x@host",  # an unquoted slash
        f"redis://user:{SECRET}?x@host",
        f"redis://user:{SECRET}#x@host",
        f"redis://:{SECRET}\u2100@host",  # a character that changes the host when it is normalised
        f"redis://:{SECRET}@[::1",
        f"redis+sentinel://host?sentinel_password={SECRET}",
        f":{SECRET}@host",
    ],
)
def test_a_password_is_never_in_a_message(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Windlass(url)
    error: BaseException | None = caught.value
    while error is not None:  # what a traceback shows
        assert SECRET not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_password_is_never_in_a_repr_nor_in_an_error_of_the_connection() -> None:
    urls = [
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"rediss://user:{SECRET}@127.0.0.1:1/0",
        f"redis+sentinel://user:{SECRET}@127.0.0.1:1/name/0?sentinel_password={SECRET}",
        f"unix://user:{SECRET}@/nowhere/at/all.sock",
    ]
    for url in urls:
        with Windlass(url, retry_for=0) as app:
            queue = app.queue("q")
            assert SECRET not in repr(app) + repr(queue) + repr(vars(app)) + repr(vars(queue))
            with pytest.raises(ServerUnreachable) as caught:
                queue.enqueue(b"")
            assert SECRET not in str(caught.value) + repr(caught.value.__cause__)
            assert "nothing was sent" in str(caught.value)


def test_a_home_is_for_the_embedded_server(server: Server) -> None:
    with pytest.raises(InvalidOption, match="home is the data folder of the embedded server"):
        Windlass(server.url, home="/tmp")


def test_a_closed_app_says_so(server: Server) -> None:
    app = Windlass(server.url)
    app.close()
    app.close()
    with pytest.raises(InvalidOption, match="this app is closed"):
        app.queue("q").counts()
