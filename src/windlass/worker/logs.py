"""A worker's logs: text on a terminal, one JSON object per line elsewhere. Neither holds the arguments of jobs.

All processes of a worker share one format. The supervisor writes to standard error. The others write into a pipe to the
supervisor, and put the worker's mark at the start of each log line: so no output of a job passes for a log line.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal, TextIO

import msgspec
from msgspec import Struct

from windlass.tasks.log_fields import JOB_FIELDS, JobLogFilter
from windlass.values.printable import in_json, in_lines, in_one_line
from windlass.worker.output import STDERR
from windlass.worker.tracebacks import format_error, show_windlass_frames

LogFormat = Literal["auto", "text", "json"]
OWN_LOGGER = "windlass"
_MARKS = {"WARNING": "!", "ERROR": "✗", "CRITICAL": "✗"}
_OWN_FIELDS = ("outcome", "failed_id", "data")  # only in records about the end of an attempt


class LogOptions(Struct, frozen=True):
    """How the processes of a worker log. Log lines of runners and children begin with `mark`, which no job knows."""

    format: Literal["text", "json"]
    level: str
    mark: str
    full_tracebacks: bool = False


# -- formats -----------------------------------------------------------------------------------------


class TextFormatter(logging.Formatter):
    """Formats a line such as "14:03:22 ! welcome emails/42: failed …". The lines below it are indented."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {_MARKS.get(record.levelname, '·')} {_title(record)}{_text(record.getMessage())}"
        return in_lines("\n".join([text, *_details(record)]))


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line. Lines of a job also have its id, task, queue and attempt."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _iso_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": _text(record.getMessage()),
        }
        for name in (*JOB_FIELDS, *(_OWN_FIELDS if _is_own(record) else ())):
            if (value := getattr(record, name, None)) is not None:
                fields[name] = value
        if details := list(_details(record)):
            fields["error"] = "\n".join(details)
        return _json_line(fields)


def _title(record: logging.LogRecord) -> str:
    """Whose line it is: a job's, or a logger's. Records of Windlass say so themselves."""
    if _is_own(record):
        return ""
    if getattr(record, "job_id", None) is None:
        return f"{record.name}: "
    task, queue, id = (getattr(record, name, None) for name in ("task", "queue", "job_id"))
    return in_one_line(_text(f"{task or 'handler'} {queue}/{id}: "))


def _is_own(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == OWN_LOGGER


def _details(record: logging.LogRecord) -> Iterator[str]:
    if record.exc_info and record.exc_info[1] is not None:
        yield format_error(record.exc_info[1], record.exc_info[2])
    if record.stack_info:
        yield _text(record.stack_info)


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be written


def _iso_time(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1000):03d}Z"


def _json_line(fields: dict[str, Any]) -> str:
    return in_json(msgspec.json.encode(fields, enc_hook=str).decode())


def choose_format(wanted: LogFormat) -> Literal["text", "json"]:
    """Resolve `auto`. The supervisor calls this, because its runners write to pipes and never see the terminal."""
    if wanted == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return wanted


# -- in each process ---------------------------------------------------------------------------------


class _MarkedLines:
    """A stream whose lines begin with the worker's mark, on the way to the supervisor."""

    def __init__(self, stream: TextIO, mark: str) -> None:
        self._stream = stream
        self._mark = mark

    def write(self, text: str) -> int:
        lines = text.split("\n")
        self._stream.write("\n".join(self._mark + line if line else line for line in lines))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def set_up_logs(wanted: LogFormat, level: str, mark: str = "") -> None:
    """Write all logs of this process to standard error, unless the program has configured logging itself.

    With a configuration of its own, only the level of Windlass' loggers is set, if the program has not set it.
    """
    root, own = logging.getLogger(), logging.getLogger(OWN_LOGGER)
    loggers = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    if not root.handlers and not own.handlers:
        stderr = logging.StreamHandler(sys.stderr)
        stderr.setFormatter(TextFormatter() if choose_format(wanted) == "text" else JsonFormatter())
        root.addHandler(stderr)
        root.setLevel(level.upper())
    elif own.level == logging.NOTSET:
        own.setLevel(level.upper())
    for logger in loggers:
        if logger.name.partition(".")[0] == OWN_LOGGER:
            logger.disabled = False  # `dictConfig` disables all loggers that exist, unless it is told not to
    for handler in {each for logger in (root, *loggers) for each in logger.handlers}:
        handler.addFilter(JobLogFilter())
        if mark and isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout):
            handler.setStream(_MarkedLines(handler.stream, mark))


def set_up_process(options: LogOptions) -> None:
    """Set up the logs of a runner or a child."""
    show_windlass_frames(options.full_tracebacks)
    set_up_logs(options.format, options.level, options.mark)


def make_logs_nonblocking() -> None:
    """Make the supervisor's logs non-blocking: a slow reader of standard error must not delay its heartbeats."""
    for handler in (*logging.getLogger(OWN_LOGGER).handlers, *logging.getLogger().handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(STDERR)


# -- in the supervisor -------------------------------------------------------------------------------

_LIKE_A_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d ")


class OutputLines:
    """Turns a line of a runner or child into what the worker writes: log lines unchanged, other output escaped."""

    def __init__(self, options: LogOptions, *, raw: bool) -> None:
        self._mark = options.mark.encode()
        self._format = options.format
        self._raw = raw

    def without_mark(self, line: bytes) -> bytes:
        """The line as the process meant it."""
        return line.replace(self._mark, b"", 1)

    def shown(self, line: bytes) -> bytes:
        """What to write for a line."""
        printed, mark, logged = line.partition(self._mark)
        if not mark:
            return self._printed(printed)
        return (self._printed(printed) if printed else b"") + logged + b"\n"

    def _printed(self, line: bytes) -> bytes:
        if self._raw:
            return line + b"\n"
        text = in_one_line(line.decode("utf-8", "backslashreplace").expandtabs().rstrip("\r"))
        if self._format == "json":
            fields = {"time": _iso_time(time.time()), "level": "info", "logger": "windlass.output", "message": text}
            return _json_line(fields).encode() + b"\n"
        return ("| " if _LIKE_A_LOG_LINE.match(text) else "").encode() + text.encode() + b"\n"
