"""Every URL that the docs show can be read, and no error, repr or log shows a password."""

from __future__ import annotations

import logging
import re
import traceback
from pathlib import Path
from typing import cast

import pytest

from tests.support.faces import Face
from tests.support.server import HOST, Server
from tests.support.server_states import BOTH_FACES, PASSWORD
from windlass import Queue, Windlass, errors
from windlass.transport import Endpoint


@BOTH_FACES
def test_the_password_is_shown_nowhere(face: type[Face], guarded: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    for url in (
        f"redis://:{PASSWORD}@{HOST}:1/0",
        f"redis://nobody:{PASSWORD}@{HOST}:{guarded.port}/0",
        f"redis://:{PASSWORD}@{HOST}:{guarded.port}/99",
        f"unix://:{PASSWORD}@/nowhere.sock",
        f"rediss://:{PASSWORD}@{HOST}:{guarded.port}/0",
        f"redis+sentinel://:{PASSWORD}@{HOST}:1/main/0?sentinel_password={PASSWORD}",
    ):
        endpoint = Endpoint.parse(url)
        seen += [repr(endpoint), str(endpoint)]
        with Windlass(url, retry_for=0.05, call_timeout=0.3) as app:
            queue = cast(Queue, face(app.queue("states")))
            seen += [repr(app), str(app), repr(app.queue("states"))]
            with pytest.raises(errors.WindlassError) as refused:
                queue.enqueue(b"x")
            queue.close()  # type: ignore[attr-defined]
        seen += traceback.format_exception(refused.value)
    seen.append(caplog.text)
    assert [text for text in seen if PASSWORD in text] == []


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:{}/more@host:6379/0",
        "redis://user:{}#more@host:6379/0",
        "redis://user:{}?more@host:6379/0",
        "redis://:{}@host:port/0",
        "redis://:{}@host:6379/zero",
        "redis://host:6379/0?password={}",
        "redis://user:6379/{}@host:6379/0",
        "redis+sentinel://:{}@host:26379",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    """A password with a slash in it is the usual way to a broken URL, so the message must not quote what it saw."""
    with pytest.raises(errors.InvalidOption) as refused:
        Windlass(url.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))


def test_every_url_of_the_page_can_be_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    written = re.findall(r"`(\w[\w+]*://[^`]*)`", page)
    urls = [url for url in written if "…" not in url and url not in ("redis://", "rediss://")]
    assert {url.partition(":")[0] for url in urls} == {
        "redis", "rediss", "valkey", "valkeys", "unix", "redis+sentinel", "rediss+sentinel", "embedded",
    }  # fmt: skip
    for url in urls:
        Endpoint.parse(url)
