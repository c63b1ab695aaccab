"""The commands that look at queues and give orders, each against a real server."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import redis
import rich_click as click
from click.testing import CliRunner, Result

from tests.support.internals import layout_of, perform_call, settle
from tests.support.server import Server
from tests.support.waiting import LIMIT_S
from windlass import Limits, Queue, Windlass
from windlass.cli import SUMMARIES, main
from windlass.cli.output import first_line, format_duration, format_relative, format_size, printable
from windlass.storage.native import keys
from windlass.transport import presence
from windlass.values.outcome import Broken, Snoozed, UnknownTask
from windlass.values.worker_record import WorkerRecord

WINDLASS = Path(sys.executable).with_name("windlass")
NAME = "cli"

Run = Callable[..., Result]


@pytest.fixture
def run(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the test's server."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", server.url)
    return lambda *words, answer=None: CliRunner().invoke(main, words, input=answer)


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    queue = app.queue(NAME)
    yield queue
    queue.purge()


def told(result: Result, code: int = 0) -> Any:
    """What a command said in JSON."""
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refused(result: Result, code: int, *words: str) -> None:
    """It ended with this code and said these words, in one line or in the box of wrong usage."""
    assert result.exit_code == code, result.output
    said = " ".join(result.stderr.replace("│", " ").split())
    assert all(word in said for word in words), said


def lines(result: Result) -> list[list[str]]:
    """A table's rows, by their words; the first is the head."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


# -- every command ------------------------------------------------------------------------------------


def every_command() -> Iterator[tuple[str, ...]]:
    for name in SUMMARIES:
        command = getattr(import_module(f"windlass.cli.{name}"), name)
        yield (name,)
        if isinstance(command, click.Group):
            yield from ((name, child) for child in command.commands)


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_each_explains_itself_and_every_flag_has_a_variable(words: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, [*words, "--help"]).exit_code == 0
    command = getattr(import_module(f"windlass.cli.{words[0]}"), words[0])
    for word in words[1:]:
        command = command.commands[word]
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "help":
            assert str(option.envvar).startswith("WINDLASS_"), option.name


