"""Clocks and CPU times: of this process, and of the server as it tells them (INFO)."""

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
from windlass.transport.wire import Exchange, Flow, Wire, pack

QUIET = 0.5  # seconds in which others are watched


class ServerUse(NamedTuple):
    """What a server had used up at one moment. Its main thread runs all commands: no more than one core does that."""

    version: str
    cpu: float
    main_cpu: float
    commands: int


class Others(NamedTuple):
    """What is done by others while this program does nothing. `None` is what cannot be seen."""

    commands: float | None  # on the server, a second; of several servers, the busiest
    server_share: float | None  # of a core
    cores: float | None  # that are busy on this machine


def look(app: Windlass) -> dict[str, ServerUse | None]:
    """What every server has used up, by address. `None` where it does not tell, or cannot be reached."""
    return {str(address): use for address, use in app.run(lambda session: session.examine(_look)).items()}


def _look(_: Address, wire: Wire) -> Flow[ServerUse | None]:
    (reply,) = yield Exchange(wire, pack("INFO"))
    return None if isinstance(reply, RedisError) else read_use(reply.decode(errors="replace"))


def read_use(info: str) -> ServerUse | None:
    """From a reply to INFO; `None` if it lacks what is needed."""
    lines = (line.partition(":") for line in info.splitlines())
    fields = {name: value for name, separator, value in lines if separator}
    kind = "valkey" if "valkey_version" in fields else "redis"
    try:
        cpu = float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])
        # Not every system tells the times of one thread.
        user, system = fields.get("used_cpu_user_main_thread"), fields.get("used_cpu_sys_main_thread")
        main = cpu if user is None or system is None else float(user) + float(system)
        return ServerUse(f"{kind} {fields[f'{kind}_version']}", cpu, main, int(fields["total_commands_processed"]))
    except (KeyError, ValueError):
        return None


def watch_others(app: Windlass) -> Others:
    """Do nothing for a moment, and see what happens all the same."""
    before, began, busy = look(app), perf_counter(), _busy_cpu()
    sleep(QUIET)
    busy_now, after, seconds = _busy_cpu(), look(app), perf_counter() - began
    pairs = _pairs(before, after)
    return Others(
        max(((now.commands - then.commands) / seconds for then, now in pairs), default=None),
        max(((now.main_cpu - then.main_cpu) / seconds for then, now in pairs), default=None),
        None if busy is None or busy_now is None else (busy_now - busy) / QUIET,
    )


def _busy_cpu() -> float | None:
    """CPU seconds that this machine has spent on anything, where /proc tells."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    user, nice, system, _idle, _io_wait, *interrupts = (int(word) for word in line.split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


class Span:
    """From its making to its `end`: the time, and the CPU time of this process and of the server."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._servers = look(app)  # first: its own time does not count
        self._cpu = process_time()
        self._at = perf_counter()

    def end(self, *, program_cpu: float | None = None, seconds: float | None = None) -> Spent:
        """What was spent since. Of another program than this one, its CPU time is to be told."""
        spent_seconds, cpu = perf_counter() - self._at, process_time() - self._cpu
        elapsed = spent_seconds if seconds is None else seconds
        pairs = _pairs(self._servers, look(self._app))
        return Spent(
            elapsed,
            cpu if program_cpu is None else program_cpu,
            sum(now.cpu - then.cpu for then, now in pairs) if pairs else None,
            max((now.main_cpu - then.main_cpu for then, now in pairs), default=0.0) / elapsed if pairs else None,
        )


def _pairs(
    before: Mapping[str, ServerUse | None], after: Mapping[str, ServerUse | None]
) -> list[tuple[ServerUse, ServerUse]]:
    """The servers that told both times; one that was restarted in between has told nothing of use."""
    both = ((then, after.get(address)) for address, then in before.items())
    return [(then, now) for then, now in both if then and now and now.commands >= then.commands]
