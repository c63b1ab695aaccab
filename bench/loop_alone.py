"""The speed of the event loop without any queue: coroutines that only sleep. Prints sleeps per second.

python -m bench.loop_alone 100
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from importlib import import_module

from bench.peers.driving import NAP

SECONDS = 2.0


async def sleep_on(concurrency: int) -> float:
    """So many coroutines, each in a task of its own for each sleep, as a worker has it."""
    count, began = 0, time.perf_counter()

    async def sleep_again() -> None:
        nonlocal count
        while time.perf_counter() - began < SECONDS:
            await asyncio.create_task(asyncio.sleep(NAP))
            count += 1

    await asyncio.gather(*(sleep_again() for _ in range(concurrency)))
    return count / (time.perf_counter() - began)


def main() -> None:
    """With uvloop where it is installed, as the worker does."""
    try:
        make_loop: Callable[[], asyncio.AbstractEventLoop] | None = import_module("uvloop").new_event_loop
    except ImportError:
        make_loop = None
    with asyncio.Runner(loop_factory=make_loop) as runner:
        print(runner.run(sleep_on(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
