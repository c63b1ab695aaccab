"""Tasks that are cancelled in the middle of a command, thousands of times: nobody is ever given another's reply."""

from __future__ import annotations

import asyncio
import os
import random
import time

import redis

from tests.support.proxy import FaultProxy, random_faults
from tests.support.server import Server
from windlass import State, Windlass

CANCELS = int(os.environ.get("WINDLASS_CANCELS", "1500"))
SEED = int(os.environ.get("WINDLASS_CANCEL_SEED", "0")) or random.SystemRandom().randrange(2**32)
QUEUES, AT_ONCE, PAUSE = 12, 24, 0.004


async def test_cancelled_commands_mix_up_no_replies(server: Server, client: redis.Redis) -> None:
    """Every queue holds another number of jobs, and every job other data: an answer to another question shows."""
    chance = random.Random(SEED)
    faults = random_faults(SEED, drop_reply=0, delays=0.5, delay_seconds=PAUSE, only={"EVALSHA"})
    wrong: list[str] = []
    cancelled = answered = 0
    with FaultProxy(server.address, unix=True) as proxy:
        async with Windlass(proxy.url, retry_for=30) as app:
            queues = [app.queue(f"cancelled-{number}") for number in range(QUEUES)]
            for number, queue in enumerate(queues):
                for job in range(number + 1):
                    await queue.aenqueue(f"{queue.name}/{job}".encode(), id=f"{number}.{job}", priority=number % 10)
            proxy.faults = faults

            async def ask(number: int) -> None:
                queue = queues[number]
                id = f"{number}.{chance.randrange(number + 1)}"
                told: object
                match chance.randrange(4):
                    case 0:
                        found = await queue.aget(id)
                        told = found and (found.queue, found.id, found.data, found.priority)
                        expected: object = (
                            queue.name,
                            id,
                            f"{queue.name}/{id.partition('.')[2]}".encode(),
                            number % 10,
                        )
                    case 1:
                        told, expected = (await queue.acounts()).ready, number + 1
                    case 2:
                        page = await queue.ajobs(State.READY, limit=50)
                        told, expected = [job.id for job in page.jobs], [f"{number}.{n}" for n in range(number + 1)]
                    case _:
                        told, expected = await queue.aupdate(id, priority=number % 10), True
                if told != expected:
                    wrong.append(f"{queue.name}: {told!r} instead of {expected!r}")

            async def ask_and_cancel() -> None:
                nonlocal cancelled, answered
                while cancelled < CANCELS:
                    asking = asyncio.create_task(ask(chance.randrange(QUEUES)))
                    spared = chance.random() < 0.15
                    await asyncio.wait([asking], timeout=None if spared else chance.random() * 2 * PAUSE)
                    if asking.cancel():
                        cancelled += 1
                    else:
                        answered += 1
                    try:
                        await asking
                    except asyncio.CancelledError:
                        pass

            began = time.monotonic()
            await asyncio.gather(*(ask_and_cancel() for _ in range(AT_ONCE)))
            took = time.monotonic() - began
            proxy.faults = None
            for number in range(QUEUES):
                await ask(number)
            print(f"seed {SEED}: {cancelled:,} cancelled, {answered:,} answered, {len(wrong)} mixed up, {took:.1f} s")
            assert wrong == [], f"seed {SEED}"
            assert cancelled >= CANCELS
            assert answered > CANCELS // 20, "so few answers prove nothing"
            for queue in queues:
                await queue.apurge()
