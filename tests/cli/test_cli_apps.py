"""The commands that need an app in Python: `worker`, `enqueue`, `tasks`, `schedules`, each against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

import windlass
from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import Queue, Windlass
from windlass.cli import main
from windlass.worker.settings import Settings

WINDLASS = Path(sys.executable).with_name("windlass")
QUEUE = "cli-emails"
APP = textwrap.dedent(
    f"""
    from __future__ import annotations

    import asyncio
    from windlass import Windlass, Job, current

    app = Windlass()

    @app.task(queue="{QUEUE}", max_failures=3, timeout="30s", priority=4)
    async def welcome(user_id: int, locale: str = "en", job: Job = current()) -> None:
        '''Say hello.

        In their own language.
        '''
        with open("said", "a") as file:
            file.write(f"{{user_id}} {{locale}}\\n")

    @welcome.on_failure
    def sorry(data: bytes) -> None: ...

    @app.task(queue="{QUEUE}")
    async def slow() -> None:
        open("began", "w").close()
        await asyncio.sleep(600)

    @app.handler("cli-raw")
    def handle(data: bytes) -> None: ...
    """
)

Run = Callable[..., Result]


@pytest.fixture
def shop(
    server: Server,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The name of an app whose module lies in the current folder."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", server.url)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_jobs.py").write_text(APP)
    return "shop_jobs:app"


@pytest.fixture
def queue(app: Windlass) -> Iterator[Queue]:
    queue = app.queue(QUEUE)
    yield queue
    queue.purge()


def run(*words: str, stdin: bytes | None = None) -> Result:
    """Run a command as a process of its own would: with no app imported yet."""
    for module in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[module]
    return CliRunner().invoke(main, words, input=stdin)


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.output
    said = " ".join(result.stderr.replace("│", " ").split())
    assert all(word in said for word in words), said


def payloads(queue: Queue) -> list[Any]:
    return [json.loads(job.data) for state in ("ready", "scheduled") for job in queue.all_jobs(state)]


# -- enqueue ----------------------------------------------------------------------------------------------


def test_a_task_is_enqueued_with_its_arguments(shop: str, queue: Queue) -> None:
    result = run("enqueue", "welcome", "42", "locale=fr", "--app", shop, "--id", "a")
    assert (result.exit_code, result.stdout) == (0, f"{QUEUE}/a: added\n")
    assert payloads(queue) == [{"task": "shop_jobs.welcome", "args": {"user_id": 42, "locale": "fr"}}]
    job = queue.get("a")
    assert job is not None
    assert (job.priority, job.limits.max_failures) == (4, 3)


def test_options_of_a_job(shop: str, app: Windlass, queue: Queue) -> None:
    receipt = told(
        run("enqueue", "welcome", "user_id=1", "--app", shop, "--delay", "5m", "--priority", "9", "--queue", "aside",
            "--json")
    )  # fmt: skip
    assert (receipt["queue"], receipt["task"], receipt["status"]) == ("aside", "shop_jobs.welcome", "added")
    job = app.queue("aside").get(receipt["id"])
    assert job is not None
    assert (job.state, job.priority) == ("scheduled", 9)
    again = told(run("enqueue", "welcome", "1", "--app", shop, "--id", receipt["id"], "--queue", "aside", "--json"))
    assert again["status"] == "updated"
    app.queue("aside").purge()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["forty-two"], "argument 'user_id' must be int, not str"),
        ([], "argument 'user_id' is missing"),
        (["1", "locale=7"], "argument 'locale' must be str, not int"),
        (["1", "mood=fine"], "there is no argument 'mood'"),
        (["1", "user_id=2"], "given twice"),
        (["user_id=1", "user_id=2"], "given twice"),
        (["user_id=1", "fr"], "give positional arguments first"),
        (["1", "job=1"], "filled in"),
        (["NaN"], "must be int"),
    ],
)
def test_arguments_are_checked_against_the_signature(
    shop: str, queue: Queue, arguments: list[str], complaint: str
) -> None:
    refused(run("enqueue", "welcome", *arguments, "--app", shop), 2, complaint)
    assert queue.counts().waiting == 0


def test_text_that_looks_like_a_number_is_written_in_quotes(shop: str, queue: Queue) -> None:
    assert run("enqueue", "welcome", "1", 'locale="7"', "--app", shop).exit_code == 0
    assert run("enqueue", "welcome", "--app", shop, "--", "-5", "=").exit_code == 0
    assert [each["args"] for each in payloads(queue)] == [
        {"user_id": 1, "locale": "7"},
        {"user_id": -5, "locale": "="},
    ]


def test_a_task_that_is_not_there(shop: str, queue: Queue) -> None:
    refused(run("enqueue", "farewell", "--app", shop), 3, "'farewell'", "shop_jobs.welcome, shop_jobs.slow")


def test_without_an_app_it_is_written_as_it_is(shop: str, queue: Queue) -> None:
    assert run("enqueue", "elsewhere", "1", '{"a": [2]}', "--queue", QUEUE).exit_code == 0
    assert run("enqueue", "elsewhere", "a=1", "b=x y", "--queue", QUEUE).exit_code == 0
    assert run("enqueue", "elsewhere", "--queue", QUEUE).exit_code == 0
    assert [each.get("args") for each in payloads(queue)] == [[1, {"a": [2]}], {"a": 1, "b": "x y"}, {}]
    refused(run("enqueue", "elsewhere", "1", "b=2", "--queue", QUEUE), 2, "by position or all by name")
    refused(run("enqueue", "else where", "--queue", QUEUE), 2, "is not a task name")


def test_who_names_neither_app_nor_queue_is_warned(shop: str, app: Windlass, queue: Queue) -> None:
    result = run("enqueue", "elsewhere", "1")
    assert result.exit_code == 0
    assert "the arguments were not checked" in result.stderr
    assert "--app" in result.stderr
    assert run("enqueue", "elsewhere", "1", "--queue", QUEUE).stderr == ""
    assert run("enqueue", "welcome", "1", "--app", shop).stderr == ""
    app.queue("default").purge()


def test_a_url_on_the_command_line_is_where_it_goes(shop: str, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["WINDLASS_URL"]
    monkeypatch.setenv("WINDLASS_URL", "redis://127.0.0.1:1")
    assert run("enqueue", "welcome", "1", "--app", shop, "--url", url).exit_code == 0
    assert queue.counts().ready == 1


def test_an_app_with_a_server_of_its_own_is_not_led_astray(
    shop: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers look there, whatever the environment says."""
    url = os.environ["WINDLASS_URL"]
    module = Path(shop.replace(":app", ".py"))
    module.write_text(module.read_text().replace("Windlass()", f"Windlass({url!r})"))
    monkeypatch.setenv("WINDLASS_URL", "redis://127.0.0.1:1")
    assert run("enqueue", "welcome", "1", "--app", shop).exit_code == 0
    assert told(run("queues", "--app", shop, "--json")) == [QUEUE]


