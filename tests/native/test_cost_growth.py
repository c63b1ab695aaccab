"""No step costs more in a long queue: the same commands, and a script time that does not grow with it.

Each operation is done in a queue with 1,000 other jobs and in one with many: ready, scheduled or leased. What is
compared is what the server counted itself (INFO commandstats), never the time that a caller waited.

By default there are 200,000 ready or scheduled jobs, and a tenth as many leased ones; `WINDLASS_COST_JOBS=1000000`
makes it a million and 100,000.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from statistics import median
from typing import Any, NamedTuple

import pytest
import redis

from tests.support.internals import perform_call
from tests.support.server import Server
from windlass import Lease, Queue, Windlass
from windlass.storage.native.keys import queue_key, queue_keys
from windlass.storage.native.records import add_sum
from windlass.storage.port import LeaseRequest
from windlass.values.outcome import Completed

FEW = 1000
MANY = int(os.environ.get("WINDLASS_COST_JOBS", "200000"))
STATES = {"ready": MANY, "scheduled": MANY, "running": MANY // 10}

CALLS = 50
TIMES, SLACK = 5, 200  # how much longer a script may take in the long queue: so many times, and so many microseconds
BATCH = 20
DATA = b'{"n":1}'
DAY = 86_400_000  # ms
PIECE = 20_000  # jobs that are written by one script: well below the time after which a server calls it busy


# -- a long queue, written as the layout's README has it --------------------------------------------------------------

# KEYS: all of the queue. ARGV: which state, first and last number, data with its sum, ms ahead.
# Sequence and fence go on from what the state has, so that whatever is enqueued or leased later comes behind.
_FILL = """
local STATE, READY, SCHEDULED, LEASES, HELD, HOLDERS, DATA, META = unpack(KEYS)
local kind, first, last, data, ahead = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local CORE = '>BBI8I8I8I8I8I8'
local version, marks, seq, fence, clock, wall, step, epoch = struct.unpack(CORE, redis.call('HGET', STATE, 'core'))
local whole = function(number) return string.format('%.0f', number) end
local into = {}
local function add(command, key, a, b)
  local pending = into[key] or { command, key }
  into[key] = pending
  pending[#pending + 1], pending[#pending + 2] = a, b
  if #pending > 2000 then
    redis.call(unpack(pending))
    into[key] = nil
  end
end
for i = first, last do
  local id = string.format('%s-%09d', kind, i)
  seq = seq + 1
  local place = 5 * 2 ^ 49 + seq
  add('HSET', DATA, id, data)
  if kind == 'ready' then
    add('ZADD', READY, whole(place), id)
  elseif kind == 'scheduled' then
    add('ZADD', SCHEDULED, whole(clock + ahead + i), struct.pack('>I8', seq) .. id)
    add('HSET', META, id, struct.pack('>BBBI4I4I4I4I8I8I8I2', 3, 0, 5, 10, 3, 0, 0, 2000, 300000, seq, 0))
  else
    local holder = 'holder-' .. i % 100
    fence = fence + 1
    add('HSET', LEASES, id, struct.pack('>BI8I8B', 0, fence, place, #holder) .. holder)
    add('ZADD', HELD, 0, holder .. '\\0' .. id)
    if i < first + 100 then add('ZADD', HOLDERS, whole(clock + ahead), holder) end
  end
end
for _, pending in pairs(into) do redis.call(unpack(pending)) end
redis.call('HSET', STATE, 'core', struct.pack(CORE, version, marks, seq, fence, clock, wall, step, epoch))
"""


def fill(client: redis.Redis, queue: Queue, state: str, amount: int, ahead: int = DAY) -> None:
    """Put so many jobs of a state into an empty queue. Run times come, and leases end, so many ms ahead."""
    queue.cancel(queue.enqueue(b"").id)  # makes the queue's state
    keys = queue_keys(queue.name)
    for first in range(0, amount, PIECE):
        last = min(first + PIECE, amount) - 1
        client.eval(_FILL, len(keys), *keys, state, first, last, add_sum(DATA), ahead)


@pytest.fixture(scope="module", params=STATES)
def queues(valkey: Server, request: pytest.FixtureRequest) -> Iterator[tuple[Queue, Queue, Windlass, str]]:
    """A short and a long queue whose jobs are all in one state."""
    state: str = request.param
    with Windlass(valkey.url) as app, valkey.client(timeout=60) as client:
        pair = app.queue(f"few-{state}"), app.queue(f"many-{state}")
        for queue, amount in zip(pair, (FEW, STATES[state]), strict=True):
            fill(client, queue, state, amount)
            assert getattr(queue.counts(), state) == amount
        yield (*pair, app, state)
        for queue in pair:
            queue.purge()


# -- what an operation costs -----------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What one call made the server do: commands by name, those in scripts included, and the script's microseconds."""

    commands: Counter[str]
    usec: int


# What is asked here, and what sentinels and replicas say by themselves.
_CHATTER = {"info", "ping", "publish", "replconf"}
_ROW = re.compile(rb"cmdstat_([^:]+):calls=(\d+),usec=(\d+)")


def _stats(client: redis.Redis) -> dict[str, tuple[int, int]]:
    client.response_callbacks.clear()
    reply: bytes = client.execute_command("INFO", "commandstats")  # type: ignore[no-untyped-call]
    return {name.decode(): (int(calls), int(usec)) for name, calls, usec in _ROW.findall(reply)}


def cost(client: redis.Redis, call: Callable[[], object]) -> Cost:
    """What a call costs."""
    before = _stats(client)
    call()
    after = _stats(client)
    spent = {name: (calls - before.get(name, (0, 0))[0], usec) for name, (calls, usec) in after.items()}
    commands = Counter({name: calls for name, (calls, _) in spent.items() if calls and name not in _CHATTER})
    return Cost(commands, after["evalsha"][1] - before["evalsha"][1])


Prepare = Callable[[Queue, Windlass, int], Any]
Operate = Callable[[Queue, Windlass, Any], object]


class Operation(NamedTuple):
    """A call that is measured, on something that is made for it each time; it must have an effect."""

    prepare: Prepare
    operate: Operate
    tidy: Callable[[Queue, Windlass], None] | None = None


def _nothing(queue: Queue, app: Windlass, n: int) -> None:
    return None


_numbers = count(100_000)  # no id comes twice: an operation may leave its job leased


def _job(queue: Queue, app: Windlass, n: int) -> str:
    return queue.enqueue(DATA, id=f"job-{next(_numbers)}", priority=0).id


def _later_job(queue: Queue, app: Windlass, n: int) -> str:
    return queue.enqueue(DATA, id=f"later-{next(_numbers)}", delay="1h").id


def _lease(queue: Queue, app: Windlass, n: int) -> Lease:
    _job(queue, app, n)
    lease = queue.lease(600)
    assert lease is not None
    return lease


def _lease_and_job(queue: Queue, app: Windlass, n: int) -> Lease:
    lease = _lease(queue, app, n)
    _job(queue, app, n)
    return lease


def _holder(queue: Queue, app: Windlass, n: int) -> str:
    """Where there are leased jobs, one that has some of them."""
    queue.beat("holder-1", 600, register=True)
    return "holder-1"


def _turn(queue: Queue, app: Windlass, lease: Lease) -> bool:
    layout = app.layout(queue.name)
    turn = perform_call(app, layout.turn([Completed(lease)], LeaseRequest(want=1, seconds=600)))
    return turn.settled == (True,) and len(turn.leases) == 1


def _pause(queue: Queue, app: Windlass, n: int) -> None:
    """Else a look would find something."""
    queue.pause()


def _resume(queue: Queue, app: Windlass) -> None:
    leave = app.layout(queue.name).unregister_waiter("waiter")
    perform_call(app, leave)
    queue.resume()


def _look(queue: Queue, app: Windlass, _: None) -> bool:
    look = app.layout(queue.name).turn((), LeaseRequest(want=1, seconds=600, waiter="waiter"))
    return not perform_call(app, look).leases


OPERATIONS = {
    "enqueue": Operation(_nothing, lambda queue, app, _: queue.enqueue(DATA)),
    "enqueue later": Operation(_nothing, lambda queue, app, _: queue.enqueue(DATA, delay="1h")),
    "enqueue_many": Operation(_nothing, lambda queue, app, _: queue.enqueue_many([DATA] * BATCH)),
    "lease": Operation(_job, lambda queue, app, _: queue.lease(600)),
    "complete": Operation(_lease, lambda queue, app, lease: queue.complete(lease)),
    "release": Operation(_lease, lambda queue, app, lease: queue.release(lease)),
    "retry later": Operation(_lease, lambda queue, app, lease: queue.retry(lease, delay="1h")),
    "settle and lease": Operation(_lease_and_job, _turn),
    "extend": Operation(_lease, lambda queue, app, lease: queue.extend(lease, 700)),
    "beat": Operation(_holder, lambda queue, app, holder: queue.beat(holder, 600)),
    "update of a ready job": Operation(_job, lambda queue, app, id: queue.update(id, priority=3)),
    "update of a scheduled job": Operation(_later_job, lambda queue, app, id: queue.update(id, delay="2h")),
    "cancel of a ready job": Operation(_job, lambda queue, app, id: queue.cancel(id)),
    "cancel of a scheduled job": Operation(_later_job, lambda queue, app, id: queue.cancel(id)),
    "get": Operation(_job, lambda queue, app, id: queue.get(id)),
    "counts": Operation(_nothing, lambda queue, app, _: queue.counts()),
    "idle look": Operation(_pause, _look, _resume),
}


def costs(client: redis.Redis, queue: Queue, app: Windlass, operation: Operation, calls: int = CALLS) -> list[Cost]:
    """What an operation costs, again and again."""
    found = []
    for n in range(calls):
        subject = operation.prepare(queue, app, n)
        found.append(cost(client, partial(_operate, operation, queue, app, subject)))
    if operation.tidy:
        operation.tidy(queue, app)
    return found


def _operate(operation: Operation, queue: Queue, app: Windlass, subject: Any) -> None:
    assert operation.operate(queue, app, subject), "it had no effect"


def check_growth(few: list[Cost], many: list[Cost]) -> None:
    """The same commands and no longer a time. Typical calls are compared: now and then one also keeps the clock."""
    typical = [
        Counter(frozenset(each.commands.items()) for each in found).most_common(1)[0][0] for found in (few, many)
    ]
    assert typical[0] == typical[1], "other commands in a long queue"
    short, long = (median(each.usec for each in found) for found in (few, many))
    assert long <= TIMES * short + SLACK, f"{short} µs in a short queue, {long} µs in a long one"


# -- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_the_queue_that_is_written_by_hand_is_as_one_of_our_own(
    raw_queue: Queue, client: redis.Redis, state: str
) -> None:
    fill(client, raw_queue, state, FEW)
    found = raw_queue.counts()
    assert getattr(found, state) == found.waiting + found.running == FEW
    audit = raw_queue.audit()
    assert (audit.jobs >= FEW, audit.damaged_parts) == (True, ())
    job = raw_queue.get(f"{state}-000000000")
    assert job is not None
    assert (job.state, job.data, job.priority) == (state, DATA, 5)
    if state == "running":
        assert job.holder == "holder-0"
        assert raw_queue.beat("holder-0")
        return
    if state == "scheduled":
        assert raw_queue.update(job.id, delay=0)
    behind = raw_queue.enqueue(DATA).id
    leases = [*raw_queue.lease_many(FEW), *raw_queue.lease_many(FEW)]
    due = [f"ready-{n:09d}" for n in range(FEW)] if state == "ready" else [job.id]
    assert [lease.id for lease in leases] == [*due, behind]
    assert {lease.data for lease in leases} == {DATA}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_costs_more_in_a_long_queue(
    queues: tuple[Queue, Queue, Windlass, str], valkey: Server, name: str
) -> None:
    few, many, app, _ = queues
    with valkey.client() as client:
        check_growth(costs(client, few, app, OPERATIONS[name]), costs(client, many, app, OPERATIONS[name]))


GROWING = {
    "other commands": "for _ = 1, redis.call('ZCARD', KEYS[1]) / 100 do redis.call('TIME') end return 1",
    "µs in a long one": "return #redis.call('ZRANGE', KEYS[1], 0, -1)",
}
INDEX = {"ready": "ready", "scheduled": "scheduled", "running": "held"}


@pytest.mark.parametrize("complaint", GROWING)
def test_a_step_that_grows_is_noticed(
    queues: tuple[Queue, Queue, Windlass, str], valkey: Server, complaint: str
) -> None:
    few, many, app, state = queues
    with valkey.client(timeout=60) as client:
        script = client.register_script(GROWING[complaint])

        def read_all(queue: Queue, app: Windlass, _: None) -> object:
            return script(keys=[queue_key(queue.name, INDEX[state])])

        growing = Operation(_nothing, read_all)
        costs(client, few, app, growing, 1)  # loads it
        found = [costs(client, queue, app, growing, 5) for queue in (few, many)]
    with pytest.raises(AssertionError, match=complaint):
        check_growth(*found)


@pytest.mark.parametrize("state", ["scheduled", "running"])
def test_what_comes_back_all_at_once_is_taken_in_pieces(
    app: Windlass, server: Server, client: redis.Redis, state: str
) -> None:
    """All run times have come, or all workers are lost: a turn moves a thousand jobs, however many there are."""
    server.command("PING")  # one that counts all commands, which in a cluster there is not
    found = []
    for amount in (2 * FEW, 20 * FEW):
        queue = app.queue(f"{amount}-{state}")
        fill(client, queue, state, amount, ahead=-DAY)
        turn = app.layout(queue.name).turn()
        found.append(cost(client, partial(perform_call, app, turn)))
        left = queue.counts()
        assert (client.zcard(queue_key(queue.name, "ready")), left.waiting + left.running) == (FEW, amount)
        queue.purge()
    assert found[1].commands.total() <= found[0].commands.total()
