"""`windlass stdio`: run the service on standard input and output."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import RETRY_FOR_S
from windlass.cli.exit_codes import exit_code
from windlass.cli.options import duration, namespace_option, option_of, url_option
from windlass.errors import WindlassError

if TYPE_CHECKING:
    from windlass.stdio.messages import Identity

MESSAGE_RETRY_FOR_S = 30.0  # long, because the service drops a message that still fails then
_option = option_of("stdio")


def _tick(given: str) -> float | None:
    return None if given == "off" else duration(0.1, 60)(given)


@click.command()
@_option(
    "--layout",
    type=click.Choice(["processor", "native"]),
    default="processor",
    show_default=True,
    metavar="LAYOUT",
    help="The keys of the queues: processor (Processor Job Queue) or native (Windlass).",
)
@_option(
    "--tick",
    type=_tick,
    metavar="DURATION|off",
    default="3s",
    show_default=True,
    help="Interval of the checks for lost workers and jobs. With off, only a tick message starts a check.",
)
@url_option
@namespace_option
def stdio(layout: str, tick: float | None, url: str | None, namespace: str | None) -> None:
    """Connect programs of any language, by JSON lines on a pipe.

    The service reads one message per line: add_job, worker_idle, job_accepted, worker_progress, worker_busy,
    job_finished, tick and list requests. It writes job_assignment messages and the answers to list requests to
    standard output, and JSON log lines to standard error. It logs an invalid line and skips it. It ends after the
    last line of its input.

    With --layout native, the service uses plain Windlass queues, so a program in any language can be a worker.

    The variables SERVICE_NAME, SERVICE_UUID, SERVICE_HOST, NAMESPACE_LISTENER and NAMESPACE_PUBLISHER set its name and
    its namespaces. docs/stdio.md describes the protocol, docs/stdio.schema.json is its JSON Schema.

    \b
    Examples:
      windlass stdio < messages.jsonl
      mkfifo back; my-worker < back | windlass stdio --layout native > back
      mosquitto_sub -t 'default/#' | windlass stdio | my-publisher
    Messages:
      {"topic": "default/job_queue/add_job",
       "payload": {"uuid": "7b0e…", "queue_name": "ffmpeg", "args": ["-i", 1]}}
      {"topic": "default/job_queue/workers/91ce…/worker_idle",
       "service_uuid": "91ce…", "created_at": "2026-11-16T05:00:00.000Z",
       "payload": {"queue_name": "ffmpeg"}}
    """
    from windlass.stdio.logs import set_up_logs

    set_up_logs()
    with Windlass(url, namespace=namespace, retry_for=MESSAGE_RETRY_FOR_S) as app:
        sys.exit(asyncio.run(_serve(app, layout, tick)))


async def _serve(app: Windlass, layout: str, tick: float | None) -> int:
    from windlass.stdio import serve
    from windlass.stdio.native import NativeDispatcher
    from windlass.stdio.processor import ProcessorDispatcher
    from windlass.stdio.service import log

    dispatcher = NativeDispatcher(app) if layout == "native" else ProcessorDispatcher(app)
    probe = dispatcher.layout("windlass").counts()  # a wrong URL must fail before the first message
    try:
        await app._flows.arun(lambda session: session.perform(probe, RETRY_FOR_S))
    except WindlassError as error:
        log.error("%s", error)
        return exit_code(error)
    return await serve(app, dispatcher, _identity(), tick)


def _identity() -> Identity:
    from windlass.stdio.messages import Identity

    return Identity(
        service_name=os.environ.get("SERVICE_NAME", "job_queue"),
        service_uuid=os.environ.get("SERVICE_UUID") or str(uuid4()),
        service_host=os.environ.get("SERVICE_HOST") or socket.gethostname(),
        listener=os.environ.get("NAMESPACE_LISTENER", "default"),
        publisher=os.environ.get("NAMESPACE_PUBLISHER", "default"),
    )