def test_raw_bytes(shop: str, queue: Queue) -> None:
    assert run("enqueue", "--raw", QUEUE, "text").exit_code == 0
    receipt = told(run("enqueue", "--raw", QUEUE, "-", "--id", "in", "--json", stdin=b"\x00\xff\n"))
    assert receipt == {"queue": QUEUE, "task": None, "id": "in", "status": "added", "durability": "memory"}
    assert [job.data for job in queue.all_jobs("ready")] == [b"text", b"\x00\xff\n"]


@pytest.mark.parametrize(
    "words",
    [
        ("--raw", QUEUE),
        ("--raw", QUEUE, "a", "b"),
        ("--raw", QUEUE, "a", "--queue", "x"),
        ("--raw", "no good", "a"),
        ("--raw", QUEUE, "a", "--delay", "soon"),
        ("--raw", QUEUE, "a", "--priority", "10"),
        (),
    ],
    ids=" ".join,
)
def test_what_cannot_be_enqueued_is_wrong_usage(shop: str, queue: Queue, words: tuple[str, ...]) -> None:
    refused(run("enqueue", *words), 2)
    assert queue.counts().waiting == 0


# -- apps that cannot be loaded ---------------------------------------------------------------------------

REFUSED = """
from windlass import Windlass

app = Windlass()

def declare():
    @app.task(queu="emails")
    def x() -> None: ...

declare()
"""
TIMED = """
from windlass import Windlass
app = Windlass()
@app.task
def x() -> None: ...
app.schedule("nightly", x.call(), cron="at night")
"""[1:]


