"""An app that reports its errors to Sentry, as docs/worker.md shows it. The events end in a file."""

from __future__ import annotations

import json
import os
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.support.workers import JOURNAL
from tests.worker.apps import logged

app = logged.app


class ToFile(Transport):
    """Appends each event to a file, with one write."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            with open(os.environ[JOURNAL] + ".events", "ab", buffering=0) as file:
                file.write(json.dumps(event, default=str).encode() + b"\n")


def tag_with_job(event: Any, hint: Any) -> Any:
    record = hint.get("log_record")
    if getattr(record, "job_id", None):
        event["tags"] = {"task": record.task, "queue": record.queue, **event.get("tags", {})}
    return event


sentry_sdk.init("https://key@127.0.0.1/1", before_send=tag_with_job, transport=ToFile, include_local_variables=False)
