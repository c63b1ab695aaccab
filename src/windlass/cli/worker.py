"""`windlass worker`: run the jobs of an app."""

from __future__ import annotations

import sys

import rich_click as click

from windlass.cli.options import byte_size, duration, layout_option, option_of
from windlass.errors import InvalidInput
from windlass.values.validation import check_name, check_whole
from windlass.worker.settings import Settings, worker_name

DEFAULTS = Settings("", {})
MOST_COROUTINES = 10_000
MOST_BY_ITSELF = 1000  # with --concurrency auto
LEVELS = ("debug", "info", "warning", "error")

_option = option_of("worker")


def _queue(given: str) -> tuple[str, int]:
    name, _, weight = given.partition("=")
    try:
        return name, check_whole(int(weight) if weight.isdecimal() else weight or 1, "weight", 1, 1000)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from None


def _count(given: object) -> int | None:
    """A whole number, or None for auto."""
    if given == "auto":
        return None
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= MOST_COROUTINES:
        raise click.BadParameter(f"{given!r} is neither auto nor a number from 1 to {MOST_COROUTINES:,}")
    return int(text)


class _WorkerCommand(click.RichCommand):
    """Says why there is no `--url`, which all other commands have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name != "--url":
                raise
            raise click.UsageError(
                'there is no --url: a worker uses the server of its app, Windlass("redis://…") or WINDLASS_URL',
                ctx,
            ) from None


@click.command(cls=_WorkerCommand)
@click.argument("target", metavar="MODULE:APP", envvar="WINDLASS_APP")
@_option(
    "--queue",
    "queues",
    type=_queue,
    metavar="NAME[=WEIGHT]",
    multiple=True,
    help="Only this queue; again for more. By default all.",
)
@_option(
    "--concurrency",
    type=_count,
    metavar="N|auto",
    default=DEFAULTS.concurrency,
    show_default=True,
    help="How many coroutines at a time; auto goes by how busy the processor is.",
)
@_option(
    "--threads", type=click.IntRange(1, 1000), default=DEFAULTS.threads, show_default=True, help="How many threads."
)
@_option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=DEFAULTS.processes,
    show_default=True,
    help="How many processes, for tasks that run in one.",
)
@_option(
    "--lease",
    type=duration(1, 3600),
    metavar="DURATION",
    default="15s",
    show_default=True,
    help="After how long without a sign of life others take over the jobs.",
)
@_option(
    "--grace",
    type=duration(0, 86400),
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="How long running jobs may go on when the worker is told to stop.",
)
@_option(
    "--kill-grace",
    type=duration(0, 3600),
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="How long a job that must stop may take before its process is killed.",
)
@_option("--max-jobs", type=click.IntRange(min=1), help="Take a fresh process after so many jobs.")
@_option(
    "--max-rss", type=byte_size, metavar="SIZE", help="Take a fresh process when it is larger than this, like 500M."
)
@_option("--name", help="The beginning of the worker's name; a random ending makes it unique.")
@_option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="auto is text on a terminal, and JSON elsewhere.",
)
@_option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default=DEFAULTS.log_level,
    show_default=True,
    help="What is worth a line.",
)
@_option("--log-jobs", is_flag=True, help="A line for each job that is done, with the time it took.")
@layout_option
@_option("--log-arguments", is_flag=True, help="Put the payloads of jobs into the log, arguments and all.")
@_option("--watch", is_flag=True, help="Take up new code when a file of the program changes.")
@_option(
    "--allow-unsafe",
    is_flag=True,
    help="Start also on a server that may lose jobs (see `windlass doctor`); what is ignored is logged.",
)
def worker(
    target: str,
    queues: tuple[tuple[str, int], ...],
    concurrency: int | None,
    threads: int,
    processes: int,
    lease: float,
    grace: float,
    kill_grace: float,
    max_jobs: int | None,
    max_rss: int | None,
    name: str | None,
    log_format: str,
    log_level: str,
    log_jobs: bool,
    log_arguments: bool,
    watch: bool,
    allow_unsafe: bool,
) -> None:
    """Run the jobs of an app, until it is told to stop.

    It works on all queues that the app has a task or handler for; --queue chooses some of them, and their weights
    say which share of the work each gets while all have jobs.

    Ctrl-C, or SIGTERM, once: no new jobs, and those that run may finish. Twice: they are given back now. Thrice: it
    ends at once. However it ends, no job is lost; what a killed worker had is taken over by others.

    \b
      windlass worker shop.jobs:app
      windlass worker shop.jobs:app --queue emails=3 --queue media
      windlass worker shop.jobs:app --processes 8 --max-rss 500M
      windlass worker shop.jobs:app --watch     while you write it
    """
    from windlass.worker.app_loading import check_app_name
    from windlass.worker.logs import LogFormat, choose_format, set_up_logs
    from windlass.worker.supervisor.supervisor import run_worker

    check_app_name(target)
    wanted: LogFormat = log_format  # type: ignore[assignment]  # one of its choices
    settings = Settings(
        name=_name(name),
        queues=_weights(queues),
        concurrency=concurrency or MOST_BY_ITSELF,
        auto=concurrency is None,
        threads=threads,
        processes=processes,
        lease=lease,
        grace=grace,
        kill_grace=kill_grace,
        max_jobs=max_jobs,
        max_rss=max_rss,
        watch=watch,
        log_format=choose_format(wanted),
        log_level=log_level,
        log_arguments=log_arguments,
        log_jobs=log_jobs,
        allow_unsafe=allow_unsafe,
    )
    set_up_logs(settings.log_format, settings.log_level)
    sys.exit(run_worker(target, settings))


def _weights(queues: tuple[tuple[str, int], ...]) -> dict[str, int]:
    weights = dict(queues)
    if len(weights) < len(queues):
        raise click.UsageError("a queue is named twice: give each once, with its weight")
    return weights


def _name(given: str | None) -> str:
    """Never the same twice: what a dead worker of the same name held would look as if this one held it."""
    return worker_name(check_name(given, "worker")[:100] if given is not None else None)
