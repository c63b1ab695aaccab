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
    "server": "Look after the embedded server.",
}


def exit_code(error: WindlassError) -> int:
    """What the shell is told about an error."""
    if isinstance(error, ServerUnreachable | ServerLoading | EmbeddedError):
        return UNREACHABLE
    return USAGE if isinstance(error, InvalidInput) else FAILED


class _Commands(click.RichGroup):
    """Commands that are listed from `SUMMARIES` and imported when they are run."""

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
      windlass demo             a worker is killed half-way; nothing is lost
      windlass server status    where your jobs are if you name no server
      windlass COMMAND --help   all about one command
    """


for _name, _summary in SUMMARIES.items():
    main.add_command(click.RichCommand(name=_name, short_help=_summary))
