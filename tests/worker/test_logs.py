"""What a worker tells: the log records of jobs, their errors with causes, and nothing that a job could forge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.workers import Worker, Workshop
from tests.worker.apps.logged import FORGED, HOSTILE
from windlass import JobRecord
from windlass.cli import main
from windlass.errors import JobFailed
from windlass.worker.ipc.slot_table import LOOP_ALIVE_AT, now_ms
from windlass.worker.settings import Settings
from windlass.worker.supervisor.forkserver import Ending, ForkedProcess
from windlass.worker.supervisor.runner_group import RunnerGroup

APP = "tests.worker.apps.logged"
WAYS = ("loop", "thread", "process", "coroutine")
CHAIN = ["KeyError: 'missing'", "The above exception was the direct cause", "ValueError: outer", "a note of it"]


def lines_of(worker: Worker) -> list[dict[str, Any]]:
    """The whole lines of JSON that the worker has written."""
    return [json.loads(line) for line in worker.log.splitlines(keepends=True) if line[0] == "{" and line[-1] == "\n"]


def told(shop: Workshop, worker: Worker, **wanted: Any) -> dict[str, Any]:
    """Wait for the line with these fields."""

    def found() -> dict[str, Any] | None:
        return next((line for line in lines_of(worker) if wanted.items() <= line.items()), None)

    return shop.wait(found, f"a line with {wanted}")


def text_of(shop: Workshop, worker: Worker, words: str) -> str:
    """Wait until the worker has written these words, and return all that it has written."""
    shop.wait(lambda: words in worker.log, f"{words!r} in the log")
    return worker.log


def dead(shop: Workshop, task: str, *args: Any) -> JobRecord:
    """Run a task that fails for good, and return its job."""
    return shop.wait_state("default", shop.send(task, *args), "dead")


def in_order(text: str, parts: list[str]) -> bool:
    """Whether all parts are in the text, one after the other."""
    places = [text.find(part) for part in parts]
    return min(places) >= 0 and places == sorted(places)


# -- the log records of jobs ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def json_worker(shared_shop: Workshop) -> Worker:
    return shared_shop.start("logged", processes=2, log_format="json")


@pytest.mark.parametrize("way", WAYS)
def test_the_log_records_of_a_job_tell_of_the_job(shared_shop: Workshop, json_worker: Worker, way: str) -> None:
    for word in ("one", "two"):
        id = shared_shop.send(f"{way}_speak", f"{way} {word}")
        line = told(shared_shop, json_worker, message=f"working on {way} {word}")
        assert (line["level"], line["logger"]) == ("info", "shop.orders")
        assert (line["job_id"], line["task"], line["queue"], line["attempt"]) == (
            id,
            f"{APP}.{way}_speak",
            "default",
            1,
        )
    assert "too quiet" not in json_worker.log


def test_text_lines_begin_with_the_job(shop: Workshop) -> None:
    worker = shop.start("logged", processes=1, log_level="debug")
    for way in WAYS:
        id = shop.send(f"{way}_speak", way)
        assert f" · {APP}.{way}_speak default/{id}: working on {way}\n" in text_of(shop, worker, f"working on {way}\n")
        assert f" · {APP}.{way}_speak default/{id}: too quiet: {way}\n" in worker.log


def test_a_level_hides_what_is_below_it(shop: Workshop) -> None:
    worker = shop.start("logged", processes=1, log_level="warning")
    shop.wait_job_gone("default", shop.send("thread_speak", "low"))
    dead(shop, "thread_fail")
    assert "working on" not in text_of(shop, worker, "failed for good: ValueError: outer")


def test_logging_of_the_apps_own_gets_real_exceptions_and_the_fields_of_the_job(shop: Workshop) -> None:
    """Also the traceback of an error in a child, in any formatter; and `dictConfig` does not silence the worker."""
    worker = shop.start("own_logging", processes=1)
    for way in WAYS:
        id = dead(shop, f"{way}_fail").id
        line = told(shop, worker, own=True, job_id=id)
        assert (line["name"], line["level"], line["kind"], line["error"]) == (
            "windlass.worker", "ERROR", "ValueError", "outer"
        )  # fmt: skip
        assert (line["task"], line["queue"], line["attempt"], line["outcome"]) == (
            f"{APP}.{way}_fail", "default", 1, "failed"
        )  # fmt: skip
        assert in_order(line["shown"], CHAIN)
        if way in ("loop", "thread"):
            assert line["frames"] == [f"{way}_fail", "fail_in_a_chain"], "the user's own frames"
    id = shop.send("process_speak", "own")
    assert told(shop, worker, own=True, text="working on own")["job_id"] == id


def test_sentry_gets_an_event_with_the_exception_its_stack_and_the_job(shop: Workshop) -> None:
    shop.start("reported", processes=1)
    events = Path(f"{shop.journal.path}.events")

    def event_of(id: str) -> dict[str, Any] | None:
        lines = events.read_text().splitlines(keepends=True) if events.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return next((event for event in found if event["extra"].get("job_id") == id), None)

    for way in WAYS:
        id = dead(shop, f"{way}_fail").id
        event = shop.wait(lambda id=id: event_of(id), "the event")  # type: ignore[misc]
        assert event["tags"] == {"task": f"{APP}.{way}_fail", "queue": "default"}
        assert event["logger"] == "windlass.worker"
        last = event["exception"]["values"][-1]
        assert (last["type"], last["value"].splitlines()[0]) == ("ValueError", "outer")
        if way in ("loop", "thread"):
            cause = event["exception"]["values"][0]
            assert cause["type"] == "KeyError"
            assert [frame["function"] for frame in last["stacktrace"]["frames"]] == [f"{way}_fail", "fail_in_a_chain"]
        else:
            assert "in fail_in_a_chain" in event["exception"]["values"][0]["value"], "the child's traceback, as text"


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_an_error_keeps_its_cause_and_its_notes(shared_shop: Workshop, json_worker: Worker, way: str) -> None:
    record = dead(shared_shop, f"{way}_fail")
    message = record.message or ""
    assert message.splitlines()[:2] == ["ValueError: outer", "Traceback (most recent call last):"]
    assert message.endswith("ValueError: outer\na note of it"), "the most recent call comes last"
    assert in_order(message.partition("\n")[2], CHAIN)
    assert f"in {way}_fail" in message
    assert "windlass/worker" not in message
    line = told(shared_shop, json_worker, job_id=record.id, outcome="failed")
    assert line["message"] == f"{APP}.{way}_fail default/{record.id}: failed for good: ValueError: outer"
    assert line["error"] == message.partition("\n")[2]
    with pytest.raises(JobFailed) as failed:
        shared_shop.app.job("default", record.id).result(timeout=10)
    assert in_order(str(failed.value).partition("\n")[2], CHAIN)


def test_a_group_keeps_its_errors(shared_shop: Workshop, json_worker: Worker) -> None:
    message = dead(shared_shop, "fail_in_a_group").message or ""
    assert message.startswith("ExceptionGroup: two of them (2 sub-exceptions)\n")
    assert in_order(message, ["ValueError: first", "TypeError: second"])


def test_a_failure_keeps_its_cause(shared_shop: Workshop, json_worker: Worker) -> None:
    message = dead(shared_shop, "give_up").message or ""
    assert message.startswith("not for us\nTraceback")
    assert in_order(message, [*CHAIN, "Failure: not for us"])
    record = dead(shared_shop, "give_up_plainly")
    assert record.message == "not for us"
    assert "error" not in told(shared_shop, json_worker, job_id=record.id)


def test_frames_of_windlass_are_shown_on_request(shop: Workshop) -> None:
    shop.start("logged", processes=1, full_tracebacks=True)
    for task in ("loop_fail", "process_fail", "misuse_windlass"):
        message = dead(shop, task).message or ""
        assert "worker/attempt.py" in message, message


def test_frames_of_windlass_below_the_users_code_are_left_out(shared_shop: Workshop, json_worker: Worker) -> None:
    message = dead(shared_shop, "misuse_windlass").message or ""
    assert message.startswith("windlass.errors.InvalidName: 'no good'")
    assert 'app.queue("no good")' in message
    assert "validation.py" not in message


# -- nothing from a queue moves the cursor or forges a line ------------------------------------------


def assert_harmless(log: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in log)
    assert not any(line.startswith(FORGED[:8]) and "forged" in line[:18] for line in log.split("\n"))


@pytest.mark.parametrize("how", ["log", "print", "raise"])
def test_hostile_text_is_harmless_in_the_text_log(shop: Workshop, how: str) -> None:
    worker = shop.start("logged", processes=1)
    shop.send("say_hostile", how, id="an id\x1b[2J\n" + FORGED)
    log = text_of(shop, worker, "after the unfinished line\n" if how == "print" else "end\n")
    assert_harmless(log)
    assert r"\x1b[2J\x9b2J\x07\x1b[31m\u202egnp.exe\u2066" in log
    assert ("\n| " if how == "print" else "\n    ") + FORGED in log


def test_hostile_text_is_harmless_in_the_json_log(shared_shop: Workshop, json_worker: Worker) -> None:
    for how in ("log", "print", "raise"):
        shared_shop.send("say_hostile", how)
    told(shared_shop, json_worker, message=f"it says {HOSTILE}")
    assert told(shared_shop, json_worker, message=f"unfinished      {FORGED}")["logger"] == "windlass.output"
    told(shared_shop, json_worker, message="after the unfinished line")
    shared_shop.wait(lambda: "ValueError" in json_worker.log, "the failure")
    assert_harmless(json_worker.log)
    assert all(line[0] == "{" for line in json_worker.log.splitlines() if "forged" in line)


def test_a_printed_line_of_json_is_told_as_output(shared_shop: Workshop, json_worker: Worker) -> None:
    word = json.dumps({"level": "error", "logger": "windlass.worker", "message": "forged"})
    shared_shop.send("hurry", word)
    assert told(shared_shop, json_worker, message=word)["logger"] == "windlass.output"


def test_the_last_words_of_a_child_are_harmless_where_they_are_shown(shop: Workshop) -> None:
    worker = shop.start("logged", processes=1)
    id = shop.send("print_and_die", max_stalls=0, id="an id\x1b[2J")
    record = shop.wait_state("default", id, "dead")
    assert "\x1b[2J" in (record.message or ""), "the record has them as they were"
    assert_harmless(text_of(shop, worker, "crashed: its process was killed by SIGKILL"))
    for words in (["jobs", "default", id], ["dead", "list"], ["jobs", "default"], ["cancel", "default", id]):
        for flags in ([], ["--json"]):
            shown = CliRunner().invoke(main, [*words, *flags, "--url", shop.url])
            assert "an id" in shown.output
            assert_harmless(shown.output)


def test_output_is_passed_on_unchanged_on_request(shop: Workshop) -> None:
    worker = shop.start("logged", processes=1, raw_output=True)
    shop.send("hurry", "in \x1b[31mred\x1b[0m")
    assert "\nin \x1b[31mred\x1b[0m\n" in text_of(shop, worker, "in \x1b[31mred")


# -- whom a warning blames ---------------------------------------------------------------------------


async def test_only_a_runner_that_lives_and_has_jobs_is_said_to_be_blocked(caplog: pytest.LogCaptureFixture) -> None:
    """A runner that was killed because the server slept waits for the reclaim of its jobs, and its loop is still."""
    settings = Settings("w", {"default": 1}, concurrency=1, threads=1, processes=1)
    group = RunnerGroup(None, None, settings, "w.1")  # type: ignore[arg-type]
    group.runner = ForkedProcess(None, 1)  # type: ignore[arg-type]
    try:
        group.slot_table.words[LOOP_ALIVE_AT] = now_ms() - 60_000
        group.watch_lag()
        assert "without any job of its own" in caplog.text
        caplog.clear()
        group.lag_logged = False
        group.slot_table.begin(settings.slots["loop"].start, fence=1)
        group.watch_lag()
        assert "A job has blocked the event loop" in caplog.text
        caplog.clear()
        group.lag_logged = False
        group.runner.exited.set_result(Ending(None, 9))
        group.watch_lag()
        assert caplog.text == ""
    finally:
        group.discard()
