"""Every example runs by itself, says what it should, and leaves no key behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.support.servers import Server

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, server: Server, client: redis.Redis) -> None:
    result = subprocess.run(
        [sys.executable, example],
        capture_output=True,
        text=True,
        env=os.environ | {"WINDLASS_URL": server.url},
        timeout=30,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].split() == ["left", "0"]


def test_there_are_examples() -> None:
    assert {"raw_queue", "leases"} <= {example.stem for example in EXAMPLES}
