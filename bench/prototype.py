"""An upper bound for a drain: the same idea almost without guarantees, and without the product around it.

One list of ids, one hash of payloads, one sorted set of leases, and a script that settles a batch and leases the next
in one call. Each job is decoded into a typed struct and awaited in its own task; two calls are in flight at a time,
through redis-py's client. There are no fences, heartbeats, supervisor, limits or retries; no call is repeated after a
broken connection.

    BENCH_URL=redis://… python -m bench.prototype 100000     # prints jobs a second, and µs of CPU for one
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

import msgspec
from redis.asyncio import Redis

from bench.peers.driving import run

BATCH = 200
LEASE = 15.0
KEYS = ("prototype:ready", "prototype:data", "prototype:leases")

SETTLE_AND_LEASE = """
local call = redis.call
local ready, data, leases = KEYS[1], KEYS[2], KEYS[3]
local owner, ends, done = ARGV[1], ARGV[3], { unpack(ARGV, 4) }
if #done > 0 then
  local members, ours = {}, {}
  for i, id in ipairs(done) do members[i] = owner .. id end
  for i, ends in ipairs(call('ZMSCORE', leases, unpack(members))) do
    if ends then ours[#ours + 1] = done[i] end
  end
  call('ZREM', leases, unpack(members))
  if #ours > 0 then call('HDEL', data, unpack(ours)) end
end
local ids = call('LPOP', ready, ARGV[2])
if not ids then return {} end
local held = {}
for i, id in ipairs(ids) do held[2 * i - 1], held[2 * i] = ends, owner .. id end
call('ZADD', leases, unpack(held))
return { ids, call('HMGET', data, unpack(ids)) }
"""


class Payload(msgspec.Struct):
    """What a job carries."""

    n: int


async def noop(n: int) -> int:
    """What a job does."""
    return n


async def fill(client: Redis, jobs: int) -> None:
    """Enqueue the jobs."""
    for first in range(0, jobs, 5000):
        numbers = range(first, min(first + 5000, jobs))
        names = [f"job-{n:018d}" for n in numbers]
        pipe = client.pipeline(transaction=False)
        pipe.hset(KEYS[1], mapping={name: b'{"n": %d}' % n for name, n in zip(names, numbers, strict=True)})
        pipe.rpush(KEYS[0], *names)
        await pipe.execute()


async def drain(client: Redis) -> None:
    """Work until the queue is empty."""
    turn = client.register_script(SETTLE_AND_LEASE)
    read = msgspec.json.Decoder(Payload).decode
    loop = asyncio.get_running_loop()

    async def one(id: bytes, data: bytes, done: list[bytes]) -> None:
        await noop(read(data).n)
        done.append(id)

    async def work(owner: str) -> None:
        done: list[bytes] = []
        while True:
            found = await turn(keys=KEYS, args=[owner, BATCH, time.time() + LEASE, *done])
            done = []
            if not found:
                return
            await asyncio.gather(*[loop.create_task(one(id, data, done)) for id, data in zip(*found, strict=True)])

    await asyncio.gather(work("a:"), work("b:"))


async def main() -> None:
    """Fill, then drain and measure the time."""
    jobs = int(sys.argv[1])
    async with Redis.from_url(os.environ["BENCH_URL"]) as client:
        await client.delete(*KEYS)
        await fill(client, jobs)
        began, cpu = time.perf_counter(), time.process_time()
        await drain(client)
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        left = await client.hlen(KEYS[1])
        assert left == 0, f"{left} jobs are left"
        print(jobs / took, 1e6 * spent / jobs)


if __name__ == "__main__":
    run(main())
