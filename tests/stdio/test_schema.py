"""The JSON Schema in docs: it is one, it has every message, and it refuses what the service refuses."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.stdio.conftest import SCHEMA, conforms
from tests.stdio.test_bad_lines import BAD
from windlass.stdio import messages

# What no schema can know: whose jobs there are, what keys there are, and how the service is called.
BEYOND = {
    "a uuid that is a key", "a queue with spaces", "another namespace", "no namespace", "no name",
    "a job that nobody has", "an end of nothing", "progress of nothing",
}  # fmt: skip


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_it_has_every_message_that_the_service_reads() -> None:
    known = json.dumps(SCHEMA["$defs"]["in"])
    for name in messages.PAYLOADS:
        assert ("list_request" if name.startswith("list_") else name) in known


@pytest.mark.parametrize("what", sorted(BAD.keys() - BEYOND))
def test_it_refuses_what_the_service_refuses(what: str) -> None:
    line: Any = BAD[what][0]
    try:
        value = line if isinstance(line, dict) else json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return  # not JSON at all
    if what == "half a character":
        return  # Python reads that
    with pytest.raises(jsonschema.ValidationError):
        conforms(value, "in")


def test_it_takes_the_messages_of_published_workers() -> None:
    """With all the fields that they have, and those that Windlass does not know."""
    message = {
        "topic": "flaneur/job_queue/workers/WORKER00-1285-4E4C-A44E-WORKERAAAA01/worker_idle",
        "service_uuid": "WORKER00-1285-4E4C-A44E-WORKERAAAA00",
        "service_name": "worker-00",
        "service_host": "host-00",
        "created_at": "2026-10-19T22:47:26.897668Z",
        "tick_reference": {"uuid": "TICKAAAA-1285-4E4C-A44E-TICKAAAA0002"},
        "payload": {"queue_name": "ffmpeg"},
    }
    conforms(message, "in")
    read = messages.read_message(json.dumps(message).encode(), "flaneur")
    assert read.worker == "WORKER00-1285-4E4C-A44E-WORKERAAAA00"


def _refuse(constant: str) -> None:
    raise ValueError(constant)
