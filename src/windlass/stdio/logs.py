"""Logs of the service: one JSON object a line on standard error, in the words of its protocol."""

from __future__ import annotations

import logging

import msgspec

from windlass.stdio.messages import iso
from windlass.worker.output import OUTLET


class LineFormatter(logging.Formatter):
    """`{"log_level": "error", "created_at": "2017-04-24T21:16:26.678Z", "log_message": "…"}`"""

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        if record.exc_info:
            said = f"{said}\n{self.formatException(record.exc_info)}"
        line = {"log_level": record.levelname.lower(), "created_at": iso(record.created * 1000), "log_message": said}
        return msgspec.json.encode(line).decode()


def set_up_logs() -> None:
    """All that is logged in this program goes there; nobody has to read it for the service to go on."""
    handler = logging.StreamHandler(OUTLET)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
