"""What the options of the commands have in common: a variable for each, and values such as durations and sizes."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import rich_click as click

from windlass.errors import InvalidInput
from windlass.values.durations import milliseconds

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(?:i?B)?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def option_of(command: str) -> Callable[..., Decorator]:
    """The options of one command: the variable of `--max-jobs` of `worker` is `WINDLASS_WORKER_MAX_JOBS`."""

    def option(flag: str, *more: str, **settings: Any) -> Decorator:
        variable = f"WINDLASS_{command}_{flag.removeprefix('--')}".upper().replace("-", "_")
        return click.option(flag, *more, envvar=variable, show_envvar=True, **settings)

    return option


def json_option(command: Command) -> Command:
    """`--json`, for all that can be read by a program."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="WINDLASS_JSON",
        show_envvar=True,
        help="Print JSON, and nothing else.",
    )(command)


def yes_option(command: Command) -> Command:
    """`--yes`, for all that cannot be taken back."""
    return click.option("--yes", "-y", is_flag=True, envvar="WINDLASS_YES", show_envvar=True, help="Do not ask.")(
        command
    )


def url_option(command: Command) -> Command:
    """`--url`: which server."""
    return click.option(
        "--url",
        envvar="WINDLASS_URL",
        show_envvar=True,
        help="The server, like redis://localhost:6379/0. Without one: the embedded server.",
    )(command)


def layout_option(command: Command) -> Command:
    """`--layout`: queues that speak the keys of another system. All apps look into the variable."""

    def put(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        from windlass.app import read_layouts

        try:
            read_layouts(given)
        except InvalidInput as error:
            raise click.BadParameter(str(error)) from None
        if given:  # for every app that this command makes, here and in the processes of a worker
            context.call_on_close(functools.partial(_restore, os.environ.get("WINDLASS_LAYOUTS", "")))
            os.environ["WINDLASS_LAYOUTS"] = " ".join(given)
        return given

    return click.option(
        "--layout",
        metavar="[QUEUE=]LAYOUT",
        multiple=True,
        envvar="WINDLASS_LAYOUTS",
        show_envvar=True,
        expose_value=False,
        callback=put,
        help="The queue has the layout of another system (see `windlass layouts`); without a queue, all have it.",
    )(command)


def _restore(layouts: str) -> None:
    os.environ["WINDLASS_LAYOUTS"] = layouts


def app_option(help: str) -> Decorator:
    """`--app`: an app in Python."""
    return click.option("--app", "app_name", metavar="MODULE:APP", envvar="WINDLASS_APP", show_envvar=True, help=help)


if TYPE_CHECKING:
    FloatType = click.ParamType[float]
else:
    FloatType = click.ParamType  # older versions of click have no types there


class _Duration(FloatType):
    name = "duration"

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        flag = param.opts[0] if param else "it"
        try:
            given = float(text) if _is_number(text) else text
            return milliseconds(given, flag, least=self._least, most=self._most) / 1000
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


def duration(least: float = 0.0, most: float = 10 * 365 * 86400.0) -> FloatType:
    """A length of time in seconds, from `90`, `500ms`, `30s`, `5m` or `1h30m`."""
    return _Duration(least, most)


def byte_size(given: object) -> int:
    """A number of bytes, from `500M` or `2G`; a thousand and twenty-four of each make the next."""
    found = _SIZE.fullmatch(str(given).strip())
    size = int(float(found[1]) * 1024 ** _POWERS[found[2]]) if found else 0
    if size <= 0:
        raise click.BadParameter(f"{given!r} is no size: write 500M or 2G")
    return size


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