@pytest.mark.parametrize(
    ("name", "text", "words", "code"),
    [
        ("missing_shop:app", None, ["No module named 'missing_shop'"], 1),
        ("odd_shop:app", "import nowhere_to_be_found", ["odd_shop.py", "nowhere_to_be_found"], 1),
        ("raising_shop:app", "def f():\n    raise ValueError('no good')\nf()", ["in f", "ValueError: no good"], 1),
        ("leaving_shop:app", "raise SystemExit(7)", ["SystemExit: 7"], 1),
        ("empty_shop:app", "", ["'app' does not exist"], 1),
        ("other_shop:app", "app = 42", ["not Windlass"], 1),
        (
            "refused_shop:app",
            REFUSED,
            ["in declare", "InvalidTask: task 'refused_shop.declare.x': unknown option 'queu'"],
            1,
        ),
        ("timed_shop:app", TIMED, ["line 5", "not a cron expression"], 1),
        ("just_a_module", None, ["module:attribute"], 2),
    ],
)
@pytest.mark.parametrize("command", [["tasks", "--app"], ["enqueue", "t", "--app"], ["status", "--app"], ["worker"]])
def test_an_app_that_cannot_be_imported(
    shop: str, name: str, text: str | None, words: list[str], code: int, command: list[str]
) -> None:
    """The lines of the user's own code, the message, and how to name an app only where that may help."""
    module = name.partition(":")[0]
    if text is not None:
        Path(f"{module}.py").write_text(text)
    if command == ["worker"]:
        done = subprocess.run([WINDLASS, "worker", name], capture_output=True, text=True, timeout=30, check=False)
        ended, said = done.returncode, done.stderr
    else:
        result = run(*command, name)
        ended, said = result.exit_code, result.stderr
    sys.modules.pop(module, None)
    assert ended == code, said
    assert said.startswith("windlass: ")
    assert all(word in said for word in words), said
    assert str(Path(windlass.__file__).parent) not in said
    assert "contextlib" not in said
    assert said.count("run the command in the folder that the module is in") == (module == "missing_shop")


# -- tasks ------------------------------------------------------------------------------------------------


def test_tasks(shop: str) -> None:
    welcome, slow, handler = told(run("tasks", "--app", shop, "--json"))
    assert (welcome["task"], welcome["queue"], welcome["run"], welcome["timeout"]) == (
        "shop_jobs.welcome",
        QUEUE,
        "loop",
        30.0,
    )
    assert welcome["limits"]["max_failures"] == 3
    assert welcome["signature"] == "(user_id: int, locale: str = 'en') -> None"
    assert (welcome["doc"], welcome["failure_handler"]) == ("Say hello.", "sorry")
    assert (slow["doc"], slow["failure_handler"]) == (None, None)
    assert (handler["task"], handler["queue"], handler["run"]) == (None, "cli-raw", "thread")
    shown = run("tasks", "--app", shop).stdout
    for part in ("welcome", "30 s", "sorry", "Say hello.", "(handler)", "cli-raw"):
        assert part in shown


def test_tasks_need_an_app(shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run("tasks"), 2, "--app")
    monkeypatch.setenv("WINDLASS_APP", shop)
    assert len(told(run("tasks", "--json"))) == 3


# -- schedules --------------------------------------------------------------------------------------------


@pytest.fixture
def digest(shop: str, app: Windlass, queue: Queue) -> Iterator[str]:
    app.schedules.add("digest", (QUEUE, b'{"task": "welcome"}'), cron="0 9 * * *", zone="Europe/Berlin")
    yield "digest"
    app.schedules.delete(QUEUE, "digest")


def test_schedules_are_listed(digest: str) -> None:
    (found,) = told(run("schedules", "list", "--json"))
    assert (found["name"], found["queue"], found["when"]) == ("digest", QUEUE, "0 9 * * * Europe/Berlin")
    assert (found["paused"], found["declared"], found["fired"]) == (False, False, 0)
    assert found["next_at"] > 0
    assert "data" not in found
    (with_data,) = told(run("schedules", "list", QUEUE, "--data", "--json"))
    assert with_data["data"] == {"json": {"task": "welcome"}}
    assert json.loads(run("schedules", "list", "other", "--json").stdout) == []
    shown = run("schedules", "list").stdout
    assert "0 9 * * * Europe/Berlin" in shown
    assert " on " in shown


