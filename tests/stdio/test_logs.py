"""The log lines of the service: one object of JSON each, harmless on a terminal."""

from __future__ import annotations

import json
import logging

from windlass.stdio.logs import LineFormatter


def test_hostile_text_is_escaped() -> None:
    hostile = "\x1b[2J\x9b2J\x07\u202e\r\n{}\u2028"
    line = LineFormatter().format(logging.makeLogRecord({"msg": "job %s", "args": (hostile,)}))
    assert line.isprintable()
    assert json.loads(line)["log_message"] == f"job {hostile}"
