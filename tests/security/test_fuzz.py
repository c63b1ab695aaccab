"""The short form of `python -m chaos.fuzz`, and by name what it has found."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from bisect import bisect

import msgspec
import pytest
import redis
from chaos.fuzz import Findings, fuzz_envelopes, fuzz_lines, fuzz_names

from tests.security.watching import KeyWatch
from tests.stdio.conftest import moment
from tests.support.server import Server
from windlass import Windlass
from windlass.cli.output import print_json
from windlass.stdio.messages import BadMessage, Identity, read_message, write_assignment

SEED = int(os.environ.get("WINDLASS_FUZZ_SEED", "20261116"))


def nothing_found(findings: Findings) -> None:
    assert not findings, "\n".join((f"seed {SEED}", *findings.lines()))


def test_hostile_payloads_are_read_or_refused_and_a_worker_lives_on() -> None:
    nothing_found(fuzz_envelopes(1_500, 150, random.Random(SEED)))


def test_hostile_names_touch_no_key_outside_the_tag_of_their_queue() -> None:
    nothing_found(fuzz_names(800, random.Random(SEED)))


def test_each_bad_line_is_one_line_in_the_log_and_the_service_still_answers() -> None:
    nothing_found(fuzz_lines(1_000, random.Random(SEED)))


# -- the watch itself ------------------------------------------------------------------------------


def test_the_watch_sees_a_key_outside_and_a_script_that_makes_one_up(server: Server, client: redis.Redis) -> None:
    reach_out = "return redis.call('EXISTS', 'windlass:{q}:data', ARGV[1])"
    with KeyWatch(server) as watch:
        watch.expect("q")
        client.evalsha(client.script_load(reach_out), 1, "windlass:{q}:state", "windlass:{p}:data")
        client.hget("windlass:{p}:data", "a")
        client.hget("windlass:{q}:data", "a")
        client.get('a "quoted"\nkey\x00')
        client.publish("elsewhere", "x")
        found = watch.finish()
    assert found == [
        "EXISTS b'windlass:{p}:data'",
        "HGET b'windlass:{p}:data'",
        "GET b'a \"quoted\"\\nkey\\x00'",
        "PUBLISH b'elsewhere'",
    ]


# -- what it has found -----------------------------------------------------------------------------

IDENTITY = Identity("job_queue", "a", "here", "default", "default")


@pytest.mark.parametrize("word", ["created_at", "started_at", "finished_at"])
@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999Z"]
)
def test_a_time_that_cannot_be_told_in_utc_makes_a_bad_line(word: str, moment: str) -> None:
    topic = "job_finished" if word == "finished_at" else "job_accepted"
    line = {"topic": f"default/job_queue/{topic}", "service_uuid": "w", "created_at": "2026-01-01T00:00:00Z"}
    payload = {"uuid": "a", "queue_name": "q"}
    (line if word == "created_at" else payload)[word] = moment
    with pytest.raises(BadMessage, match="out of range"):
        read_message(json.dumps(line | {"payload": payload}).encode(), "default")


def _can_be_read(depth: int) -> bool:
    try:
        msgspec.json.decode(b"[" * depth + b"]" * depth)
    except RecursionError:
        return False
    return True


def _deepest() -> int:
    """How deep JSON may be nested: some 1,000 levels on Python 3.11, 10,000 on Python 3.13."""
    return bisect(range(100_000), False, key=lambda depth: not _can_be_read(depth)) - 1


def test_a_job_that_is_nested_as_deep_as_can_be_read_is_assigned() -> None:
    """Within the message that assigns it, it would be nested too deep: it comes as bytes then."""
    forms = set()
    for depth in range(_deepest() - 100, _deepest() + 10):
        line = write_assignment(IDENTITY, "w", b"[" * depth + b"]" * depth, "a", "q", 5, "now")
        forms |= {form for form in (b'"data"', b'"base64"') if form in line}
    assert forms == {b'"data"', b'"base64"'}


def test_a_service_is_not_ended_by_the_times_and_depths_that_once_ended_it(server: Server, app: Windlass) -> None:
    queue = app.queue("deep-and-late")
    for depth in range(_deepest() - 13, _deepest() + 2):
        queue.enqueue(b"[" * depth + b"]" * depth)
    late = {"uuid": "a", "queue_name": "deep-and-late", "started_at": "0001-01-01T00:00:00+23:59"}

    def said(worker: str, word: str, **payload: object) -> str:
        topic = f"default/job_queue/workers/{worker}/{word}"
        return json.dumps({"topic": topic, "service_uuid": worker, "created_at": moment(), "payload": payload})

    service = subprocess.Popen(
        [sys.executable, "-m", "windlass", "stdio", "--layout", "native", "--url", server.url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert service.stderr
    assert "is ready" in service.stderr.readline()
    lines = [said("w", "job_accepted", **late)]
    lines += [said(f"w{n}", "worker_idle", queue_name="deep-and-late") for n in range(15)]
    out, logged = service.communicate("\n".join(lines) + "\n", timeout=30)
    assert service.returncode == 0, logged
    assert out.count("job_assignment") == 15
    assert logged.count("out of range") == 1
    queue.purge()


def test_a_payload_that_is_nested_too_deep_to_be_spread_out_is_printed_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for depth in (10, _deepest() - 1):
        deep = b"[" * depth + b"]" * depth
        print_json({"data": msgspec.Raw(deep)})
        assert capsys.readouterr().out.replace("\n", "").replace(" ", "") == f'{{"data":{deep.decode()}}}'
