"""The command line. Here are the names of the commands, and what becomes of an error: one line and an exit code.

A command's module is imported when that command is run, so `windlass --help` does not wait for all of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import rich_click as click

from windlass import __version__
from windlass.errors import EmbeddedError, InvalidInput, ServerLoading, ServerUnreachable, WindlassError

FAILED, USAGE, UNREACHABLE = 1, 2, 4

# Each command is the function of its name in the module of its name.
SUMMARIES = {
    "demo": "Watch a queue survive a kill -9, and account for every job.",
    "worker": "Run the jobs of an app, until it is told to stop.",
    "enqueue": "Put a job on a queue.",
    "status": "Show how many jobs each queue has, and what is amiss.",
    "queues": "Name all queues that are in use.",
    "workers": "List the workers that are there, and what they do.",
    "tasks": "List the tasks and handlers of an app.",
    "jobs": "List the jobs of a queue, or show one of them.",
    "dead": "Look after jobs that failed for good.",
    "schedules": "Look after schedules: what is enqueued by the clock.",
    "cancel": "Take a job away.",
    "pause": "Stop giving out the jobs of a queue.",
    "resume": "Give out the jobs of a paused queue again.",
    "purge": "Delete the jobs of a queue.",
    "doctor": "Look whether the server can be trusted with jobs.",
    "audit": "Look whether every job is in its place.",
    "bench": "Measure how fast it is on this server, and what limits it.",
    "layouts": "Show the layouts that a queue can have, and what each can do.",
    "stdio": "Serve jobs and workers by lines of JSON, on a pipe.",
    "server": "Look after the embedded server.",
}


def exit_code(error: WindlassError) -> int:
    """What the shell is told about an error."""
    if isinstance(error, ServerUnreachable | ServerLoading | EmbeddedError):
        return UNREACHABLE
    return USAGE if isinstance(error, InvalidInput) else FAILED


class _Commands(click.RichGroup):
    """Commands that are listed from `SUMMARIES`, in that order, and imported when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, outline, rest = super().resolve_command(ctx, args)
        return name, outline and _load(outline), rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise  # comes with the usage of its command
        except click.ClickException as error:
            _complain(error.format_message())
            ctx.exit(error.exit_code)
        except WindlassError as error:
            _complain(str(error))
            ctx.exit(exit_code(error))


def _load(outline: click.Command) -> click.Command:
    module = import_module(f"{__name__}.{outline.name}")
    command: click.Command = getattr(module, str(outline.name))
    return command


def _complain(message: str) -> None:
    click.echo(f"windlass: {message}", err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="windlass %(version)s")
@click.rich_config({"text_paragraph_linebreaks": "\n\n"})
def main() -> None:
    """Windlass: a job queue on Redis or Valkey that does not let a job slip.

    No server has to be set up: without a URL, Windlass keeps its jobs in a durable Valkey of its own.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the server cannot be reached.

    \b
      windlass demo                    a worker is killed half-way; nothing is lost
      windlass worker shop.jobs:app    run your jobs
      windlass status --watch          how it goes
      windlass server status           where your jobs are if you name no server
      windlass COMMAND --help          all about one command
    """


for _name, _summary in SUMMARIES.items():
    main.add_command(click.RichCommand(name=_name, short_help=_summary))