def test_each_has_an_example_or_is_part_of_a_group() -> None:
    for name in ("worker", "enqueue", "status", "queues", "workers", "tasks", "jobs", "dead", "schedules", "purge"):
        shown = CliRunner().invoke(main, [name, "--help"]).stdout
        assert re.search(rf"^\s+(.*\$\()?windlass {name}", shown, re.MULTILINE), name


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("queues",),
        ("workers",),
        ("jobs", "q"),
        ("jobs", "q", "id"),
        ("dead", "list", "q"),
        ("dead", "retry", "q", "id"),
        ("dead", "purge", "q", "--yes"),
        ("cancel", "q", "id"),
        ("pause", "q"),
        ("resume", "q"),
        ("purge", "q", "--yes"),
        ("enqueue", "--raw", "q", "data"),
        ("schedules", "list", "q"),
    ],
    ids=" ".join,
)
def test_a_server_that_cannot_be_reached_is_exit_code_4(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.cli.connect.RETRY_FOR_S", 0.0)
    monkeypatch.delenv("WINDLASS_APP", raising=False)
    result = CliRunner().invoke(main, [*words, "--url", "redis://127.0.0.1:1"])
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("windlass: no connection to 127.0.0.1:1 (")


@pytest.mark.parametrize(
    "words",
    [("status", "no good"), ("jobs", ".x"), ("dead", "list", "a/b"), ("pause", ""), ("purge", "?", "--yes")],
    ids=" ".join,
)
def test_a_name_that_no_queue_can_have_is_wrong_usage(run: Run, words: tuple[str, ...]) -> None:
    refused(run(*words), 2, "is not a queue name")


def test_two_servers_are_one_too_many(run: Run) -> None:
    refused(run("status", "--url", "redis://localhost", "--app", "x:y"), 2, "--url", "--app")


def test_a_url_on_the_command_line_beats_the_app_of_the_environment(
    run: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_APP", "not_there:app")
    assert told(run("queues", "--json", "--url", server.url)) == []
    refused(run("queues"), 1, "not_there")


# -- status -------------------------------------------------------------------------------------------


@pytest.mark.serves("H7")
def test_status_counts_every_state(run: Run, app: Windlass, queue: Queue, client: redis.Redis) -> None:
    fill(app, queue)
    (row,) = told(run("status", "--json"))["queues"]
    expected = {"ready": 1, "scheduled": 2, "blocked": 1, "running": 1, "dead": 1, "broken": 1, "paused": False}
    assert {name: row[name] for name in expected} == expected
    assert (row["queue"], row["workers"], row["parked"], row["unknown_tasks"]) == (NAME, 0, 1, ["lost_task"])
    head, *rows = lines(run("status"))
    assert head == ["queue", "ready", "scheduled", "blocked", "running", "dead", "broken", "workers"]
    assert rows[0] == [NAME, "1", "2", "1", "1", "1", "1", "0"]


def fill(app: Windlass, queue: Queue) -> None:
    """A job in every state, and one whose task nobody knows."""
    for id in ("running", "dead", "broken", "parked"):
        queue.enqueue(b"payload of " + id.encode(), id=id)
    _, dead, broken, parked = queue.lease_many(4, 600)
    queue.fail(dead, "it is \x1b[31mbroken\x1b[0m [bold]beyond repair\nTraceback: line")
    perform_call(queue, app.layout(NAME).turn([Broken(broken, "no JSON"), UnknownTask(parked, "lost_task")]))
    queue.enqueue(b"behind", id="running")
    queue.enqueue(b'{"task": "welcome", "args": [1]}', id="ready", priority=3)
    queue.enqueue(b"\xff\x00", id="later", delay=900)


def test_status_says_what_may_need_a_hand(run: Run, app: Windlass, queue: Queue, client: redis.Redis) -> None:
    fill(app, queue)
    client.lpush(keys.queue_key(NAME, "inbox"), b"x", b"y")
    said = run("status").stdout
    assert f"{NAME}: 3 jobs ready, but no worker serves this queue" in said
    assert f"{NAME}: 1 job waits for a worker that knows its task: lost_task" in said
    assert f"{NAME}: 2 jobs in the inbox" in said
    queue.pause()
    assert f"{NAME}: paused" in run("status").stdout


def test_status_counts_the_workers_of_a_queue(run: Run, app: Windlass, queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"x")
    for name, queues in (("one", {NAME: 1}), ("two", {NAME: 1, "other": 1}), ("three", {"other": 1})):
        record = WorkerRecord(name, queues=queues)
        perform_call(app, presence.beat(record))
    found = told(run("status", "--json"))
    assert (found["workers"], found["queues"][0]["workers"]) == (3, 2)
    assert "no worker" not in run("status").stdout
    client.delete(*keys.presence_keys())


def test_a_worker_that_is_silent_is_lost_perhaps(run: Run, app: Windlass, queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"x")
    for name, every in (("short", 2.0), ("long", 5.0)):
        record = WorkerRecord(name, queues={NAME: 1}, every=every)
        perform_call(app, presence.beat(record))
    for name in ("short", "long"):
        client.zincrby(keys.presence_keys()[0], -10_000, name)
    assert {worker.name: worker.state for worker in app.workers()} == {"short": "lost?", "long": "working"}
    found = told(run("status", "--json"))
    assert (found["workers"], found["queues"][0]["workers"]) == (1, 1)
    assert "lost?" in run("workers").stdout
    client.delete(*keys.presence_keys())


@pytest.mark.parametrize("score", [0.5, -0.25])
@pytest.mark.parametrize(
    "record",
    [b"", b"no record", b"[]", b'{"name": 7}', b'{"name": "a", "queues": {"\\u001b[2J": 1}, "host": "\\u202e\\n"}'],
)
def test_a_malformed_worker_record_is_listed_and_harmless(
    run: Run, queue: Queue, client: redis.Redis, record: bytes, score: float
) -> None:
    queue.enqueue(b"x")
    seen, about = keys.presence_keys()
    seconds, _ = client.time()
    name = b"odd\xff\x1b[2J"
    client.zadd(seen, {name: seconds * 1000 + score})
    client.hset(about, name, record)
    for words in (["workers"], ["status"], ["workers", "--json"], ["status", "--json"]):
        result = run(*words)
        assert result.exit_code == 0
        assert "odd" in result.stdout or words[0] == "status"
        assert all(char.isprintable() or char == "\n" for char in result.output)
    client.delete(seen, about)


def test_status_of_chosen_queues(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x")
    assert [row["queue"] for row in told(run("status", NAME, "--json"))["queues"]] == [NAME]
    result = run("status", "other", NAME, "--json")
    assert [row["queue"] for row in json.loads(result.stdout)["queues"]] == ["other", NAME]
    refused(result, 3, "queue 'other' is not in use")


def test_a_typo_in_a_queue_name_is_told_with_the_nearest_name(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x")
    wrong = f"{NAME}x"
    for words in (
        ["status", wrong],
        ["jobs", wrong],
        ["dead", "list", wrong],
        ["audit", wrong],
        ["schedules", "list", wrong],
        ["resume", wrong],
        ["purge", wrong, "--yes"],
        ["pause", wrong],
    ):
        refused(run(*words), 3, f"queue '{wrong}' is not in use", f"Did you mean '{NAME}'?")
    assert NAME in told(run("queues", "--json"))
    assert wrong not in told(run("queues", "--json")), "nothing was written"


def test_a_queue_may_be_paused_before_its_first_job(run: Run, app: Windlass) -> None:
    refused(run("pause", "early"), 3, "To pause it all the same: --yes")
    assert run("pause", "early", "--yes").stdout == "early is paused.\n"
    assert run("status", "early").exit_code == 0, "a pause is a use"
    assert run("resume", "early").exit_code == 0


def test_a_queue_of_another_layout_is_never_called_unused(run: Run) -> None:
    """Its keys cannot be told from other keys."""
    assert run("status", "thumbs", "--layout", "thumbs=workqueue").exit_code == 0


def test_patterns_choose_queues(run: Run, app: Windlass) -> None:
    names = ["mail-1", "mail-2", "media"]
    for name in names:
        app.queue(name).enqueue(b"x")
    try:
        assert [row["queue"] for row in told(run("status", "mail-*", "--json"))["queues"]] == names[:2]
        assert [row["queue"] for row in told(run("status", "m*", "media", "--json"))["queues"]] == names
        assert [row["queue"] for row in told(run("audit", "mail-?", "--json"))["queues"]] == names[:2]
        assert told(run("dead", "list", "mail-*", "--json")) == []
        assert told(run("schedules", "list", "mail-*", "--json")) == []
        refused(run("status", "post-*"), 3, "no queue in use matches 'post-*'")
    finally:
        for name in names:
            app.queue(name).purge()


def test_status_where_nothing_is(run: Run) -> None:
    result = run("status")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No queue is in use.\n")
    assert told(run("status", "--json"))["queues"] == []


def test_one_damaged_queue_does_not_hide_the_others(run: Run, queue: Queue, client: redis.Redis) -> None:
    queue.enqueue(b"x")
    client.set(keys.queue_key("damaged", "state"), "foreign")
    result = run("status")
    assert result.exit_code == 0
    assert "damaged: counts on queue 'damaged'" in result.stdout
    good, bad = told(run("status", "--json"))["queues"]
    assert (good["ready"], good["error"]) == (1, None)
    assert "has a wrong type" in bad["error"]
    client.delete(keys.queue_key("damaged", "state"))
    client.set(keys.queue_key(NAME, "meta"), "foreign")
    (bad,) = told(run("status", NAME, "--json"))["queues"]
    assert (bad["ready"], "has a wrong type" in bad["error"]) == (1, True)
    client.delete(keys.queue_key(NAME, "meta"))


def test_a_reader_of_one_queue_sees_that_one(run: Run, server: Server, queue: Queue) -> None:
    queue.enqueue(b"x")
    server.command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "+@all", "&*", f"~windlass:{{{NAME}}}:*")
    found = told(run("status", NAME, "--json", "--url", f"unix://narrow:pw@{server.socket_path}"))
    assert (found["workers"], found["queues"][0]["ready"], found["queues"][0]["workers"]) == (None, 1, None)
    server.command("ACL", "DELUSER", "narrow")


@pytest.mark.serves("H7")
def test_status_watched_by_a_program(server: Server, queue: Queue) -> None:
    queue.enqueue(b"x")
    process = subprocess.Popen(
        [WINDLASS, "status", NAME, "--watch", "--url", server.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["queues"][0]["ready"] == 1
    queue.enqueue(b"y")
    assert json.loads(process.stdout.readline())["queues"][0]["ready"] == 2
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (0, "")


def test_status_watched_on_a_terminal(server: Server, queue: Queue) -> None:
    queue.enqueue(b"x")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [WINDLASS, "status", "--watch", "--url", server.url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen = read_until(ours, b"no worker")
    assert NAME.encode() in seen
    process.send_signal(signal.SIGINT)
    rest = read_until(ours, None)
    assert process.wait(30) == 0
    assert b"Traceback" not in seen + rest
    assert b"\x1b[?25h" in rest, "the cursor is back"
    os.close(ours)


def read_until(fd: int, mark: bytes | None) -> bytes:
    """What a terminal shows, up to a mark or its end."""
    seen = b""
    while mark is None or mark not in seen:
        try:
            part = os.read(fd, 4096)
        except OSError:  # Linux says so when nobody writes any more
            break
        if not part:
            break
        seen += part
    return seen


# -- queues and workers ---------------------------------------------------------------------------------


def test_queues(run: Run, app: Windlass, queue: Queue) -> None:
    assert run("queues").stdout == ""
    assert told(run("queues", "--json")) == []
    queue.enqueue(b"x")
    app.queue("another").enqueue(b"x")
    assert run("queues").stdout == f"another\n{NAME}\n"
    assert told(run("queues", "--json")) == ["another", NAME]
    app.queue("another").purge()


def test_workers(run: Run, app: Windlass, client: redis.Redis) -> None:
    result = run("workers")
    assert (result.exit_code, result.stdout) == (0, "")
    record = WorkerRecord(
        "w-1",
        "host",
        77,
        "1",
        5.0,
        {"emails": 3, "media": 1},
        {"loop": 9, "thread": 8, "process": 2},
        4,
        1234,
        5 * 10**7,
    )
    perform_call(app, presence.beat(record))
    (found,) = told(run("workers", "--json"))
    assert (found["name"], found["queues"], found["finished"]) == ("w-1", {"emails": 3, "media": 1}, 1234)
    shown = run("workers").stdout
    for part in ("w-1", "host", "77", "working", "emails=3 media", "9/8/2", "1234", "50 MB"):
        assert part in shown
    client.delete(*keys.presence_keys())


# -- jobs -------------------------------------------------------------------------------------------------


@pytest.mark.serves("H7")
def test_jobs_of_every_state(run: Run, app: Windlass, queue: Queue) -> None:
    fill(app, queue)
    found = told(run("jobs", NAME, "--json"))
    assert found["cursors"] == {}
    assert {(job["state"], job["id"]) for job in found["jobs"]} == {
        ("ready", "ready"),
        ("scheduled", "parked"),
        ("scheduled", "later"),
        ("blocked", "running"),
        ("running", "running"),
        ("dead", "dead"),
        ("broken", "broken"),
    }
    assert all("data" not in job for job in found["jobs"])
    assert "payload of" not in run("jobs", NAME).output
    assert ["ready", "ready", "welcome", "3"] in [line[:4] for line in lines(run("jobs", NAME))]


def test_nothing_in_a_job_can_speak_to_the_terminal(run: Run, app: Windlass, queue: Queue) -> None:
    fill(app, queue)
    for words in (("jobs", NAME), ("jobs", NAME, "dead", "--data"), ("dead", "list", NAME, "--data")):
        shown = run(*words).stdout
        assert "\x1b" not in shown
        assert "\\x1b[31mbroken" in shown
        assert "[bold]beyond" in shown


def test_payloads_are_shown_on_request(run: Run, queue: Queue) -> None:
    payloads = {"a": b'{"big": 123456789012345678901234567890, "x": [1.50]}', "b": b"just text", "c": b"\xff\x00"}
    for id, data in payloads.items():
        queue.enqueue(data, id=id)
    jobs = {job["id"]: job["data"] for job in told(run("jobs", NAME, "--data", "--json"))["jobs"]}
    assert jobs == {"a": {"json": json.loads(payloads["a"])}, "b": {"text": "just text"}, "c": {"base64": "/wA="}}
    shown = run("jobs", NAME, "--data").stdout
    assert '{"big": 123456789012345678901234567890, "x": [1.50]}' in shown
    assert "base64:/wA=" in shown


def test_pages(run: Run, queue: Queue) -> None:
    for n in range(5):
        queue.enqueue(b"x", id=f"id{n}")
    first = told(run("jobs", NAME, "--limit", "3", "--json"))
    assert [job["id"] for job in first["jobs"]] == ["id0", "id1", "id2"]
    cursor = first["cursors"]["ready"]
    assert f"--state ready --cursor {cursor}" in run("jobs", NAME, "--limit", "3").stderr
    second = told(run("jobs", NAME, "--state", "ready", "--limit", "3", "--cursor", cursor, "--json"))
    assert [job["id"] for job in second["jobs"]] == ["id3", "id4"]
    assert second["cursors"] == {}
    refused(run("jobs", NAME, "--cursor", cursor), 2, "--state")
    refused(run("jobs", NAME, "--state", "dead", "--cursor", cursor), 2, "cursor")
    refused(run("jobs", NAME, "--state", "nowhere"), 2, "nowhere")
    refused(run("jobs", NAME, "--limit", "0"), 2, "--limit")


def test_jobs_of_an_empty_queue(run: Run) -> None:
    result = run("jobs", NAME)
    assert (result.exit_code, result.stdout) == (3, "")
    result = run("jobs", NAME, "--json")
    assert json.loads(result.stdout) == {"queue": NAME, "jobs": [], "cursors": {}}
    refused(result, 3, "not in use")


def test_a_broken_job_explains_its_state(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    lease = queue.lease(600)
    assert lease is not None
    perform_call(queue, layout_of(queue).turn([Broken(lease, "not JSON")]))
    assert "broken: a worker could not decode its payload, so this attempt did not run" in run("jobs", NAME, "a").stdout


def test_one_job_whole(run: Run, queue: Queue) -> None:
    queue.enqueue(b'{"task": "welcome"}', id="a", max_failures=7)
    lease = queue.lease(600)
    assert lease is not None
    queue.retry(lease, delay=500, message="no luck\nagain")
    shown = run("jobs", NAME, "a").stdout
    for part in ("welcome", "scheduled", "1 (max_failures 7)", "no luck", "again", "--data shows it", "(in 8m"):
        assert part in shown
    assert '"task"' not in shown
    assert '{"task": "welcome"}' in run("jobs", NAME, "a", "--data").stdout
    found = told(run("jobs", NAME, "a", "--json"))
    assert (found["id"], found["failures"], found["message"], found["task"]) == ("a", 1, "no luck\nagain", "welcome")


def test_a_job_that_is_not_there(run: Run) -> None:
    refused(run("jobs", NAME, "nobody"), 3, "nobody")
    refused(run("jobs", NAME, "nobody", "--json"), 3, "nobody")
    refused(run("jobs", NAME, "nobody", "--state", "dead"), 2, "--state")


# -- the dead ---------------------------------------------------------------------------------------------


@pytest.mark.serves("H7")
def test_the_dead_are_listed_with_their_reason(run: Run, app: Windlass, queue: Queue) -> None:
    fill(app, queue)
    head, row = lines(run("dead", "list", NAME))
    assert head == ["id", "task", "died", "reason", "failures", "stalls", "message"]
    assert row[0] == "dead"
    (found,) = told(run("dead", "list", NAME, "--json"))["jobs"]
    assert found["reason"] == "failed"
    assert found["message"].startswith("it is")
    assert found["died_at"] > 0
    (broken,) = told(run("dead", "list", NAME, "--broken", "--json"))["jobs"]
    assert (broken["id"], broken["message"]) == ("broken", "no JSON")


def kill(queue: Queue, *ids: str) -> None:
    for id in ids:
        queue.enqueue(b"x", id=id)
    for lease in queue.lease_many(len(ids), 600):
        queue.fail(lease, "no use")


def test_the_dead_of_all_queues(run: Run, app: Windlass, queue: Queue) -> None:
    other = app.queue("cli-other")
    for each, count in ((queue, 2), (other, 1)):
        for number in range(count):
            each.enqueue(b"x", id=f"{each.name}-{number}")
            lease = each.lease()
            assert lease is not None
            assert each.fail(lease, "no")
    head, *rows = lines(run("dead", "list"))
    assert head[:2] == ["queue", "id"]
    assert [row[:2] for row in rows] == [
        [NAME, f"{NAME}-1"],
        [NAME, f"{NAME}-0"],
        ["cli-other", "cli-other-0"],
    ]
    found = told(run("dead", "list", "--json", "--limit", "1"))
    assert [(each["queue"], len(each["jobs"])) for each in found] == [(NAME, 1), ("cli-other", 1)]
    assert found[0]["cursors"].keys() == {"dead"}
    assert f"windlass dead list {NAME} --cursor" in run("dead", "list", "--limit", "1").stderr
    refused(run("dead", "list", "--cursor", "x"), 2, "name the queue")
    other.purge()
    queue.purge()
    assert run("dead", "list").stderr == "No dead job on any queue.\n"


def test_a_job_for_a_failure_handler_names_whom_it_is_for(run: Run, queue: Queue) -> None:
    layout = layout_of(queue)
    perform_call(queue, layout.beat("w", 30, register=True, failure_handler=Limits()))
    queue.enqueue(b'{"task": "welcome"}', id="a")
    lease = queue.lease()
    assert lease is not None
    assert queue.fail(lease, "no")
    (job,) = told(run("jobs", NAME, "--json"))["jobs"]
    assert (job["task"], job["failed"]) == ("welcome", "a")
    assert "welcome" in run("jobs", NAME).stdout
    assert "handles the failure of a" in run("jobs", NAME).stdout
    assert "the failure of a" in run("jobs", NAME, job["id"]).stdout


def test_the_dead_come_back_by_their_ids(run: Run, queue: Queue) -> None:
    kill(queue, "a", "b", "c")
    assert run("dead", "retry", NAME, "a").stdout == f"1 job of {NAME} made ready again.\n"
    result = run("dead", "retry", NAME, "b", "nobody", "--json")
    assert told(result, 3) == {"queue": NAME, "revived": ["b"], "missing": ["nobody"]}
    assert "nobody" in result.stderr
    assert (queue.counts().ready, queue.counts().dead) == (2, 1)


def test_all_of_the_dead_or_the_broken_come_back(run: Run, app: Windlass, queue: Queue) -> None:
    kill(queue, *(f"id{n}" for n in range(120)))
    assert len(told(run("dead", "retry", NAME, "--all", "--json"))["revived"]) == 120
    queue.purge()
    fill(app, queue)
    assert told(run("dead", "retry", NAME, "--all", "--broken", "--json"))["revived"] == ["broken"]
    assert queue.counts().dead == 1
    assert run("dead", "retry", NAME, "--all", "--broken").stdout == f"0 jobs of {NAME} made ready again.\n"


def test_which_of_the_dead_must_be_said(run: Run) -> None:
    refused(run("dead", "retry", NAME), 2, "--all")
    refused(run("dead", "retry", NAME, "a", "--all"), 2, "--all")
    refused(run("dead", "retry", NAME, "a", "--broken"), 2, "--broken")


def test_the_dead_are_purged_when_one_agrees(run: Run, app: Windlass, queue: Queue) -> None:
    fill(app, queue)
    refused(run("dead", "purge", NAME, answer="n\n"), 1, f"Delete 1 dead job of queue {NAME}?")
    assert queue.counts().dead == 1
    assert run("dead", "purge", NAME, answer="y\n").exit_code == 0
    assert told(run("dead", "purge", NAME, "--broken", "--yes", "--json")) == {
        "queue": NAME,
        "state": "broken",
        "deleted": 1,
    }
    assert (queue.counts().dead, queue.counts().broken, queue.counts().running) == (0, 0, 1)


# -- orders -----------------------------------------------------------------------------------------------


def test_purge_asks(run: Run, queue: Queue) -> None:
    for n in range(3):
        queue.enqueue(b"x", id=f"id{n}")
    queue.lease(600)
    refused(run("purge", NAME, answer="n\n"), 1, f"Delete 3 jobs of queue {NAME}, 1 of them running?")
    refused(run("purge", NAME), 1)  # nobody there to answer
    refused(run("purge", NAME, "--state", "running", "--yes"), 2, "running")
    assert told(run("purge", NAME, "--state", "ready", "--yes", "--json"))["deleted"] == 2
    assert run("purge", NAME, "--yes").stdout == f"1 job of {NAME} deleted.\n"


def test_pause_and_resume(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x")
    assert run("pause", NAME).stdout == f"{NAME} is paused.\n"
    assert run("pause", NAME).stdout == f"{NAME} was paused already.\n"
    assert queue.lease() is None
    assert run("resume", NAME).stdout == f"{NAME} is resumed.\n"
    assert run("resume", NAME).stdout == f"{NAME} was not paused.\n"
    assert queue.lease() is not None


def test_cancel(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    assert run("cancel", NAME, "a").exit_code == 0
    refused(run("cancel", NAME, "a"), 3, "never existed")
    queue.enqueue(b"x", id="b")
    lease = queue.lease(600)
    assert lease is not None
    refused(run("cancel", NAME, "b"), 3, "--running")
    assert run("cancel", NAME, "b", "--running").stdout.startswith(f"{NAME}/b runs; its worker stops it.")
    assert not queue.extend(lease, 30)


def test_orders_answer_in_json(run: Run, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    assert told(run("pause", NAME, "--json")) == {"queue": NAME, "paused": True, "changed": True}
    assert told(run("pause", NAME, "--json")) == {"queue": NAME, "paused": True, "changed": False}
    assert told(run("resume", NAME, "--json")) == {"queue": NAME, "paused": False, "changed": True}
    assert queue.lease(600) is not None
    assert told(run("cancel", NAME, "a", "--running", "--json")) == {"queue": NAME, "id": "a", "state": "told"}
    queue.enqueue(b"x", id="b")
    assert told(run("cancel", NAME, "b", "--json")) == {"queue": NAME, "id": "b", "state": "cancelled"}


# -- how things are written -------------------------------------------------------------------------------


def test_lengths_sizes_and_lines() -> None:
    assert [format_duration(s) for s in (0, 0.4, 59, 60, 3661, 90_000, 86_400 * 3)] == [
        "0s", "0s", "59s", "1m", "1h 1m", "1d 1h", "3d",
    ]  # fmt: skip
    assert [format_size(n) for n in (None, 0, 999, 1500, 5 * 10**7, 3 * 10**9)] == [
        None, "0 B", "999 B", "2 kB", "50 MB", "3.0 GB",
    ]  # fmt: skip
    assert format_relative(None) is None
    assert format_relative(5.0).endswith(" ago")  # type: ignore[union-attr]
    assert first_line("one\ntwo") == "one…"
    assert first_line("one\n") == "one"
    assert first_line("x" * 300, 10) == "x" * 9 + "…"
    assert printable("a\nb\x1b\udc80é漢") == "a\\nb\\x1b\\udc80é漢"


def test_jobs_are_found_by_their_tags_and_status_counts_them(run: Run, queue: Queue) -> None:
    run("enqueue", "--raw", NAME, "data", "--id", "a", "--tag", "eu", "--tag", "import")
    queue.enqueue(b"data", id="b", tags=["us"], delay=60)
    queue.enqueue(b"data", id="c")
    assert [(job["id"], job["tags"]) for job in told(run("jobs", NAME, "--tag", "eu", "--json"))["jobs"]] == [
        ("a", ["eu", "import"])
    ]
    assert told(run("jobs", NAME, "a", "--json"))["tags"] == ["eu", "import"]
    assert "eu import" in run("jobs", NAME, "a").stdout
    listed = run("jobs", NAME).stdout
    assert "tags" in listed.splitlines()[0]
    assert "eu import" in listed
    assert "tags" not in run("jobs", NAME, "--state", "dead").stdout
    assert run("jobs", NAME, "--tag", "none", "--state", "ready").stderr == f"No ready on {NAME} with the tag none.\n"
    refused(run("jobs", NAME, "--tag", "two words"), 2, "is not a tag")
    refused(run("jobs", NAME, "a", "--tag", "eu"), 2, "--tag")
    (status,) = told(run("status", NAME, "--json"))["queues"]
    assert (status["tags"], status["tags_complete"]) == ({"eu": 1, "import": 1, "us": 1}, True)


def test_a_search_for_a_tag_ends_and_tells_where_to_go_on(run: Run, queue: Queue) -> None:
    queue.enqueue_many([b""] * 21_000)
    queue.enqueue(b"", id="last", tags=["rare"])
    result = run("jobs", NAME, "--tag", "rare", "--state", "ready")
    assert result.stdout == ""
    cursor = result.stderr.split()[-1]
    found = told(run("jobs", NAME, "--tag", "rare", "--state", "ready", "--cursor", cursor, "--json"))
    assert ([job["id"] for job in found["jobs"]], found["cursors"]) == (["last"], {})


def test_a_job_with_an_expiry_is_enqueued_and_shown(run: Run, queue: Queue) -> None:
    run("enqueue", "--raw", NAME, "data", "--id", "a", "--expires", "10m")
    record = queue.get("a")
    assert record is not None
    assert told(run("jobs", NAME, "a", "--json"))["expires_at"] == record.expires_at
    assert "expires at" in run("jobs", NAME, "a").stdout
    refused(run("enqueue", "--raw", NAME, "data", "--expires", "soon"), 2, "--expires")
    queue.enqueue(b"data", id="b")
    assert told(run("jobs", NAME, "b", "--json"))["expires_at"] is None


def test_snoozes_are_shown_where_there_are_any(run: Run, queue: Queue) -> None:
    queue.enqueue(b"1", id="a", max_snoozes=7)
    queue.enqueue(b"2", id="b")
    assert "snoozes" not in run("jobs", NAME).stdout
    first, _ = queue.lease_many(2)
    assert settle(queue, Snoozed(first, ("in", 3_600_000), "rate limit")) == (True,)
    assert lines(run("jobs", NAME))[0][-1] == "snoozes"
    assert "1 (max_snoozes 7)" in run("jobs", NAME, "a").stdout
    assert "snoozes" not in run("jobs", NAME, "b").stdout
    facts = told(run("jobs", NAME, "a", "--json"))
    assert (facts["snoozes"], facts["limits"]["max_snoozes"], facts["message"]) == (1, 7, "rate limit")
    assert "expires" not in run("jobs", NAME, "b").stdout
