"""A worker's logs: text on a terminal, one JSON object per line elsewhere. Neither holds the arguments of jobs."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

from windlass.worker.output import STDERR

LogFormat = Literal["auto", "text", "json"]
_MARKS = {"WARNING": "!", "ERROR": "✗", "CRITICAL": "✗"}


class TextFormatter(logging.Formatter):
    """Formats a line such as "14:03:22 ! emails/42: failed …"."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {_MARKS.get(record.levelname, '·')} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line. Lines about a job also have its queue, id, task, attempt and outcome."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        fields |= getattr(record, "job", {})
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


def choose_format(wanted: LogFormat) -> Literal["text", "json"]:
    """Resolve `auto`. The supervisor calls this, because its runners write to pipes and never see the terminal."""
    if wanted == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return wanted


def set_up_logs(wanted: LogFormat, level: str) -> None:
    """Write the worker's logs to standard error, unless the program has configured logging itself."""
    logger = logging.getLogger("windlass")
    logger.setLevel(level.upper())
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if choose_format(wanted) == "text" else JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False


def make_logs_nonblocking() -> None:
    """Make the supervisor's logs non-blocking: a slow reader of standard error must not delay its heartbeats."""
    for handler in (*logging.getLogger("windlass").handlers, *logging.getLogger().handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(STDERR)
