"""`windlass dev`: every Lua script is printed exactly as the server gets it, and the server accepts it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

from windlass.cli import main
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.compat.base.scripts import script as compat_script
from windlass.storage.native import scripts as native


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["dev", *words])


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("scripts", "--json").stdout)
    return found


@pytest.mark.parametrize("layout", CAPABILITIES)
def test_the_server_accepts_every_script_and_knows_it_by_its_sha(client: redis.Redis, layout: str) -> None:
    rows = [row for row in listed() if row["layout"] == layout]
    assert {"turn", "enqueue", "counts"} <= {row["script"] for row in rows}
    for row in rows:
        text = run("script", row["script"], "--layout", layout).stdout_bytes
        assert len(text) == row["bytes"]
        assert client.script_load(text) == row["sha1"]


def test_every_script_of_the_native_layout_is_listed() -> None:
    known = (*native.ALL, *native.PRESENCE, native.INSPECT, native.TAGS, native.RIGHTS)
    assert {row["sha1"] for row in listed() if row["layout"] == "native"} == {script.sha for script in known}


def test_the_text_is_the_one_that_is_sent() -> None:
    assert run("script", "turn").stdout == native.TURN.text
    assert run("script", "turn", "--layout", "worqr").stdout == compat_script("worqr", "turn").text
    assert run("script", "accept", "--layout", "processor").stdout == compat_script("processor", "accept").text


def test_people_get_a_table() -> None:
    head, *rows = [line.split() for line in run("scripts").stdout.splitlines()]
    assert head == ["layout", "script", "bytes", "sha1"]
    assert ["native", "turn", str(len(native.TURN.text.encode())), native.TURN.sha] in rows


def test_an_unknown_script_is_refused_with_the_nearest_names() -> None:
    result = run("script", "trun")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "layout 'native' has no script 'trun'; the nearest names are turn," in result.stderr
    assert "windlass dev scripts" in result.stderr


@pytest.mark.parametrize("part", ["ledger", "problems", "processor", "keys"])
def test_a_part_of_scripts_is_no_script(part: str) -> None:
    assert run("script", part, "--layout", "processor").exit_code == 3


def test_an_unknown_layout_is_wrong_usage() -> None:
    assert run("script", "turn", "--layout", "celery").exit_code == 2
