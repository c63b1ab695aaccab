"""`windlass worker`: the options of a worker, and its start."""

from __future__ import annotations

import sys

import rich_click as click

from windlass.cli.options import byte_size, duration, layout_option, option_of
from windlass.errors import InvalidInput
from windlass.values.validation import check_name, check_whole
from windlass.worker.settings import Settings, worker_name

DEFAULTS = Settings("", {})
MAX_COROUTINES = 10_000
MAX_AUTO_COROUTINES = 1000  # the upper bound of --concurrency auto
LOG_FORMATS = ("auto", "text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

_option = option_of("worker")


def _queue(given: str) -> tuple[str, int]:
    """A name or a pattern, and a weight, from `emails`, `emails=3` or `mail-*`."""
    name, _, weight = given.partition("=")
    try:
        return name, check_whole(int(weight) if weight.isdecimal() else weight or 1, "weight", 1, 1000)
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from None


def _concurrency(given: object) -> int | None:
    """A whole number, or None for auto."""
    if given == "auto":
        return None
    text = str(given)
    if not text.isdecimal() or not 1 <= int(text) <= MAX_COROUTINES:
        raise click.BadParameter(f"{given!r} is neither auto nor a number from 1 to {MAX_COROUTINES:,}")
    return int(text)


_OF_THE_APP = {
    "--url": 'it uses the server of its app, from Windlass("redis://…") or WINDLASS_URL',
    "--namespace": 'it uses the namespace of its app, from Windlass(namespace="…") or WINDLASS_NAMESPACE',
}


class _WorkerCommand(click.RichCommand):
    """Explains why there is no `--url` and no `--namespace`, which all other commands have."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in _OF_THE_APP:
                raise
            raise click.UsageError(
                f"worker has no {error.option_name}: {_OF_THE_APP[error.option_name]}", ctx
            ) from None


@click.command(cls=_WorkerCommand)
@click.argument("target", metavar="MODULE:APP", envvar="WINDLASS_APP")
@_option(
    "--queue",
    "-q",
    "queues",
    type=_queue,
    metavar="NAME[=WEIGHT]",
    multiple=True,
    help="Work on this queue only, or on the app's queues of a pattern, such as 'mail-*'. May be repeated. By default, "
    "all queues of the app.",
)
@_option(
    "--concurrency",
    "-c",
    type=_concurrency,
    metavar="N|auto",
    default=DEFAULTS.concurrency,
    show_default=True,
    help="Maximum number of concurrent coroutines; auto adapts it to the CPU load.",
)
@_option(
    "--threads",
    "-t",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=DEFAULTS.threads,
    show_default=True,
    help="Number of threads, for tasks that run in threads.",
)
@_option(
    "--processes",
    "-p",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=DEFAULTS.processes,
    show_default=True,
    help="Number of child processes, for tasks that run in processes.",
)
@_option(
    "--lease",
    type=duration(1, 3600),
    metavar="DURATION",
    default="15s",
    show_default=True,
    help="If this worker dies, other workers take over its jobs after this time.",
)
@_option(
    "--grace",
    type=duration(0, 86400),
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="At shutdown, let running jobs finish for this time.",
)
@_option(
    "--kill-grace",
    type=duration(0, 3600),
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="Kill the process of a job that does not stop within this time.",
)
@_option(
    "--max-jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replace a process after this number of jobs.",
)
@_option(
    "--max-rss",
    type=byte_size,
    metavar="SIZE",
    help="Replace a process that uses more memory than this, like 500M.",
)
@_option("--name", metavar="NAME", help="Prefix of the worker's name. A random suffix makes the name unique.")
@_option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    metavar="FORMAT",
    default="auto",
    show_default=True,
    help="text, json, or auto: text on a terminal, JSON elsewhere.",
)
@_option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    metavar="LEVEL",
    default=DEFAULTS.log_level,
    show_default=True,
    help="Minimum log level: debug, info, warning or error.",
)
@_option("--log-jobs", is_flag=True, help="Log each finished job and its duration.")
@layout_option
@_option("--log-arguments", is_flag=True, help="Log the payloads of jobs, with all arguments.")
@_option(
    "--watch",
    is_flag=True,
    help="Restart the processes when a file of the program changes. Needs the package watchfiles.",
)
@_option("--full-tracebacks", is_flag=True, help="Show frames of Windlass in the tracebacks of jobs, too.")
@_option("--raw-output", is_flag=True, help="Pass on what jobs print unchanged, with control characters.")
@_option(
    "--allow-unsafe",
    is_flag=True,
    help="Start even if the server may lose jobs (see `windlass doctor`). The worker logs each danger.",
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
    full_tracebacks: bool,
    raw_output: bool,
    watch: bool,
    allow_unsafe: bool,
) -> None:
    """Run the jobs of an app.

    The worker serves all queues for which the app has a task, a handler or a schedule; --queue selects some of them.
    While all queues have jobs, each queue gets a share of the work according to its weight.

    On Ctrl-C or SIGTERM, the worker takes no new jobs and finishes the running jobs. On a second signal, it releases
    the running jobs. On a third signal, it exits at once. No job is lost in any case: other workers
    take over the jobs of a killed worker.

    \b
    Examples:
      windlass worker shop.jobs:app
      windlass worker shop.jobs:app -q emails=3 -q media
      windlass worker shop.jobs:app -c 200 -p 8 -t 16 --max-rss 500M
      windlass worker shop.jobs:app --watch     reload on changes
    """
    from windlass.worker.app_loading import check_app_name
    from windlass.worker.logs import LogFormat, choose_format, set_up_logs
    from windlass.worker.supervisor.supervisor import run_worker

    check_app_name(target)
    chosen: LogFormat = log_format  # type: ignore[assignment]  # click.Choice checked it
    settings = Settings(
        name=_name(name),
        queues=_weights(queues),
        concurrency=concurrency or MAX_AUTO_COROUTINES,
        auto=concurrency is None,
        threads=threads,
        processes=processes,
        lease=lease,
        grace=grace,
        kill_grace=kill_grace,
        max_jobs=max_jobs,
        max_rss=max_rss,
        watch=watch,
        log_format=choose_format(chosen),
        log_level=log_level,
        log_arguments=log_arguments,
        log_jobs=log_jobs,
        allow_unsafe=allow_unsafe,
        raw_output=raw_output,
        full_tracebacks=full_tracebacks,
    )
    set_up_logs(settings.log_format, settings.log_level)
    sys.exit(run_worker(target, settings))


def _weights(queues: tuple[tuple[str, int], ...]) -> dict[str, int]:
    weights = dict(queues)
    if len(weights) < len(queues):
        raise click.UsageError("a queue is given twice: give each queue once, with its weight")
    return weights


def _name(given: str | None) -> str:
    """A unique name: with a used name, this worker would seem to hold the jobs of a dead worker."""
    return worker_name(check_name(given, "worker")[:100] if given is not None else None)
