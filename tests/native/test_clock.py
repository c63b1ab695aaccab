"""The queue's clock: a jump of the server's clock neither frees nor freezes a lease, nor starts a job early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep, time
from typing import Any

import pytest
from chaos.clock import ServerClock, shim

from tests.support.internals import layout_of, perform_call, shift_clock_reading
from tests.support.queue_clock import change_core, change_drift, read_core, read_drift
from tests.support.server import Server
from tests.support.waiting import LIMIT_S
from windlass import Lease, Queue, Windlass
from windlass.storage.native.keys import queue_key
from windlass.values.ids import random_id
from windlass.values.job import NewJob

HOUR = 3600


@pytest.fixture(scope="module")
def clock() -> Iterator[ServerClock]:
    """The clock of the server: it can be moved."""
    if shim() is None:
        pytest.skip("the server's clock can be moved on Linux only, with a C compiler")
    with ServerClock() as clock:
        yield clock


@pytest.fixture(scope="module")
def moved_server(clock: ServerClock) -> Iterator[Server]:
    with Server(env=clock.environment()) as server:
        yield server


@pytest.fixture
def server(moved_server: Server) -> Server:
    return moved_server


@pytest.fixture
def jump(clock: ServerClock) -> Iterator[Callable[[float], None]]:
    """Make the server's clock jump, until the test ends."""
    jumps = [0.0]

    def by(seconds: float) -> None:
        jumps.append(seconds)
        clock.jump(seconds)

    yield by
    clock.jump(-sum(jumps))


@pytest.fixture
def passed(raw_queue: Queue, jump: Callable[[float], None]) -> Callable[[float], None]:
    """Let time pass: the server's clock and the program's own say so."""

    def by(seconds: float) -> None:
        jump(seconds)
        shift_clock_reading(raw_queue, age_s=seconds)

    return by


@pytest.fixture
def stranger(server: Server, raw_queue: Queue) -> Iterator[Queue]:
    """The same queue from a program on another machine that has never spoken to it, so it can vouch for no time."""
    with Windlass(server.url) as app:
        yield app.queue(raw_queue.name)


@pytest.fixture
def elsewhere(client: Any, raw_queue: Queue) -> Callable[[], None]:
    """Make it so that the last call came from another machine, whose uptime says nothing here."""

    def mark() -> None:
        client.hset(queue_key(raw_queue.name, "state"), "evidence", "")

    return mark


def one_lease(queue: Queue, seconds: float, holder: str | None = None) -> Lease:
    queue.enqueue(b"x", id="job")
    lease = queue.lease(seconds, holder=holder)
    assert lease is not None
    return lease


@pytest.mark.parametrize("seconds", [HOUR, 24 * HOUR, -HOUR, -24 * HOUR])
@pytest.mark.parametrize("holder", [None, "w"])
def test_a_jump_does_not_free_a_lease(
    raw_queue: Queue, jump: Callable[[float], None], seconds: float, holder: str | None
) -> None:
    lease = one_lease(raw_queue, 60, holder)
    jump(seconds)
    assert raw_queue.lease() is None
    assert raw_queue.complete(lease)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_jump_does_not_free_a_lease_for_a_stranger_either(
    raw_queue: Queue, stranger: Queue, jump: Callable[[float], None], elsewhere: Callable[[], None], seconds: float
) -> None:
    lease = one_lease(raw_queue, 60)
    jump(seconds)
    elsewhere()
    assert stranger.lease() is None
    assert raw_queue.complete(lease)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_a_jump_does_not_freeze_a_lease(raw_queue: Queue, jump: Callable[[float], None], seconds: float) -> None:
    one_lease(raw_queue, 0.3)
    jump(seconds)
    again = raw_queue.lease(wait=LIMIT_S)
    assert again is not None
    assert again.stalls == 1


@pytest.mark.serves("Q8")
@pytest.mark.parametrize("seconds", [HOUR, 24 * HOUR])
def test_a_jump_ahead_does_not_start_a_job_early(
    raw_queue: Queue, jump: Callable[[float], None], seconds: float
) -> None:
    raw_queue.enqueue(b"x", delay=HOUR / 2)
    jump(seconds)
    assert raw_queue.lease() is None
    assert raw_queue.counts().scheduled == 1


