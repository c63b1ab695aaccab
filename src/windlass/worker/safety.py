"""What a worker makes of the server before it takes the first job: where jobs may be lost, it does not start."""

from __future__ import annotations

import asyncio
import logging
import os

from windlass.app import Windlass
from windlass.doctor import Finding, perils
from windlass.errors import ServerMayEvict, ServerTooOld, ServerUnfit
from windlass.transport.endpoint import Address
from windlass.transport.errors import ConnectFailed, WireLost

log = logging.getLogger("windlass.worker")

# Tells the processes of a worker what its supervisor was told. It is the variable of `windlass worker --allow-unsafe`.
ALLOW_UNSAFE = "WINDLASS_WORKER_ALLOW_UNSAFE"

PATIENCE = 2.0  # seconds for one of several servers: one that stands still must not hold up the queues of the others


async def check_server(app: Windlass, *, allow_unsafe: bool) -> None:
    """Refuse a server that may lose jobs; or, where that is allowed, log what is ignored."""
    servers = await app.arun(lambda session: session.primaries())
    patience = PATIENCE if len(servers) > 1 else None
    looks = await asyncio.gather(*(_look_at(app, server, patience) for server in servers))
    found = [finding for look in looks for finding in look]
    if allow_unsafe:
        for finding in found:
            log.warning("ignored, as told: %s: %s (%s)", finding.server, finding.what, finding.remedy)
        return
    if app.given.allow_eviction:
        found = [finding for finding in found if finding.check != "eviction"]
    if found:
        raise _refusal(found)


async def _look_at(app: Windlass, server: Address, patience: float | None) -> list[Finding]:
    try:
        async with asyncio.timeout(patience):
            return await app.arun(perils(server))
    except (ConnectFailed, WireLost, TimeoutError) as error:
        log.warning("the settings of the server at %s were not looked at: %s", server, str(error) or "no answer")
        return []


def _refusal(found: list[Finding]) -> ServerUnfit:
    told = "; ".join(f"{finding.server}: {finding.what} ({finding.remedy})" for finding in found)
    kinds = {"version": ServerTooOld, "eviction": ServerMayEvict}
    kind = kinds.get(found[0].check, ServerUnfit)
    return kind(
        f"the worker does not start, because jobs could be lost. {told}. To take the risk: `windlass worker "
        "--allow-unsafe`, or allow_unsafe=True"
    )


def tell_processes(allow_unsafe: bool) -> None:
    """Have the processes that begin from now on know of it: each of them imports the app anew."""
    if allow_unsafe:
        os.environ[ALLOW_UNSAFE] = "1"
    else:
        os.environ.pop(ALLOW_UNSAFE, None)


def heed_supervisor(app: Windlass) -> None:
    """In such a process: what the supervisor was told to ignore does not stop this app either."""
    if os.environ.get(ALLOW_UNSAFE) == "1":
        app.tolerate_eviction()
