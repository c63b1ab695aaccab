"""The command line on queues of every layout."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from tests.support.layouts import LAYOUTS
from tests.support.server import Server
from windlass import Windlass
from windlass.cli import main
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.port import Capability

Run = Callable[..., Result]
NAME = "spoken"


@pytest.fixture
def run(server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the test's server; under it the check that no key is left."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WINDLASS_URL", server.url)
    return lambda *words: CliRunner().invoke(main, words)


def told(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_jobs_go_in_are_shown_and_go(run: Run, layout: str) -> None:
    words = ("--layout", layout)
    for number in range(3):
        assert run("enqueue", "--raw", NAME, f'{{"n": {number}}}', *words).exit_code == 0
    (status,) = told(run("status", NAME, "--json", *words))["queues"]
    assert (status["ready"], status["running"]) == (3, 0)
    jobs = told(run("jobs", NAME, "--json", "--data", *words))["jobs"]
    assert sorted(job["data"]["json"]["n"] for job in jobs) == [0, 1, 2]  # queasy has no order among equals
    assert run("purge", NAME, "--yes", *words).exit_code == 0
    (status,) = told(run("status", NAME, "--json", *words))["queues"]
    assert status["ready"] == 0
    assert not os.environ.get("WINDLASS_LAYOUTS"), "it holds for one command"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_queue_may_be_named_with_its_layout(run: Run, layout: str) -> None:
    (status,) = told(run("status", "--json", "--layout", f"{NAME}={layout}"))["queues"]
    assert (status["queue"], status["error"]) == (NAME, None)


@pytest.mark.speaks("hworker", "H7")
def test_what_failed_and_what_is_broken_can_be_looked_at_and_brought_back(
    run: Run, server: Server, client: redis.Redis
) -> None:
    words = (NAME, "--layout", "hworker")
    client.lpush(f"hworker-jobs-{NAME}", "no job at all")
    with Windlass(server.url, layouts={NAME: "hworker"}) as app:
        queue = app.queue(NAME)
        queue.enqueue(b'{"to": "ann"}')
        lease = queue.lease()
        assert lease is not None
        (running,) = told(run("jobs", "--json", "--state", "running", *words))["jobs"]
        assert running["id"] == lease.id
        assert queue.fail(lease, "no such address")
        (dead,) = told(run("dead", "list", "--json", *words))["jobs"]
        assert dead["id"] == lease.id
        (broken,) = told(run("dead", "list", "--broken", "--json", *words))["jobs"]
        assert broken["state"] == "broken"
        assert run("dead", "retry", *words, lease.id).exit_code == 0
        assert queue.counts().ready == 1
        assert run("dead", "purge", "--broken", "--yes", *words).exit_code == 0
        queue.purge()


def test_the_table_of_layouts(run: Run) -> None:
    found = told(run("layouts", "--json"))
    assert set(found) == {"native", *LAYOUTS}
    assert set(found["native"]) == {capability.name.lower() for capability in Capability}
    shown = run("layouts").output
    for capability in Capability:
        (line,) = [line for line in shown.splitlines() if line.startswith(capability)]
        assert line.removeprefix(capability).split() == [
            "yes" if capability in can else "-" for can in CAPABILITIES.values()
        ]


@pytest.mark.parametrize(
    ("given", "complaint"), [("celery", "unknown layout 'celery'"), ("a b=worqr", "is not a queue name")]
)
def test_a_layout_that_is_none(run: Run, given: str, complaint: str) -> None:
    result = run("status", "--layout", given)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.replace("│", " ").split())