def test_a_clock_that_jumped_is_believed_in_the_end(
    raw_queue: Queue, jump: Callable[[float], None], client: Any
) -> None:
    raw_queue.enqueue(b"x", delay=HOUR / 2)
    jump(HOUR)
    assert raw_queue.lease() is None
    change_drift(client, raw_queue.name, skew_until=1)
    assert raw_queue.lease() is not None


def test_a_jump_back_delays_no_job_that_was_due_soon(raw_queue: Queue, jump: Callable[[float], None]) -> None:
    raw_queue.enqueue(b"x", delay=0.2)
    jump(-HOUR)
    assert raw_queue.lease(wait=3) is not None


def test_after_a_jump_and_back_nothing_starts_early(raw_queue: Queue, jump: Callable[[float], None]) -> None:
    raw_queue.enqueue(b"x", delay=HOUR / 2)
    for seconds in (HOUR, -HOUR, -HOUR, HOUR):
        jump(seconds)
        assert raw_queue.lease() is None


def test_a_stranger_after_a_long_silence_gets_scheduled_jobs_at_once(
    raw_queue: Queue, stranger: Queue, jump: Callable[[float], None], elsewhere: Callable[[], None]
) -> None:
    """Nobody can tell a quiet hour from a jump; for run times the server's clock is then believed."""
    raw_queue.enqueue(b"x", id="job", delay=HOUR / 2)
    jump(HOUR)
    elsewhere()
    assert stranger.lease() is not None


def test_a_stranger_after_a_short_silence_takes_it_for_no_jump(
    raw_queue: Queue, stranger: Queue, elsewhere: Callable[[], None], client: Any
) -> None:
    """Its first look can vouch for nothing, its second only for the time since the first: neither saw a jump."""
    raw_queue.enqueue(b"x", id="job", delay=HOUR / 2)
    change_core(client, raw_queue.name, wall=read_core(client, raw_queue.name).wall - 60_000)
    elsewhere()
    for _ in range(3):
        assert stranger.lease() is None
    assert read_drift(client, raw_queue.name)["skew"] == 0


def test_what_is_to_run_at_once_does_so_while_a_jump_is_doubted(
    raw_queue: Queue, jump: Callable[[float], None]
) -> None:
    raw_queue.enqueue(b"x", id="first")
    lease = raw_queue.lease()
    assert lease is not None
    jump(HOUR)
    assert raw_queue.retry(lease, delay=0)
    raw_queue.enqueue(b"x", id="second", delay=0)
    again = raw_queue.lease_many(3)
    assert [each.id for each in again] == ["first", "second"]
    raw_queue.complete_many(again)


def test_a_delay_set_while_a_jump_is_doubted_is_never_cut_short(
    raw_queue: Queue, jump: Callable[[float], None], client: Any
) -> None:
    raw_queue.enqueue(b"x", id="first", delay=2 * HOUR)
    jump(HOUR)
    raw_queue.enqueue(b"x", id="later", delay=HOUR / 2)
    change_drift(client, raw_queue.name, skew_until=1)  # and now it is believed
    assert raw_queue.lease() is None


def test_a_lost_holder_is_found_however_quiet_the_queue_is(raw_queue: Queue, passed: Callable[[float], None]) -> None:
    """Grace after a silence is given once, not again after each of many."""
    one_lease(raw_queue, 1, "w")
    recovered = []
    for _ in range(3):
        passed(6)
        recovered.append(raw_queue.clean().recovered)
    assert recovered[:2] == [0, 1]


def test_a_quiet_client_vouches_for_the_time_that_passed(raw_queue: Queue, passed: Callable[[float], None]) -> None:
    """The holder of the only connection comes back after longer than the lease: the lease has ended, at once."""
    one_lease(raw_queue, 2.2)
    passed(3)
    assert raw_queue.clean().recovered == 1


def test_after_a_silence_named_holders_get_time_to_beat(
    raw_queue: Queue, later: Callable[[float], None], passed: Callable[[float], None]
) -> None:
    """A server that stood still is no reason to take every worker's jobs away at once."""
    lease = one_lease(raw_queue, 15, "w")
    passed(20)
    assert raw_queue.clean().recovered == 0
    assert raw_queue.beat("w", 15)
    later(6)
    assert raw_queue.clean().recovered == 0
    assert raw_queue.complete(lease)


