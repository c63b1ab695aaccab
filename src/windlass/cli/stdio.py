"""`windlass stdio`: the service on standard input and output."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import rich_click as click

from windlass.app import Windlass
from windlass.cli import exit_code
from windlass.cli.connect import PATIENCE
from windlass.cli.options import duration, option_of, url_option
from windlass.errors import WindlassError

if TYPE_CHECKING:
    from windlass.stdio.messages import Identity

RETRY_FOR = 30.0  # seconds: a message that cannot be carried out is lost, so it is tried for long
_option = option_of("stdio")


def _tick(given: str) -> float | None:
    return None if given == "off" else duration(0.1, 60)(given)


@click.command()
@_option(
    "--layout",
    type=click.Choice(["processor", "native"]),
    default="processor",
    show_default=True,
    help="Whose keys: those of Processor Job Queue, or Windlass's own.",
)
@_option(
    "--tick",
    type=_tick,
    metavar="DURATION|off",
    default="3s",
    show_default=True,
    help="How often it looks by itself for lost workers and jobs; off: only when a tick message comes.",
)
@url_option
def stdio(layout: str, tick: float | None, url: str | None) -> None:
    """Serve jobs and workers by lines of JSON, on a pipe.

    It reads one message a line: add_job, worker_idle, job_accepted, worker_progress, worker_busy, job_finished, tick
    and list requests. It writes job_assignment and the answers to list requests, and JSON log lines on standard
    error. A line that is no message is logged and passed over. When its input ends it ends, with all done.

    With --layout native the jobs are those of a plain Windlass queue, so a program in any language can be its worker.

    Its name in messages, and its namespaces, come from SERVICE_NAME, SERVICE_UUID, SERVICE_HOST, NAMESPACE_LISTENER
    and NAMESPACE_PUBLISHER. The protocol is in docs/stdio.md, its JSON Schema in docs/stdio.schema.json.

    \b
      windlass stdio < messages.jsonl
      mkfifo back; my-worker < back | windlass stdio --layout native > back
      mosquitto_sub -t 'default/#' | windlass stdio | my-publisher
    \b
      {"topic": "default/job_queue/add_job",
       "payload": {"uuid": "7b0e…", "queue_name": "ffmpeg", "args": ["-i", 1]}}
      {"topic": "default/job_queue/workers/91ce…/worker_idle",
       "service_uuid": "91ce…", "created_at": "2026-11-16T05:00:00.000Z",
       "payload": {"queue_name": "ffmpeg"}}
    """
    from windlass.stdio.logs import set_up_logs

    set_up_logs()
    with Windlass(url, retry_for=RETRY_FOR) as app:
        sys.exit(asyncio.run(_serve(app, layout, tick)))


async def _serve(app: Windlass, layout: str, tick: float | None) -> int:
    from windlass.stdio import serve
    from windlass.stdio.native import NativeDispatcher
    from windlass.stdio.processor import ProcessorDispatcher
    from windlass.stdio.service import log

    dispatcher = NativeDispatcher(app) if layout == "native" else ProcessorDispatcher(app)
    knock = dispatcher.layout("windlass").counts()
    try:
        await app.arun(lambda session: session.perform(knock, PATIENCE))
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
