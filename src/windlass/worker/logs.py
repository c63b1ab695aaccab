"""Logs of a worker: for people on a terminal, one JSON object a line elsewhere. Arguments of jobs are in neither."""

from __future__ import annotations

import logging
import sys
import time
from typing import Literal

import msgspec

from windlass.worker.output import OUTLET

LogFormat = Literal["auto", "text", "json"]
_MARKS = {"WARNING": "!", "ERROR": "✗", "CRITICAL": "✗"}


class TextFormatter(logging.Formatter):
    """14:03:22 emails/42: failed …"""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        text = f"{clock} {_MARKS.get(record.levelname, '·')} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, pid, message; and of a job queue, id, task, attempt, outcome."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        said |= getattr(record, "job", {})
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(said).decode()


def choose_format(wanted: LogFormat) -> Literal["text", "json"]:
    """What `auto` means here. The supervisor decides: its runner writes into a pipe."""
    if wanted == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return wanted


def set_up_logs(wanted: LogFormat, level: str) -> None:
    """Write the worker's logs to standard error, unless the program has set up its own."""
    logger = logging.getLogger("windlass")
    logger.setLevel(level.upper())
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if choose_format(wanted) == "text" else JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False


def never_wait() -> None:
    """For the supervisor: whoever reads its standard error, and how slowly, its logs do not hold it up."""
    for handler in (*logging.getLogger("windlass").handlers, *logging.getLogger().handlers):
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.setStream(OUTLET)
