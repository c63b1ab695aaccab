"""The flows of an app raise public errors only, however a connection fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.internals import arun_flow, run_flow
from tests.support.server import HOST, Server
from tests.support.waiting import FOREVER_S
from windlass import Windlass, errors
from windlass.transport import Flow, Session

Run = Callable[[Windlass, Callable[[Session], Flow[Any]]], Any]
KEYS = ("windlass:{none}",)
NOTHING_LISTENS = f"redis://{HOST}:1"


def run_blocking(app: Windlass, flow: Callable[[Session], Flow[Any]]) -> Any:
    return run_flow(app, flow)


def run_awaited(app: Windlass, flow: Callable[[Session], Flow[Any]]) -> Any:
    return asyncio.run(arun_flow(app, flow))


BOTH_WAYS = pytest.mark.parametrize("run", [run_blocking, run_awaited])


def subscribe_and_wait(server: Server) -> Callable[[Session], Flow[object]]:
    def flow(session: Session) -> Flow[object]:
        listener = yield from session.subscribe(KEYS, ["news"])
        try:
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            return (yield from session.next_message(listener, FOREVER_S))
        finally:
            listener.wire.abort()

    return flow


@BOTH_WAYS
def test_no_connection(run: Run) -> None:
    with Windlass(NOTHING_LISTENS, retry_for=0) as app:
        with pytest.raises(errors.ServerUnreachable, match=f"no connection to {HOST}:1 .* nothing was sent"):
            run(app, lambda session: session.is_cluster())
        with pytest.raises(errors.ServerUnreachable, match="nothing was sent"):
            run(app, lambda session: session.subscribe(KEYS, ["news"]))


async def test_whether_it_is_a_cluster_cannot_be_told_without_a_connection() -> None:
    async with Windlass(NOTHING_LISTENS, retry_for=0) as app:
        with pytest.raises(errors.ServerUnreachable):
            await app.is_cluster()


@BOTH_WAYS
def test_a_connection_that_is_lost_while_a_program_listens(own: Server, run: Run) -> None:
    with Windlass(own.url) as app, pytest.raises(errors.OutcomeUnknown, match=r"the connection to .* was lost"):
        run(app, subscribe_and_wait(own))
