"""An app with logging of its own: a handler that tells what it gets from each record, in lines of JSON."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from typing import Any

from tests.worker.apps import logged

app = logged.app
FIELDS = ("job_id", "task", "queue", "attempt", "outcome")


class Telling(logging.Formatter):
    """Tells the fields of a record, and what its `exc_info` holds."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {name: getattr(record, name, None) for name in FIELDS}
        told |= {"own": True, "name": record.name, "level": record.levelname, "text": record.getMessage()}
        if record.exc_info:
            kind, error, trace = record.exc_info
            told |= {
                "kind": kind and kind.__name__,
                "error": str(error),
                "frames": [],
                "shown": self.formatException(record.exc_info),
            }
            while trace is not None:
                told["frames"].append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
        return json.dumps(told)


logging.getLogger("windlass.worker")  # exists before the configuration, which disables it
logging.config.dictConfig(
    {
        "version": 1,
        "formatters": {"telling": {"()": Telling}},
        "handlers": {"telling": {"class": "logging.StreamHandler", "formatter": "telling", "stream": sys.stdout}},
        "root": {"level": "WARNING", "handlers": ["telling"]},
    }
)
logging.getLogger("shop.orders").setLevel("INFO")
logging.getLogger("shop.orders").disabled = False