def test_a_schedule_is_paused_and_resumed(digest: str) -> None:
    assert run("schedules", "pause", QUEUE, digest).stdout == f"{QUEUE}/digest is paused.\n"
    assert run("schedules", "pause", QUEUE, digest).stdout == f"{QUEUE}/digest was paused already.\n"
    assert "paused" in run("schedules", "list").stdout
    assert run("schedules", "resume", QUEUE, digest).stdout == f"{QUEUE}/digest is resumed.\n"
    assert run("schedules", "resume", QUEUE, digest).stdout == f"{QUEUE}/digest was not paused.\n"
    told_of = {"queue": QUEUE, "name": "digest"}
    assert told(run("schedules", "pause", QUEUE, digest, "--json")) == told_of | {"paused": True, "changed": True}
    assert told(run("schedules", "resume", QUEUE, digest, "--json")) == told_of | {"paused": False, "changed": True}
    assert told(run("schedules", "delete", QUEUE, digest, "--yes", "--json")) == told_of | {"deleted": True}


def test_a_schedule_is_run_now(digest: str, queue: Queue) -> None:
    receipt = told(run("schedules", "run", QUEUE, digest, "--json"))
    assert (receipt["queue"], receipt["status"]) == (QUEUE, "added")
    assert payloads(queue) == [{"task": "welcome"}]
    assert ": kept" in run("schedules", "run", QUEUE, digest).stdout


def test_a_schedule_is_deleted_when_one_agrees(digest: str, app: Windlass) -> None:
    refused(CliRunner().invoke(main, ["schedules", "delete", QUEUE, digest], input="n\n"), 1, "Delete schedule digest")
    assert app.schedules.get(QUEUE, digest) is not None
    assert run("schedules", "delete", QUEUE, digest, "--yes").exit_code == 0
    assert app.schedules.get(QUEUE, digest) is None


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "delete"])
def test_a_schedule_that_is_not_there(shop: str, app: Windlass, queue: Queue, verb: str) -> None:
    refused(run("schedules", verb, QUEUE, "nobody"), 3, "nobody")


# -- worker -----------------------------------------------------------------------------------------------


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([WINDLASS, "worker", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_worker_runs_jobs_is_seen_and_drains(shop: str, app: Windlass, queue: Queue) -> None:
    process = start(
        shop, "--queue", f"{QUEUE}=3", "--name", "worker_process", "--grace", "10s", "--threads", "2", "--lease", "3s"
    )
    try:
        assert run("enqueue", "welcome", "42", "locale=fr", "--app", shop).exit_code == 0
        said = Path("said")
        wait_until(lambda: said.exists() and said.read_text() == "42 fr\n", "the job to run")
        (worker,) = wait_until(app.workers, "the worker to show up")
        assert worker.name.startswith("worker_process-")
        assert (worker.pid, worker.queues, worker.slots["thread"]) == (process.pid, {QUEUE: 3}, 2)
        assert told(run("workers", "--json"))[0]["name"] == worker.name
        wait_until(lambda: queue.counts().running == 0, "the job to be settled")
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=10)
    finally:
        process.kill()
    assert (process.returncode, output) == (0, ""), errors
    assert all(json.loads(line)["level"] == "info" for line in errors.splitlines())  # no terminal: JSON
    assert app.workers() == []


def test_ctrl_c_twice_gives_back_what_runs(shop: str, app: Windlass, queue: Queue) -> None:
    process = start(shop, "--log-format", "text", "--grace", "60s")
    try:
        assert run("enqueue", "slow", "--app", shop, "--id", "a").exit_code == 0
        wait_until(Path("began").exists, "the job to begin")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: [worker.state for worker in app.workers()] == ["stopping"], "the worker to stop")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=15)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "Stopping now" in errors
    job = queue.get("a")
    assert job is not None
    assert (job.state, job.failures, job.stalls) == ("ready", 0, 0)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["--queue", "no good"], 2, "is not a queue name"),
        (["--queue", "mail-*"], 3, "no queue of shop_jobs:app matches 'mail-*': it has cli-"),
        (["--queue", "a=0"], 2, "weight"),
        (["--queue", "a=x"], 2, "weight"),
        (["--queue", "a", "--queue", "a=2"], 2, "twice"),
        (["--concurrency", "0"], 2, "neither auto nor a number"),
        (["--concurrency", "many"], 2, "neither auto nor a number"),
        (["--lease", "soon"], 2, "--lease='soon' is not a duration"),
        (["--url", "redis://localhost"], 2, "it uses the server of its app"),
        (["--lease", "10ms"], 2, "out of range"),
        (["--grace", "-1"], 2, "out of range"),
        (["--max-rss", "big"], 2, "is not a size"),
        (["--max-jobs", "0"], 2, "--max-jobs"),
        (["--log-level", "loud"], 2, "loud"),
        (["--name", "no good"], 2, "is not a worker name"),
    ],
)
def test_a_worker_that_cannot_be_run_like_this(shop: str, words: list[str], code: int, complaint: str) -> None:
    process = start(shop, *words)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert complaint in " ".join(errors.replace("│", " ").split())


