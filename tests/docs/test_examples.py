"""Every example runs by itself, says what it should, and leaves no key behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import redis

from tests.support.server import Server
from tests.support.waiting import LIMIT_S, wait_until
from windlass import Windlass

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
SHOP = FOLDER / "shop"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, server: Server, client: redis.Redis) -> None:
    result = subprocess.run(
        [sys.executable, example],
        capture_output=True,
        text=True,
        env=os.environ | {"WINDLASS_URL": server.url},
        timeout=1.75 * LIMIT_S,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].split() == ["left", "0"]


def test_the_shop_as_its_first_lines_say(server: Server) -> None:
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {"WINDLASS_URL": server.url, "SHOP_FOLDER": folder}
        ledger = Path(folder) / "ledger"
        placed = subprocess.run(
            [sys.executable, "shop.py", "50"], cwd=SHOP, env=variables, capture_output=True, text=True, check=False
        )
        assert (placed.returncode, placed.stderr) == (0, "")
        assert placed.stdout == f"50 orders are on their way; what becomes of them is in {ledger}\n"
        with subprocess.Popen(
            [sys.executable, "-m", "windlass", "worker", "shop:app"], cwd=SHOP, env=variables, stderr=subprocess.DEVNULL
        ) as worker:
            try:
                wait_until(lambda: _is_done(ledger, 50), "all orders to be fulfilled")
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(20) == 0
            finally:
                worker.kill()
        done = _done(ledger)
        assert (done["order"], done["thumbnail"], done["email"], done["call"]) == (50, 50, 49, 1)
        thumbnail = (Path(folder) / "thumbnail-7.ppm").read_bytes()
        assert thumbnail.startswith(b"P6\n50 40\n255\n")
        assert len(thumbnail) == len(b"P6\n50 40\n255\n") + 50 * 40 * 3
    with Windlass(server.url) as app:
        assert app.schedules.delete("shop-orders", "heartbeat")
        for name in ("shop-orders", "shop-media", "shop-mail"):
            assert app.queue(name).counts().waiting == 0
            app.queue(name).purge()
    with server.client() as client:
        # What came from another queue's outbox is remembered for a day; that expires by itself.
        assert [key for key in client.keys("*shop-*") if client.pttl(key) < 0] == []


def test_the_first_steps_of_the_readme(server: Server, client: redis.Redis, tmp_path: Path) -> None:
    """The first file and the first two commands, as a reader types them."""
    readme = (FOLDER.parent / "README.md").read_text()
    (module,) = re.findall(r"^`jobs.py`:\n\n```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert readme.index("```python") < readme.index("```sh"), "a program comes first"
    assert readme[readme.index("```python\n") :].startswith(f"```python\n{module}")
    start_worker, enqueue = re.findall(r"^(windlass worker jobs:app|python -c .*)$", readme, re.MULTILINE)[:2]
    (tmp_path / "jobs.py").write_text(module)
    folder = os.path.dirname(sys.executable)
    variables = os.environ | {"WINDLASS_URL": server.url, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    with subprocess.Popen(shlex.split(start_worker), cwd=tmp_path, env=variables, stderr=subprocess.PIPE) as worker:
        try:
            subprocess.run(enqueue, shell=True, cwd=tmp_path, env=variables, check=True)
            assert worker.stderr is not None
            # On a terminal it is a line of its own; here standard error is no terminal, so the log is JSON.
            assert any(b"hello, world!" in line for line in iter(worker.stderr.readline, b""))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 0
        finally:
            worker.kill()


def _done(ledger: Path) -> Counter[str]:
    lines = [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return Counter(what for _, _, deed, what, _, _ in lines if deed == "did")


def _is_done(ledger: Path, orders: int) -> bool:
    done = _done(ledger)
    return done["thumbnail"] == orders == done["email"] + done["call"]


def test_there_are_examples() -> None:
    assert {"first_job", "leases", "raw_queue", "schedules"} <= {example.stem for example in EXAMPLES}
