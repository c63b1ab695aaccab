"""The name of a task: by default its module and function, `shop.jobs.send_mail`.

Projects that share a queue then do not run each other's tasks, although both have a function `send_mail`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.errors import InvalidTask
from windlass.tasks.envelope import MAX_TASK_NAME

_PROGRAMS = ("__main__", "__mp_main__")  # the module of the program itself, here and in children of multiprocessing


def default_name(function: Callable[..., Any]) -> str:
    """The module and the qualified name of a function. Without a module, such as in a console: the function's name."""
    own = getattr(function, "__qualname__", None) or short_name(function)
    module = _module_of(function)
    return f"{module}.{own.replace('<locals>.', '')}" if module else short_name(function)


def short_name(function: Callable[..., Any]) -> str:
    """The name of the function alone."""
    return str(getattr(function, "__name__", repr(function)))


def _module_of(function: Callable[..., Any]) -> str | None:
    name = getattr(function, "__module__", None)
    return _program_name(name) if name in _PROGRAMS else name


def _program_name(module: str) -> str | None:
    """The name under which a worker imports the module that runs as the program; `None` in a console."""
    program = sys.modules.get(module)
    spec = getattr(program, "__spec__", None)  # of `python -m shop.jobs`
    if spec is not None:
        return str(spec.name)
    path = getattr(program, "__file__", None)  # of `python shop/jobs.py`
    if path is None:
        return None
    file = Path(path).absolute()
    folders = [file.stem]
    for folder in file.parents:
        if not (folder / "__init__.py").exists():
            break
        folders.append(folder.name)
    return ".".join(reversed(folders))


def check_task_name(name: object) -> str:
    """Check a task name: printable text without spaces."""
    if isinstance(name, str) and (name == "<lambda>" or name.endswith(".<lambda>")):
        raise InvalidTask("a lambda has no name of its own: pass name=…, or write a def")
    if not isinstance(name, str) or not name.isprintable() or " " in name or not 1 <= len(name) <= MAX_TASK_NAME:
        raise InvalidTask(
            f"{name!r} is not a task name: pass name=… with 1 to {MAX_TASK_NAME} printable characters without spaces"
        )
    return name