def test_a_worker_without_its_server(shop: str) -> None:
    module = Path(shop.replace(":app", ".py"))
    module.write_text(module.read_text().replace("Windlass()", 'Windlass("redis://127.0.0.1:1", retry_for=0.2)'))
    process = start(shop, "--log-format", "text")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4, errors
    first, last = errors.splitlines()
    assert "Cannot reach the server" in first
    assert "trying for 0.2 s" in first
    assert last.startswith("windlass: ")
    assert "127.0.0.1:1" in last


def test_ctrl_c_ends_a_worker_that_looks_for_its_server(shop: str) -> None:
    module = Path(shop.replace(":app", ".py"))
    module.write_text(module.read_text().replace("Windlass()", 'Windlass("redis://127.0.0.1:1", retry_for=300)'))
    process = start(shop, "--log-format", "text")
    assert process.stderr is not None
    try:
        assert "Cannot reach the server" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert (process.returncode, errors.split()[1:]) == (0, ["·", "Stopping"])


def test_a_worker_tells_of_each_job_if_asked_to(shop: str, queue: Queue) -> None:
    process = start(shop, "--log-jobs", "--log-format", "text")
    try:
        assert run("enqueue", "welcome", "42", "--app", shop, "--id", "a").exit_code == 0
        said = Path("said")
        wait_until(said.exists, "the job to run")
        wait_until(lambda: queue.counts().running == 0, "the job to be settled")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
    finally:
        process.kill()
    assert re.search(rf"· shop_jobs\.welcome {QUEUE}/a: done in 0\.\d\d s\n", errors), errors
    assert errors.endswith("stopped; jobs run: 1\n")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """What a worker is told for these words."""
    seen: list[tuple[str, Settings]] = []

    def run_worker(target: str, settings: Settings) -> int:
        seen.append((target, settings))
        return 0

    monkeypatch.setattr("windlass.worker.supervisor.supervisor.run_worker", run_worker)
    monkeypatch.setattr("windlass.worker.logs.set_up_logs", lambda *_: None)
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)

    def invoke(*words: str) -> Settings:
        result = CliRunner().invoke(main, ["worker", "shop:app", *words])
        assert result.exit_code == 0, result.output
        target, settings = seen.pop()
        assert target == "shop:app"
        return settings

    return invoke


def test_a_worker_is_told_what_the_flags_say(settled: Callable[..., Settings]) -> None:
    plain = settled()
    assert plain == Settings(plain.name, {}, log_format="json")
    given = settled(
        "--queue", "a=3", "--queue", "b", "--concurrency", "auto", "--threads", "3", "--processes", "1",
        "--lease", "1m", "--grace", "1h30m", "--kill-grace", "0", "--max-jobs", "9", "--max-rss", "1.5G",
        "--name", "web-1", "--watch", "--log-format", "text", "--log-level", "DEBUG",
    )  # fmt: skip
    assert given == Settings(
        given.name, {"a": 3, "b": 1}, 1000, True, 3, 1, 60.0, 5400.0, 0.0, 9, 1536 * 2**20, True, "text", "debug"
    )
    assert given.name.startswith("web-1-")
    assert settled("--name", "web-1").name != given.name


def test_the_short_flags_of_a_worker(settled: Callable[..., Settings]) -> None:
    given = settled("-q", "a=3", "-q", "b", "-c", "50", "-p", "4", "-t", "6")
    assert (given.queues, given.concurrency, given.processes, given.threads) == ({"a": 3, "b": 1}, 50, 4, 6)


def test_a_worker_is_told_what_the_variables_say(
    settled: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDLASS_WORKER_QUEUE", "a=2 b")
    monkeypatch.setenv("WINDLASS_WORKER_MAX_RSS", "500M")
    monkeypatch.setenv("WINDLASS_WORKER_CONCURRENCY", "auto")
    monkeypatch.setenv("WINDLASS_WORKER_GRACE", "90")
    given = settled("--grace", "2m")
    assert (given.queues, given.max_rss, given.auto, given.grace) == ({"a": 2, "b": 1}, 500 * 2**20, True, 120.0)
