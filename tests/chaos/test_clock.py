"""Tests of a server's own wall clock: commands and scripts follow every change at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chaos.clock import ServerClock, shim

from tests.support.server import Server, redis_binary, valkey_binary
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(shim() is None, reason="needs Linux and a C compiler")

HOUR = 3600.0

READ_TIME = "#!lua\nlocal now = redis.call('TIME'); return now[1] .. '.' .. now[2]"


@pytest.fixture(params=["valkey", "redis"], scope="module")
def binary(request: pytest.FixtureRequest) -> Path:
    found = valkey_binary() if request.param == "valkey" else redis_binary()
    if found is None:
        pytest.skip("no redis-server on PATH")
    return found


@pytest.fixture(scope="module")
def started(binary: Path) -> Iterator[tuple[Server, ServerClock]]:
    with ServerClock() as clock, Server(binary, env=clock.environment(), appendonly=True) as server:
        yield server, clock


@pytest.fixture
def server(started: tuple[Server, ServerClock]) -> Server:
    return started[0]


@pytest.fixture
def clock(started: tuple[Server, ServerClock]) -> Iterator[ServerClock]:
    yield started[1]
    started[1].reset()


def told(server: Server) -> float:
    seconds, micros = server.command("TIME")
    return int(seconds) + int(micros) / 1e6


def told_in_script(server: Server) -> float:
    seconds, micros = server.command("EVAL", READ_TIME, 0).decode().split(".")
    return int(seconds) + int(micros) / 1e6


def test_untouched_it_shows_the_real_time(server: Server, clock: ServerClock) -> None:
    before = time.time()
    assert before - 0.01 <= told(server) <= time.time() + 0.01


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 24 * HOUR, -24 * HOUR])
def test_commands_and_scripts_see_a_jump_at_once(server: Server, clock: ServerClock, jump: float) -> None:
    clock.jump(jump)
    for read in (told, told_in_script):
        before = time.time() + jump
        assert before - 0.01 <= read(server) <= time.time() + jump + 0.01


def test_a_frozen_clock_moves_only_as_told_and_shows_every_step_on_one_connection(
    server: Server, clock: ServerClock
) -> None:
    """The server caches the time per event-loop turn: an open connection must not get the old one."""
    clock.freeze(1_700_000_000)
    client = server.client()
    try:
        client.response_callbacks.clear()
        send: Callable[..., Any] = client.execute_command
        for step in range(200):
            expected = 1_700_000_000_000_000 + step * 1_500
            seconds, micros = send("TIME")
            assert int(seconds) * 1_000_000 + int(micros) == expected
            assert send("EVAL", READ_TIME, 0).decode() == f"{int(seconds)}.{int(micros)}"
            clock.advance(0.0015)
    finally:
        client.close()


def test_run_goes_on_from_where_the_clock_stood(server: Server, clock: ServerClock) -> None:
    clock.freeze(1_700_000_000)
    before = time.monotonic()
    clock.run()
    assert 1_700_000_000 <= told(server) <= 1_700_000_000 + time.monotonic() - before + 0.01
    assert clock.now_ns // 10**9 in range(1_700_000_000, 1_700_000_060)


def test_keys_expire_by_this_clock(server: Server, clock: ServerClock) -> None:
    clock.freeze(1_700_000_000)
    server.command("SET", "short", "1", "PX", 5_000)
    clock.advance(4.999)
    assert server.command("PTTL", "short") == 1
    clock.advance(0.002)
    assert server.command("GET", "short") is None


def test_a_restarted_server_has_the_same_clock(server: Server, clock: ServerClock) -> None:
    clock.freeze(1_700_000_000)
    server.kill()
    server.start()
    assert told(server) == 1_700_000_000
    clock.reset()


def test_a_blocked_command_waits_by_this_clock(server: Server, clock: ServerClock) -> None:
    """Good to know: under a frozen clock the timeout of BLPOP never expires."""
    clock.freeze(1_700_000_000)
    with ThreadPoolExecutor(max_workers=1) as aside:
        waiting = aside.submit(server.command, "BLPOP", "nothing", 10)
        wait_until(lambda: server.info("clients")["blocked_clients"] == "1", "BLPOP to block")
        clock.advance(10.001)
        assert waiting.result() is None


def test_another_process_keeps_the_real_time(clock: ServerClock) -> None:
    clock.jump(-HOUR)
    said = float(subprocess.run(["date", "+%s.%N"], capture_output=True, text=True, check=True).stdout)
    assert abs(said - time.time()) < 60


def test_only_a_frozen_clock_is_advanced(clock: ServerClock) -> None:
    with pytest.raises(ValueError, match="frozen"):
        clock.advance(1)
    clock.freeze()
    with pytest.raises(ValueError, match="seconds >= 0"):
        clock.advance(-1)