def _made_now(queue: Queue) -> Callable[[], object]:
    """A call that is made now, and sent later: it waited for a connection, or the server stood still."""
    call = layout_of(queue).enqueue([NewJob(random_id(), b"", fresh=True)])
    return lambda: perform_call(queue, call)


def _clock(client: Any, queue: Queue) -> int:
    return read_core(client, queue.name).clock


def test_time_that_calls_spend_on_their_way_is_not_counted_twice(
    raw_queue: Queue, stranger: Queue, client: Any
) -> None:
    raw_queue.enqueue(b"x")
    stranger.enqueue(b"x")
    began, clock = monotonic(), _clock(client, raw_queue)
    for _ in range(5):
        send = _made_now(stranger)
        sleep(0.2)
        raw_queue.enqueue(b"x")
        send()
        raw_queue.enqueue(b"x")
    assert _clock(client, raw_queue) - clock < (monotonic() - began + 0.2) * 1000


def test_calls_that_take_now_longer_and_now_shorter_do_not_drive_the_clock(
    raw_queue: Queue, stranger: Queue, client: Any
) -> None:
    raw_queue.enqueue(b"x")
    stranger.enqueue(b"x")
    began, clock = monotonic(), _clock(client, raw_queue)
    for _ in range(20):
        send = _made_now(stranger)
        sleep(0.05)
        send()
        raw_queue.enqueue(b"x")
    assert _clock(client, raw_queue) - clock < (monotonic() - began + 0.2) * 1000


def test_a_first_call_that_comes_late_starts_no_job_early(raw_queue: Queue, stranger: Queue) -> None:
    raw_queue.enqueue(b"later", id="later", delay=60)
    send = _made_now(stranger)  # its program has not heard the clock yet
    for _ in range(6):
        sleep(0.4)
        raw_queue.enqueue(b"x")
    send()
    raw_queue.enqueue(b"x")
    raw_queue.update("later", run_at=time() + 1)
    assert "later" not in {lease.id for lease in raw_queue.lease_many(100)}


def test_a_call_that_came_late_does_not_hold_up_run_times(raw_queue: Queue, stranger: Queue, client: Any) -> None:
    """For a moment it looks as if the clock had jumped; the next call knows better, to the tenth of a second."""
    raw_queue.enqueue(b"x")
    stranger.enqueue(b"x")
    early = _made_now(raw_queue)
    sleep(1.6)
    late = _made_now(stranger)
    sleep(1.6)
    early()
    late()
    raw_queue.enqueue(b"x")
    assert read_drift(client, raw_queue.name)["skew"] < 200


def test_fences_outlast_the_state(raw_queue: Queue) -> None:
    """Even when a queue was purged and begins anew, its fences go on rising."""
    first = one_lease(raw_queue, 60)
    raw_queue.purge()
    assert one_lease(raw_queue, 60).fence > first.fence


def test_a_lease_given_while_the_clock_is_behind_is_not_cut_short(
    raw_queue: Queue, stranger: Queue, elsewhere: Callable[[], None]
) -> None:
    """A stranger cannot tell whether 2 s have passed or not, so the clock waits; then somebody comes who can."""
    raw_queue.enqueue(b"x", id="job")
    elsewhere()
    sleep(2)
    lease = stranger.lease(1.5)
    assert lease is not None
    raw_queue.enqueue(b"y")
    assert raw_queue.clean().recovered == 0
    assert stranger.complete(lease)


def test_nor_is_a_short_one(raw_queue: Queue, stranger: Queue, elsewhere: Callable[[], None]) -> None:
    raw_queue.enqueue(b"x", id="job")
    elsewhere()
    sleep(2)
    lease = stranger.lease(0.6)
    assert lease is not None
    raw_queue.enqueue(b"y")
    assert raw_queue.clean().recovered == 0
    sleep(0.7)
    assert raw_queue.clean().recovered == 1, "and it ends in time"


def test_nobody_s_word_starts_a_job_early(raw_queue: Queue) -> None:
    """What a program has heard may be wrong by a fault of its own; that must not reach the others."""
    raw_queue.enqueue(b"x", delay=HOUR / 2)
    shift_clock_reading(raw_queue, due_ms=HOUR * 1000)
    assert raw_queue.lease() is None
    assert raw_queue.counts().scheduled == 1
