"""Whatever comes in: a bad line is one logged error, and the service goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stdio.conftest import Service, moment
from windlass.stdio.messages import MAX_LINE_BYTES, BadMessage, read_message
from windlass.stdio.pipes import Splitter, TooLong

IDLE = {"topic": "default/job_queue/worker_idle", "service_uuid": "w", "created_at": "2026-01-01T00:00:00Z"}
ON = {"queue_name": "ffmpeg"}


def add(**changes: Any) -> dict[str, Any]:
    payload = {"uuid": "a", "queue_name": "ffmpeg"} | changes
    kept = {name: value for name, value in payload.items() if value is not ...}
    return {"topic": "default/job_queue/add_job", "payload": kept}


def worker(word: str, **payload: Any) -> dict[str, Any]:
    about = {"uuid": "a", "queue_name": "ffmpeg"} | payload
    kept = {name: value for name, value in about.items() if value is not ...}
    return IDLE | {"topic": f"default/job_queue/workers/w/{word}", "payload": kept}


BAD: dict[str, tuple[bytes | dict[str, Any], str]] = {
    "not JSON": (b"sleep 1", "not JSON"),
    "half of it": (b'{"topic": "default/tick"', "not JSON"),
    "two on a line": (b'{"topic": "default/tick"} {"topic": "default/tick"}', "not JSON"),
    "NaN": (b'{"topic": "default/job_queue/add_job", "payload": {"n": NaN}}', "not JSON"),
    "broken UTF-8": (b'{"topic": "default/tick", "payload": {"n": "\xff"}}', "not UTF-8"),
    "half a character": (b'{"topic": "default/tick", "payload": {"n": "\\ud800"}}', "not JSON"),
    "nested too deep": (b"[" * 100_000, "skipped"),
    "a payload nested too deep": (
        b'{"topic":"default/job_queue/add_job","payload":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
        "not JSON",
    ),
    "an array": (b"[]", "Expected `object`"),
    "a text": (b'"tick"', "Expected `object`"),
    "null": (b"null", "Expected `object`"),
    "zeros": (b"\0" * 50, "not JSON"),
    "no topic": ({"payload": {}}, "missing required field `topic`"),
    "a topic that is no text": ({"topic": 7}, "Expected `str`"),
    "an unknown topic": ({"topic": "default/job_queue/remove_job"}, "unknown topic"),
    "another namespace": ({"topic": "other/tick"}, "unknown topic"),
    "no namespace": ({"topic": "tick"}, "unknown topic"),
    "a topic of its own": ({"topic": "default/job_queue/list_job_queue/answer"}, "unknown topic"),
    "a payload that is no object": (add() | {"payload": [1]}, "Expected `object`"),
    "no payload": ({"topic": "default/job_queue/add_job"}, "missing required field `uuid`"),
    "no uuid": (add(uuid=...), "missing required field `uuid`"),
    "an empty uuid": (add(uuid=""), "length >= 1"),
    "a long uuid": (add(uuid="x" * 513), "length <= 512"),
    "a uuid that is a key": (add(uuid="jobs_queued:x"), "another key"),
    "no queue": (add(queue_name=...), "missing required field `queue_name`"),
    "a queue that is no text": (add(queue_name=5), "Expected `str`"),
    "a queue with spaces": (add(queue_name="a b"), "not a queue name"),
    "a priority that is text": (add(priority="1"), "Expected `int`"),
    "a priority of ten": (add(priority=10), "<= 9"),
    "a priority below zero": (add(priority=-1), ">= 0"),
    "no name": (
        {"topic": "default/job_queue/worker_idle", "created_at": "2026-01-01T00:00:00Z", "payload": ON},
        "needs service_uuid",
    ),
    "a name with a slash": (IDLE | {"service_uuid": "a/b", "payload": ON}, "matching regex"),
    "no time": (IDLE | {"created_at": None, "payload": ON}, "needs created_at"),
    "a time that is none": (IDLE | {"created_at": "soon", "payload": ON}, "RFC3339"),
    "a time without a zone": (IDLE | {"created_at": "2026-01-01T00:00:00", "payload": ON}, "timezone"),
    "an idle worker without a queue": (IDLE | {"payload": {}}, "missing required field `queue_name`"),
    "progress that is text": (worker("worker_progress", progress="half"), "Expected `float`"),
    "progress above one": (worker("worker_progress", progress=1.5), "<= 1"),
    "no progress": (worker("worker_progress"), "missing required field `progress`"),
    "a status that is none": (worker("worker_busy", status=3), "Expected `object`"),
    "accepted without a job": (worker("job_accepted", uuid=...), "missing required field `uuid`"),
    "started at no time": (worker("job_accepted", started_at=17), "Expected `datetime"),
    "finished without a job": (worker("job_finished", uuid=...), "missing required field `uuid`"),
    "a list of nothing": ({"topic": "default/job_queue/list_job_queue", "payload": {}}, "missing required field"),
    "a job that nobody has": (worker("job_accepted") | {"created_at": moment()}, "does not belong to"),
    "an end of nothing": (worker("job_finished") | {"created_at": moment()}, "does not belong to"),
    "progress of nothing": (worker("worker_progress", progress=0.5) | {"created_at": moment()}, "does not belong to"),
}  # fmt: skip


@pytest.mark.speaks("processor", "P1")
def test_each_bad_line_is_one_logged_error_and_the_service_goes_on(service: Service) -> None:
    for what, (line, why) in BAD.items():
        service.write(line if isinstance(line, bytes) else json.dumps(line).encode())
        told = service.complaint()
        assert why in told, what
        assert len(told) < 1000, what
    assert service.is_silent()


@pytest.mark.speaks("processor", "P1")
def test_a_line_of_ten_megabytes_is_one_error_and_is_not_kept(service: Service) -> None:
    line = json.dumps(add(data="x" * 10_000_000)).encode()
    service.write(line)
    assert service.complaint() == f"line skipped: it has {len(line):,} bytes, at most 4,194,304 are allowed"
    service.write(json.dumps(add(data="x" * 2_000_000)).encode())
    assert "the limit is 1,048,576" in service.complaint()
    assert service.is_silent()


def test_empty_lines_and_other_line_ends_are_no_mistakes(service: Service) -> None:
    service.write(b"")
    service.write(b"   \r")
    service.write(json.dumps({"topic": "default/tick"}).encode() + b"\r")
    assert service.is_silent()


def test_what_is_not_known_in_a_message_is_passed_over() -> None:
    line = IDLE | {"tick_reference": {"uuid": "t"}, "payload": ON | {"more": [1]}}
    message = read_message(json.dumps(line).encode(), "default")
    assert (message.worker, message.name) == ("w", "worker_idle")


def test_a_worker_is_who_its_message_says_or_else_its_topic() -> None:
    line = worker("worker_idle")
    assert read_message(json.dumps(line | {"service_uuid": "other"}).encode(), "default").worker == "other"
    assert read_message(json.dumps(line | {"service_uuid": None}).encode(), "default").worker == "w"


def test_a_namespace_may_be_empty() -> None:
    assert read_message(b'{"topic": "tick"}', "").name == "tick"
    with pytest.raises(BadMessage):
        read_message(b'{"topic": "default/tick"}', "")


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_lines_are_put_together_from_any_pieces(piece: int) -> None:
    text = b"a\n\nbcd\r\n" + b"x" * 20 + b"\nend" + b"y" * 30
    splitter = Splitter(most=19)
    lines = [line for at in range(0, len(text), piece) for line in splitter.feed(text[at : at + piece])]
    assert lines + splitter.end() == [b"a", b"", b"bcd\r", TooLong(20), TooLong(33)]
    assert splitter.end() == []
    assert MAX_LINE_BYTES < 10_000_000
