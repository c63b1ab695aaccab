"""Checks the server before a worker takes its first job. The worker does not start if the server may lose jobs."""

from __future__ import annotations

import asyncio
import logging
import os

from windlass.app import Windlass
from windlass.doctor import Finding, dangers
from windlass.errors import ServerFault, ServerMayEvict, ServerTooOld, ServerUnfit
from windlass.transport.endpoint import Address
from windlass.transport.errors import SERVER_UNAVAILABLE

log = logging.getLogger("windlass.worker")

# Passes --allow-unsafe from the supervisor to its processes. The CLI option reads the same variable.
ALLOW_UNSAFE = "WINDLASS_WORKER_ALLOW_UNSAFE"

SERVER_CHECK_TIMEOUT_S = 2.0  # for one of several servers: a server that hangs must not delay the others' queues


async def check_server(app: Windlass, *, allow_unsafe: bool) -> None:
    """Refuse a server that may lose jobs. With `allow_unsafe`, only log the findings."""
    servers = await app._flows.arun(lambda session: session.primaries())
    timeout = SERVER_CHECK_TIMEOUT_S if len(servers) > 1 else None
    results = await asyncio.gather(*(_check_one(app, server, timeout) for server in servers))
    found = [finding for result in results for finding in result]
    if allow_unsafe:
        for finding in found:
            told = "Unsafe server setting ignored (allow_unsafe): %s: %s (%s)"
            log.warning(told, finding.server, finding.what, finding.remedy)
        return
    if app.given.allow_eviction:
        found = [finding for finding in found if finding.check != "eviction"]
    if found:
        raise _refusal(found)


async def _check_one(app: Windlass, server: Address, timeout: float | None) -> list[Finding]:
    try:
        async with asyncio.timeout(timeout):
            return await app._flows.arun(dangers(server))
    except ServerFault:
        raise  # it answered, with an error that we do not know: not a passing outage
    except (*SERVER_UNAVAILABLE, TimeoutError) as error:
        why = str(error) or "no answer"
        log.warning("Cannot check the settings of the server at %s; starting without the check: %s", server, why)
        return []


def _refusal(found: list[Finding]) -> ServerUnfit:
    findings = "; ".join(f"{finding.server}: {finding.what} ({finding.remedy})" for finding in found)
    kinds = {"version": ServerTooOld, "eviction": ServerMayEvict}
    kind = kinds.get(found[0].check, ServerUnfit)
    refused = f"the worker does not start on this server. {findings}"
    if kind is ServerTooOld:  # it lacks commands that every call needs
        return kind(refused)
    return kind(f"{refused}. To start all the same: `windlass worker --allow-unsafe`, or allow_unsafe=True")


def export_allow_unsafe(allow_unsafe: bool) -> None:
    """Pass the setting on to the processes that start from now on, through the environment."""
    if allow_unsafe:
        os.environ[ALLOW_UNSAFE] = "1"
    else:
        os.environ.pop(ALLOW_UNSAFE, None)


def apply_allow_unsafe(app: Windlass) -> None:
    """In a process of a worker: apply the supervisor's --allow-unsafe to this process's copy of the app."""
    if os.environ.get(ALLOW_UNSAFE) == "1":
        app.tolerate_eviction()
