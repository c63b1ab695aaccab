"""Errors of jobs as text: what Python prints, with causes, contexts, notes and groups, most recent call last.

Frames of Windlass are left out, because they do not help the user; `show_windlass_frames` brings them back. Values of
variables are never shown.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

from windlass.values.validation import MAX_MESSAGE

MAX_LOGGED_BYTES = 128 * 1024  # of one traceback in the log: far more than any that a person reads
_FEWER_FRAMES = (16, 8, 4, 2)  # of each error in a chain, tried in turn until the text fits
_WORKER_FOLDER = str(Path(__file__).parent) + os.sep
_WINDLASS_FOLDER = str(Path(__file__).parent.parent) + os.sep

_shows_windlass = False


def show_windlass_frames(shown: bool) -> None:
    """Choose whether the tracebacks of this process show frames of Windlass."""
    global _shows_windlass
    _shows_windlass = shown


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames that lead to the user's function, and without Windlass' own."""
    frames = list(_frames(error.__traceback__))
    if _shows_windlass or all(map(_is_windlass, frames)):
        return error.__traceback__
    while _is_windlass(frames[-1]):
        frames.pop()  # below the user's code
    calls = [place for place, each in enumerate(frames) if _file(each).startswith(_WORKER_FOLDER)]
    kept = [each for each in frames[calls[-1] + 1 if calls else 0 :] if not _is_windlass(each)]
    trace = None
    for each in reversed(kept):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _file(trace: TracebackType) -> str:
    return trace.tb_frame.f_code.co_filename


def _is_windlass(trace: TracebackType) -> bool:
    return _file(trace).startswith(_WINDLASS_FOLDER)


# -- text --------------------------------------------------------------------------------------------


class _Frames(traceback.StackSummary):
    """Frames that are formatted without those in the middle, if there are more than `most`."""

    most = 0

    def format(self, **options: Any) -> list[str]:
        lines = super().format(**options)
        extra = len(lines) - self.most
        return lines if extra <= 1 else [lines[0], f"  [{extra} frames left out]\n", *lines[extra + 1 :]]


def format_error(error: BaseException, trace: TracebackType | None, room: int = MAX_LOGGED_BYTES) -> str:
    """Format an error as Python does, in at most `room` bytes: if it is too long, frames in the middle are left out."""
    if isinstance(error, ErrorInChild):
        return _cut(error.traceback, room)
    report = traceback.TracebackException(type(error), error, trace, compact=True)
    text = "".join(report.format()).rstrip()
    for most in _FEWER_FRAMES:
        if _size(text) <= room:
            break
        _keep_frames(report, most)
        text = "".join(report.format()).rstrip()
    return _cut(text, room)


def _keep_frames(report: traceback.TracebackException, most: int) -> None:
    links = [report]
    for link in links:
        links += [each for each in (link.__cause__, link.__context__, *(link.exceptions or ())) if each is not None]
        stack = link.stack = _Frames(link.stack)
        stack.most = most


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _cut(text: str, room: int) -> str:
    """Leave out the middle of a text: an error ends with its type and message, which matter most."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= room:
        return data.decode()
    mark = "\n[…]\n"
    head, tail = room // 4, room - room // 4 - _size(mark)
    return data[:head].decode("utf-8", "ignore") + mark + data[-tail:].decode("utf-8", "ignore")


def describe(error: BaseException) -> str:
    """Format an error for its job's record: a line with type and message, then the traceback with causes and notes."""
    try:
        lines = traceback.format_exception_only(error)
        title = next((line for line in lines if not line.startswith(" ")), lines[0]).partition("\n")[0]
        return title_and_trace(title, error)
    except Exception:  # the error's own methods raised
        return type(error).__name__


def title_and_trace(title: str, error: BaseException) -> str:
    """A title, and the error's traceback in the room that is left in a job's record."""
    room = MAX_MESSAGE - _size(title) - 1
    if room < MAX_MESSAGE // 8:
        return title  # a very long message: a few bytes of its traceback would not help
    text = format_error(error, user_traceback(error), room)
    return text if text.startswith(title) else f"{title}\n{text}"  # without a traceback, the text is the title


# -- errors in children ------------------------------------------------------------------------------


class ErrorText(TypedDict):
    """An error as a child process sends it to its runner."""

    module: str
    type: str
    message: str
    traceback: str


class ErrorInChild(Exception):
    """Stands for an error in a child process, for the log: its class has the name of the error's class."""

    traceback: str


class _Traceback(Exception):
    """The traceback of an error in a child, as the cause of what stands for it: so any formatter shows it."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}\n"""'


def error_text(error: BaseException) -> ErrorText:
    """Return the text of an error, for another process."""
    kind = type(error)
    try:
        message = _cut(str(error), MAX_MESSAGE)
        text = format_error(error, user_traceback(error))
    except Exception:  # the error's own methods raised
        message = text = ""
    return {"module": kind.__module__, "type": kind.__qualname__, "message": message, "traceback": text}


def error_in_child(text: ErrorText) -> ErrorInChild:
    """Return what stands for an error of a child. Its class is empty: nothing of the child's class is imported."""
    name = text["type"]
    kind = type(name.rpartition(".")[2], (ErrorInChild,), {"__module__": text["module"], "__qualname__": name})
    error: ErrorInChild = kind(text["message"])
    error.traceback = text["traceback"]
    error.__cause__ = _Traceback(text["traceback"])
    return error
