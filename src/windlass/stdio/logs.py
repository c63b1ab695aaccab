"""Logs of the service: one JSON object per line on standard error, with the field names of the protocol."""

from __future__ import annotations

import logging

import msgspec

from windlass.stdio.messages import iso
from windlass.values.printable import in_json
from windlass.worker.output import STDERR


class LineFormatter(logging.Formatter):
    """`{"log_level": "error", "created_at": "2017-04-24T21:16:26.678Z", "log_message": "…"}`"""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        line = {"log_level": record.levelname.lower(), "created_at": iso(record.created * 1000), "log_message": text}
        return in_json(msgspec.json.encode(line).decode())


def set_up_logs() -> None:
    """Send all logs of this program to standard error. A full pipe does not stop the service."""
    handler = logging.StreamHandler(STDERR)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
