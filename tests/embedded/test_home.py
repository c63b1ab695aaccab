"""The home is for its owner alone, a doubtful one is refused, and it may lie at any path."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.embedded import MakeHome, connect, mode, pid_of
from windlass.embedded import EmbeddedServer
from windlass.errors import EmbeddedError

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


# -- who may come near -----------------------------------------------------------------------------


def test_everything_is_for_its_owner_alone(home: Path) -> None:
    previous = os.umask(0)
    try:
        EmbeddedServer(home).ensure()
    finally:
        os.umask(previous)
    assert mode(home) == 0o700
    assert mode(home / "windlass.sock") == 0o700
    assert mode(home / "appendonlydir") == 0o700
    for name in ("windlass.conf", "windlass.lock", "windlass.log", "windlass.pid"):
        assert mode(home / name) == 0o600, name


STRANGER = f"""
import os, socket, sys
os.setgid({NOBODY})
os.setuid({NOBODY})
sys.exit(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))
"""


@as_root
def test_another_user_cannot_connect(home: Path) -> None:
    socket = EmbeddedServer(home).ensure()
    home.parent.chmod(0o755)
    assert subprocess.run([sys.executable, "-c", STRANGER, socket]).returncode == errno.EACCES
    home.chmod(0o755)  # even then
    assert subprocess.run([sys.executable, "-c", STRANGER, socket]).returncode == errno.EACCES


def test_a_home_of_another_user_is_refused(home: Path) -> None:
    if os.geteuid() == 0:
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
    else:
        home = Path("/usr")
    with pytest.raises(EmbeddedError, match="belongs to another user"):
        EmbeddedServer(home).ensure()


@as_root
def test_a_home_under_a_folder_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o755)
    os.chown(home, NOBODY, NOBODY)
    with pytest.raises(EmbeddedError, match=r"is inside .* belongs to another user"):
        EmbeddedServer(home / "inner").ensure()


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o1777])
def test_a_home_that_others_can_write_is_refused(home: Path, bits: int) -> None:
    home.mkdir()
    home.chmod(bits)
    server = EmbeddedServer(home)
    for use in (server.ensure, server.status, server.stop):
        with pytest.raises(EmbeddedError, match="can be written by other users"):
            use()
    assert not list(home.iterdir())


def test_a_home_in_a_folder_where_anybody_can_rename_it_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(EmbeddedError, match="any user can rename"):
        EmbeddedServer(home / "inner").ensure()


def test_a_link_is_refused(home: Path, make_home: MakeHome) -> None:
    elsewhere = make_home("elsewhere")
    elsewhere.mkdir(mode=0o700)
    home.symlink_to(elsewhere)
    with pytest.raises(EmbeddedError, match="is a link to"):
        EmbeddedServer(home).ensure()
    assert not list(elsewhere.iterdir())


def test_a_file_in_place_of_the_home_is_refused(home: Path) -> None:
    home.write_text("")
    with pytest.raises(EmbeddedError, match="is not a folder"):
        EmbeddedServer(home).ensure()


def test_an_empty_home_that_others_can_read_is_closed(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    EmbeddedServer(home).ensure()
    assert mode(home) == 0o700


def test_a_folder_of_other_things_is_not_closed(home: Path) -> None:
    home.mkdir()
    home.chmod(0o755)
    (home / "letter.txt").write_text("mine")
    with pytest.raises(EmbeddedError, match="contains other files"):
        EmbeddedServer(home).ensure()
    assert mode(home) == 0o755


def test_a_planted_link_in_place_of_the_lock_is_not_followed(home: Path, make_home: MakeHome) -> None:
    victim = make_home("victim")
    home.mkdir(mode=0o700)
    (home / "windlass.lock").symlink_to(victim)
    with pytest.raises(EmbeddedError, match="cannot be used"):
        EmbeddedServer(home).ensure()
    assert not victim.exists()


# -- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["two words", 'it\'s "quoted" \\ {x} $HOME #1 [?*]', "käse-日本-🚢", "line\nbreak"])
def test_any_letters_in_the_path(make_home: MakeHome, name: str) -> None:
    server = EmbeddedServer(make_home(name))
    with connect(server.ensure()) as client:
        client.set("k", "v")
    with connect(server.restart()) as client:
        assert client.get("k") == "v"
    assert server.status().home.name == name


def test_folders_on_the_way_are_made_private(home: Path) -> None:
    EmbeddedServer(home / "a" / "b").ensure()
    try:
        assert [mode(home), mode(home / "a"), mode(home / "a" / "b")] == [0o700] * 3
    finally:
        EmbeddedServer(home / "a" / "b").stop()


def test_a_path_too_long_for_a_socket_is_reached_by_a_short_one(
    make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_home("run")
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    server = EmbeddedServer(make_home("deep" * 40))
    socket = server.ensure()
    assert socket.startswith(str(runtime / "windlass"))
    assert len(os.fsencode(socket)) <= 103
    assert mode(runtime / "windlass") == 0o700
    with connect(socket) as client:
        client.set("k", "v")

    # The link is only a way in: it may vanish, and a program with another environment makes one of its own.
    shutil.rmtree(runtime / "windlass")
    other = make_home("run2")
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    adopter = EmbeddedServer(server.home)
    assert adopter.start() is False
    assert adopter.status().running
    with connect(adopter.ensure()) as client:
        assert client.get("k") == "v"
    assert server.stop() is True


def test_a_path_too_long_with_no_short_way_says_what_to_do(
    make_home: MakeHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = make_home("shared")
    shared.mkdir()
    shared.chmod(0o777)
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with pytest.raises(EmbeddedError, match="Set WINDLASS_HOME to a shorter path"):
        EmbeddedServer(make_home("deep" * 40)).ensure()
    assert not list(shared.iterdir())


def test_a_home_that_is_moved_keeps_its_server(make_home: MakeHome) -> None:
    here, there = EmbeddedServer(make_home("here")), EmbeddedServer(make_home("there"))
    here.ensure()
    pid = pid_of(here)
    here.home.rename(there.home)
    assert there.start() is False
    assert pid_of(there) == pid
    assert there.stop() is True
