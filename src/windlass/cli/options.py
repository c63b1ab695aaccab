"""Options that several commands share, the variable of each option, and the types of durations and sizes."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from windlass.errors import InvalidInput
from windlass.values.durations import milliseconds
from windlass.values.validation import check_name

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(?:i?B)?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def option_of(command: str) -> Callable[..., Decorator]:
    """The options of one command: the variable of `--max-jobs` of `worker` is `WINDLASS_WORKER_MAX_JOBS`."""

    def option(flag: str, *more: str, **settings: Any) -> Decorator:
        variable = f"WINDLASS_{command}_{flag.removeprefix('--')}".upper().replace("-", "_")
        return _option(variable, flag, *more, **settings)

    return option


def _option(variable: str, *flags: str, **settings: Any) -> Decorator:
    return click.option(*flags, envvar=variable, show_envvar=True, **settings)


# -- shared options --------------------------------------------------------------------------------


json_option = _option("WINDLASS_JSON", "--json", "as_json", is_flag=True, help="Print JSON only.")

yes_option = _option("WINDLASS_YES", "--yes", "-y", is_flag=True, help="Do not ask for confirmation.")

home_option = _option(
    "WINDLASS_HOME",
    "--home",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The data home: the folder of the server's data, socket and log. By default, the platform's user data folder.",
)

url_option = _option(
    "WINDLASS_URL",
    "--url",
    metavar="URL",
    help="The server, like redis://localhost:6379/0. By default, the embedded server.",
)

queues_argument = click.argument("queues", nargs=-1, metavar="[QUEUE]...")


def app_option(help: str) -> Decorator:
    """`--app`: an app in Python."""
    return _option("WINDLASS_APP", "--app", "app_name", metavar="MODULE:APP", help=help)


def layout_option(command: Command) -> Command:
    """`--layout`: queues that use the keys of another system. Every app reads the variable when it is made."""

    def export(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
        from windlass.app import read_layouts

        try:
            read_layouts(given)
        except InvalidInput as error:
            raise click.BadParameter(str(error)) from None
        if given:  # for each app that this command makes, also in the processes of a worker
            _set_variable(context, "WINDLASS_LAYOUTS", " ".join(given))
        return given

    return _option(
        "WINDLASS_LAYOUTS",
        "--layout",
        metavar="[QUEUE=]LAYOUT",
        multiple=True,
        expose_value=False,
        callback=export,
        help="The layout of QUEUE, or of all queues. `windlass layouts` lists them. May be repeated.",
    )(command)


def namespace_option(command: Command) -> Command:
    """`--namespace`: the namespace of the command's app. Every app without one of its own reads the variable."""

    def export(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
        try:
            given = check_name(given, "namespace") if given else given
        except InvalidInput as error:
            raise click.BadParameter(str(error)) from None
        if given is not None:
            _set_variable(context, "WINDLASS_NAMESPACE", given)
        return given

    return _option(
        "WINDLASS_NAMESPACE",
        "--namespace",
        metavar="NAME",
        callback=export,
        help="Use the queues and workers of this namespace. By default, those without one.",
    )(command)


def _set_variable(context: click.Context, name: str, value: str) -> None:
    """Set a variable of the environment for the time of a command."""
    context.call_on_close(functools.partial(os.environ.__setitem__, name, os.environ.get(name, "")))
    os.environ[name] = value


# -- types -----------------------------------------------------------------------------------------

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
    """Seconds, from `90`, `500ms`, `30s`, `5m` or `1h30m`."""
    return _Duration(least, most)


def byte_size(given: object) -> int:
    """Bytes, from `500M` or `2G`; each unit is 1024 times the one before."""
    found = _SIZE.fullmatch(str(given).strip())
    size = int(float(found[1]) * 1024 ** _POWERS[found[2]]) if found else 0
    if size <= 0:
        raise click.BadParameter(f"{given!r} is not a size: write 500M or 2G")
    return size


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
