"""The end of a program: what it has under way is not done twice, and it takes nothing that is not its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.support.proxy import HANG_REPLY, FaultProxy, nth
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import Queue, RawJob, Windlass
from windlass.embedded import EmbeddedServer
from windlass.errors import InvalidOption, OutcomeUnknown

MEBIBYTE = 1024 * 1024


def test_a_call_under_way_is_not_repeated_after_close(server: Server, client: Any) -> None:
    """Its caller may be forgotten by then, and the server could not tell a repeat from a new call."""
    with FaultProxy(server.address) as proxy, Windlass(server.url) as witness:
        app = Windlass(proxy.url, retry_for=5)
        queue = app.queue("closing")
        queue.counts()
        proxy.faults = nth(HANG_REPLY, only={"EVALSHA"})
        outcome: list[Exception] = []

        def enqueue() -> None:
            try:
                queue.enqueue(b"once")
            except OutcomeUnknown as error:
                outcome.append(error)

        thread = threading.Thread(target=enqueue)
        thread.start()
        wait_until(lambda: witness.queue("closing").counts().ready == 1, "the server to have it")
        proxy.faults = None
        app.close()
        thread.join(10)
        assert len(outcome) == 1
        assert witness.queue("closing").counts().ready == 1
        witness.queue("closing").purge()


def test_a_forked_child_takes_back_nothing_of_its_parent(app: Windlass, raw_queue: Queue) -> None:
    assert not raw_queue.beat("w", 60, register=True)
    child = os.fork()
    if child == 0:
        try:
            raw_queue.enqueue(b"from the child")
            app.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert raw_queue.beat("w", 60)


async def test_a_lease_that_nobody_waited_for_is_given_back(server: Server, client: Any) -> None:
    """Its holder beats on, so it would never be taken back as lost."""
    with FaultProxy(server.address) as proxy:
        async with Windlass(proxy.url) as app:
            queue = app.queue("abandoned")
            await queue.aenqueue(b"x", id="job")
            proxy.faults = nth(HANG_REPLY, only={"EVALSHA"})
            lease = asyncio.create_task(queue.alease(60, holder="w"))
            with Windlass(server.url) as witness:
                while not (await witness.queue("abandoned").acounts()).running:
                    pass
                lease.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await lease
                assert await queue.abeat("w", 60)
                again = await queue.alease(60, holder="w")
                assert again is not None
                assert (again.id, again.stalls, again.failures) == ("job", 0, 0)
                assert await queue.acomplete(again)


def test_closing_does_not_start_a_stopped_server() -> None:
    with tempfile.TemporaryDirectory(prefix="wl-") as home:
        server = EmbeddedServer(Path(home) / "home")
        app = Windlass(home=server.home)
        app.queue("q").enqueue(b"x")
        assert server.stop()
        app.close()
        assert not server.status().running


def test_closing_does_not_wait_for_a_deaf_server(server: Server, client: Any) -> None:
    with FaultProxy(server.address) as proxy:
        app = Windlass(proxy.url, call_timeout=300, retry_for=300)
        app.queue("deaf").enqueue(b"x")
        proxy.faults = lambda request: HANG_REPLY
        closing = threading.Thread(target=app.close)
        closing.start()
        closing.join(LIMIT_S)
        assert not closing.is_alive()
        with Windlass(server.url) as other:
            other.queue("deaf").purge()
        client.delete("windlass:{deaf}:state")


def test_a_reply_is_bounded_in_bytes(raw_queue: Queue) -> None:
    raw_queue.enqueue_many([RawJob(b"x" * MEBIBYTE, id=str(i)) for i in range(40)])
    seen: list[str] = []
    while leases := raw_queue.lease_many(40, 60):
        assert sum(len(lease.data) for lease in leases) <= 16 * MEBIBYTE
        seen += [lease.id for lease in leases]
    assert seen == [str(i) for i in range(40)]


def test_a_holder_that_is_being_taken_apart_is_lost_already(raw_queue: Queue, later: Callable[[float], None]) -> None:
    raw_queue.enqueue_many([b"x"] * 2500)
    while raw_queue.lease_many(1000, 10, holder="w"):
        pass
    later(11)
    assert raw_queue.lease(60, holder="other") is not None  # which takes the first thousand back
    assert raw_queue.counts().running > 1000
    assert not raw_queue.beat("w", 10)
    assert raw_queue.lease(10, holder="w") is None or raw_queue.counts().running < 1500
    raw_queue.clean()
    assert raw_queue.counts().running <= 2


def test_a_layout_that_does_not_exist_is_refused(app: Windlass) -> None:
    assert app.queue("q", layout="native").name == "q"
    with pytest.raises(InvalidOption, match=r"'celery'\. Use one of: native, worqr"):
        app.queue("q", layout="celery")


ENDS = {
    "async with": """
        async def main():
            async with Windlass() as app:
                await use(app)
        asyncio.run(main())
        """,
    "aclose": """
        async def main():
            app = Windlass()
            await use(app)
            await app.aclose()
        asyncio.run(main())
        """,
    "close after the loop": """
        app = Windlass()
        asyncio.run(use(app))
        app.close()
        """,
    "not closed at all": """
        app = Windlass()
        asyncio.run(use(app))
        """,
    "several loops": """
        app = Windlass()
        asyncio.run(use(app))
        asyncio.run(use(app))
        app.queue("tidy").counts()
        app.close()
        """,
    "closed by another thread": """
        async def main():
            app = Windlass()
            await use(app)
            await asyncio.to_thread(app.close)
        asyncio.run(main())
        """,
    "a worker": """
        app = Windlass()

        @app.task(queue="tidy")
        async def hello() -> None:
            done.set()

        async def main():
            await hello.aenqueue()
            worker = app.worker()
            running = asyncio.create_task(worker.run())
            await done.wait()
            await worker.stop()
            await running

        done = asyncio.Event()
        asyncio.run(main())
        app.close()
        """,
}


@pytest.mark.parametrize("end", ENDS)
def test_no_connection_is_left_open(server: Server, client: Any, end: str) -> None:
    """As `python -X dev` sees it."""
    program = """
        import asyncio, logging
        from windlass import Windlass

        logging.getLogger("asyncio").setLevel("ERROR")  # on a busy machine it speaks of slow steps

        async def use(app):
            queue = app.queue("tidy")
            await queue.aenqueue(b"x")
            lease = await queue.alease(wait=1)
            await asyncio.gather(*(queue.acounts() for _ in range(3)))
            assert await queue.acomplete(lease)
            await queue.alease(wait=0.01)
        """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", dedent(program) + dedent(ENDS[end])],
        env=os.environ | {"WINDLASS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
