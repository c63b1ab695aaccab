"""Clocks and CPU times: of this process, and of the server according to INFO."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import NamedTuple

from redis.exceptions import RedisError

from windlass.app import Windlass
from windlass.ops.benchmark.figure import Spent
from windlass.transport.endpoint import Address
from windlass.transport.io_steps import Exchange, Flow, Wire, pack

WATCH_S = 0.5  # long enough to see regular load of other programs


class ServerUse(NamedTuple):
    """CPU times and commands of a server since its start. Its main thread runs all commands, on at most one core."""

    version: str
    cpu: float
    main_cpu: float
    commands: int


class OtherLoad(NamedTuple):
    """The load of other programs. None if it cannot be measured."""

    commands: float | None  # per second on the server; of several servers, the busiest
    server_share: float | None  # of a core
    cores: float | None  # number of busy cores of this machine


def server_use(app: Windlass) -> dict[str, ServerUse | None]:
    """The use of every server, by address. None if a server does not report it, or does not answer."""
    return {str(address): use for address, use in app._flows.run(lambda session: session.examine(_ask)).items()}


def _ask(_: Address, wire: Wire) -> Flow[ServerUse | None]:
    (reply,) = yield Exchange(wire, pack("INFO"))
    return None if isinstance(reply, RedisError) else read_use(reply.decode(errors="replace"))


def read_use(info: str) -> ServerUse | None:
    """Read a reply to INFO. None if a field is missing."""
    lines = (line.partition(":") for line in info.splitlines())
    fields = {name: value for name, separator, value in lines if separator}
    kind = "valkey" if "valkey_version" in fields else "redis"
    try:
        cpu = float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])
        # Not every system reports the CPU times of one thread.
        user, system = fields.get("used_cpu_user_main_thread"), fields.get("used_cpu_sys_main_thread")
        main = cpu if user is None or system is None else float(user) + float(system)
        return ServerUse(f"{kind} {fields[f'{kind}_version']}", cpu, main, int(fields["total_commands_processed"]))
    except (KeyError, ValueError):
        return None


def other_load(app: Windlass) -> OtherLoad:
    """Measure the load while this program does nothing for WATCH_S."""
    before, began, busy = server_use(app), perf_counter(), _busy_cpu()
    sleep(WATCH_S)
    busy_now, after, seconds = _busy_cpu(), server_use(app), perf_counter() - began
    pairs = _pairs(before, after)
    return OtherLoad(
        max(((now.commands - then.commands) / seconds for then, now in pairs), default=None),
        max(((now.main_cpu - then.main_cpu) / seconds for then, now in pairs), default=None),
        None if busy is None or busy_now is None else (busy_now - busy) / WATCH_S,
    )


def _busy_cpu() -> float | None:
    """CPU seconds that this machine has used. None on systems without /proc."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _io_wait, *interrupts = (int(word) for word in line.split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


class Span:
    """Measures from its creation to `end`: elapsed time, and CPU time of this process and of the server."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._servers = server_use(app)  # first, so that its own time does not count
        self._cpu = process_time()
        self._at = perf_counter()

    def end(self, *, program_cpu: float | None = None, seconds: float | None = None) -> Spent:
        """The times since the creation. Give `program_cpu` for another program than this one."""
        spent_seconds, cpu = perf_counter() - self._at, process_time() - self._cpu
        elapsed = spent_seconds if seconds is None else seconds
        pairs = _pairs(self._servers, server_use(self._app))
        return Spent(
            elapsed,
            cpu if program_cpu is None else program_cpu,
            sum(now.cpu - then.cpu for then, now in pairs) if pairs else None,
            max((now.main_cpu - then.main_cpu for then, now in pairs), default=0.0) / elapsed if pairs else None,
        )


def _pairs(
    before: Mapping[str, ServerUse | None], after: Mapping[str, ServerUse | None]
) -> list[tuple[ServerUse, ServerUse]]:
    """The servers that reported both times, and were not restarted in between."""
    both = ((then, after.get(address)) for address, then in before.items())
    return [(then, now) for then, now in both if then and now and now.commands >= then.commands]
