"""An app whose tasks tell what they see of the process that they run in."""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Any

from windlass import Windlass

app = Windlass()

# What an import may leave open: a connection to the broker, as any client makes one.
BROKER = socket.socket(socket.AF_UNIX)
BROKER.connect(os.environ["WINDLASS_URL"].rpartition("@")[2])


@app.task(queue="probed")
async def modules_of_the_runner() -> list[str]:
    """What the runner has imported, where payloads are read."""
    return sorted(sys.modules)


@app.task(queue="probed", run="process")
def modules_of_a_child() -> list[str]:
    """What a child has imported, where jobs are run."""
    return sorted(sys.modules)


@app.task(queue="probed", run="process")
def descriptors_of_a_child() -> dict[str, str]:
    """What a job in a process of its own has open."""
    return _descriptors()


@app.task(queue="probed")
async def descriptors_of_the_runner() -> dict[str, str]:
    """What the runner has open, which speaks to the broker."""
    return _descriptors()


def _descriptors() -> dict[str, str]:
    """Every open descriptor, and where it leads; of sockets who is at the other end."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = _leads_to(int(name))
        except OSError:
            pass  # the one with which the folder was read
    return found


def _leads_to(fd: int) -> str:
    target = os.readlink(f"/proc/self/fd/{fd}")
    if not target.startswith("socket:"):
        return target
    with socket.socket(fileno=os.dup(fd)) as opened:
        return f"socket to {opened.getpeername()!r}"


@app.task(queue="probed", run="process")
def environment_of_a_child() -> dict[str, str]:
    """Its environment."""
    return dict(os.environ)


@app.task(queue="probed")
async def memory_of_the_runner() -> int:
    """The most that the runner has ever needed, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@app.task(queue="probed")
async def swallow(value: Any = None) -> None:
    """Takes whatever is sent."""


class Unkind(Exception):
    """An error that would do something if anybody made it anew from what was stored of it."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/made-anew",)


@app.task(queue="probed", on_exception="fail")
async def fall() -> None:
    """Fails for good."""
    raise Unkind("it cannot be")
