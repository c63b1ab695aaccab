"""Programs that fork and tasks that are cancelled in the middle of a call: everybody reads only its own replies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.proxy import FaultProxy, random_faults
from tests.support.server import Server
from tests.support.server_states import queue_on
from tests.topology.life import drain
from windlass import Windlass


def in_a_fork(work: Callable[[], None]) -> int:
    """Runs work in a forked child; the child's pid. It ends with 0 when the work went well."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def assert_ended_well(pid: int, patience: float = 30) -> None:
    ended = threading.Event()
    timer = threading.Timer(patience, lambda: None if ended.is_set() else os.kill(pid, signal.SIGKILL))
    timer.start()
    try:
        _, status = os.waitpid(pid, 0)
        ended.set()
    finally:
        timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.usefixtures("tidy")
def test_no_id_is_made_on_both_sides_of_a_fork(own: Server) -> None:
    """Ids are made ahead, and a job of a made-up id is put in the place of whatever has that id."""
    with queue_on(own.url) as queue:
        queue.enqueue(b"")  # by now there are some ahead

        def enqueue() -> None:
            for _ in range(200):
                queue.enqueue(b"")

        children = [in_a_fork(enqueue) for _ in range(2)]
        enqueue()
        for child in children:
            assert_ended_well(child)
        assert len(drain(queue)) == 601
        queue.purge()


@pytest.mark.usefixtures("tidy")
def test_a_program_that_forks_and_enqueues_on_both_sides(own: Server, tmp_path: Path) -> None:
    """Each side reads only its own answers, though the child was born with the parent's open connections."""
    with queue_on(own.url) as queue:
        queue.enqueue(b"first", id="first")

        def enqueue_and_look(side: str) -> None:
            for number in range(200):
                id = f"{side}-{number}"
                assert queue.enqueue(id.encode(), id=id).id == id
                found = queue.get(id)
                assert found is not None
                assert found.data == id.encode()

        children = [in_a_fork(lambda side=side: enqueue_and_look(f"child{side}")) for side in range(2)]  # type: ignore[misc]
        enqueue_and_look("parent")
        for child in children:
            assert_ended_well(child)
        assert len(set(drain(queue))) == 601
        queue.purge()


@pytest.mark.usefixtures("tidy")
def test_an_asyncio_program_that_forks_keeps_its_connections(own: Server) -> None:
    """The child must not touch the parent's event loop: the kernel's list of sockets is shared between them."""

    async def both_sides(app: Windlass) -> None:
        queue = app.queue("states")
        await queue.aenqueue(b"before")

        def child() -> None:
            fresh = app.queue("states")
            fresh.enqueue(b"child")

        pid = in_a_fork(child)
        await asyncio.to_thread(assert_ended_well, pid)
        for _ in range(20):
            await queue.aenqueue(b"parent")

    # On a connection that has gone silent, a call would wait for longer than the test may.
    with Windlass(own.url, retry_for=300, call_timeout=300) as app:
        asyncio.run(both_sides(app))
        assert len(drain(app.queue("states"))) == 22
        app.queue("states").purge()


@pytest.mark.usefixtures("tidy")
async def test_tasks_cancelled_in_the_middle_of_a_call_never_mix_up_replies(own: Server) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    faults = random_faults(seed, drop_reply=0, delays=0.5, delay_seconds=0.003, only={"EVALSHA"})
    with FaultProxy(own.address, faults=faults, unix=True) as proxy:
        async with Windlass(proxy.url, retry_for=10) as app:
            queue = app.queue("states")
            ids = [f"job-{number}" for number in range(50)]
            await asyncio.gather(*(queue.aenqueue(id.encode() * 3, id=id) for id in ids))
            cancelled = answered = 0

            async def ask(id: str) -> None:
                if chance.random() < 0.5:
                    found = await queue.aget(id)
                    assert found is not None
                    assert (found.id, found.data) == (id, id.encode() * 3)
                else:
                    receipt = await queue.aenqueue(id.encode() * 3, id=id)
                    assert receipt.id == id
                    assert receipt.status == "updated"

            async def ask_and_cancel() -> None:
                nonlocal cancelled, answered
                while cancelled < 500:
                    task = asyncio.create_task(ask(chance.choice(ids)))
                    spared = chance.random() < 0.1
                    await asyncio.wait([task], timeout=None if spared else chance.random() * 0.006)
                    if task.cancel():
                        cancelled += 1
                    else:
                        answered += 1
                    try:
                        await task
                    except asyncio.CancelledError:
                        pass

            await asyncio.gather(*(ask_and_cancel() for _ in range(5)))
            assert cancelled >= 500
            assert answered > 20
            proxy.faults = None
            for id in ids:
                await ask(id)
            assert await queue.apurge() == len(ids)
