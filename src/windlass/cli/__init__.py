"""The command line: the names of the commands, and how an error becomes one line and an exit code.

The module of a command is imported when that command runs, so that `windlass --help` stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import rich_click as click

from windlass import __version__
from windlass.cli.exit_codes import exit_code
from windlass.errors import WindlassError
from windlass.values.printable import in_lines

# Each command is the function of its name in the module of its name. `windlass --help` shows them in these groups.
GROUPS = {
    "Run": {
        "worker": "Run the jobs of an app.",
        "stdio": "Connect programs of any language, by JSON lines on a pipe.",
        "server": "Manage the embedded server.",
    },
    "Look": {
        "status": "Show the job counts and the problems of each queue.",
        "jobs": "List the jobs of a queue, or show one job.",
        "queues": "List the queues in use.",
        "workers": "List the workers.",
        "tasks": "List the tasks and handlers of an app.",
        "schedules": "List schedules; pause, resume, run or delete one.",
        "layouts": "List the layouts, and the features of each.",
    },
    "Repair": {
        "enqueue": "Put a job on a queue.",
        "dead": "List, retry or delete dead jobs.",
        "cancel": "Cancel a job.",
        "pause": "Pause a queue: workers take no more jobs from it.",
        "resume": "Resume a paused queue.",
        "purge": "Delete the jobs of a queue.",
        "audit": "Check that every job is in its index; repair it if not.",
    },
    "Measure": {
        "doctor": "Check whether the server is safe for jobs.",
        "bench": "Measure throughput and latency on this server.",
        "demo": "Kill a child, a runner and a worker, and account for every order.",
    },
}
SUMMARIES = {name: summary for group in GROUPS.values() for name, summary in group.items()}
HIDDEN = {"dev": "Tools for people who work on Windlass."}


class _LazyCommands(click.RichGroup):
    """Lists the commands from their summaries, and imports a command when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order of GROUPS; click would sort them

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder and _load(placeholder), rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError:
            raise  # click shows the usage of the command with it
        except click.ClickException as error:
            _print_error(error.format_message())
            ctx.exit(error.exit_code)
        except WindlassError as error:
            _print_error(str(error))
            ctx.exit(exit_code(error))


def _load(placeholder: click.Command) -> click.Command:
    module = import_module(f"{__name__}.{placeholder.name}")
    command: click.Command = getattr(module, str(placeholder.name))
    return command


def _print_error(message: str) -> None:
    click.echo(f"windlass: {in_lines(message)}", err=True)


# Short metavars, without ranges, leave room for the longest variable name at 80 columns.
HELP_STYLE = {
    "options_table_column_types": ["opt_short", "opt_long", "metavar_short", "help"],
    "options_table_help_sections": ["help", "deprecated", "default", "envvar"],
    "envvar_string": "\\[env: {}]",
    "padding_helptext_first_line": (0, 0, 1, 0),
    "text_paragraph_linebreaks": "\n\n",
}


@click.group(cls=_LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="windlass %(version)s")
@click.rich_config(HELP_STYLE)
@click.command_panel("Run", commands=list(GROUPS["Run"]))
@click.command_panel("Look", commands=list(GROUPS["Look"]))
@click.command_panel("Repair", commands=list(GROUPS["Repair"]))
@click.command_panel("Measure", commands=list(GROUPS["Measure"]))
def main() -> None:
    """Windlass: a job queue on Redis or Valkey that does not lose jobs.

    You need no server: without a URL, Windlass starts a durable Valkey server of its own.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 no connection.

    \b
    Examples:
      windlass demo                    kill a worker half-way; no job is lost
      windlass worker shop.jobs:app    run your jobs
      windlass status --watch          watch the queues
      windlass server status           show the embedded server and its data
      windlass COMMAND --help          show the options of one command
    """


for _name, _summary in (SUMMARIES | HIDDEN).items():
    main.add_command(click.RichCommand(name=_name, short_help=_summary, hidden=_name in HIDDEN))
