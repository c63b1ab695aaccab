"""The embedded server is its owner's alone: another user of the machine cannot reach, read, replace or misdirect it.

What the home refuses at its start is in tests/embedded/test_home.py.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.embedded import kill, mode, pid_of, servers_of
from windlass import Windlass
from windlass.embedded import EmbeddedServer
from windlass.embedded.launch import CONFIGURATION
from windlass.errors import EmbeddedError

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
has_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it is looked for in /proc")


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder with a short path that everybody may pass through."""
    base = Path(tempfile.mkdtemp(prefix="wl-")).resolve()
    base.chmod(0o755)
    yield base
    for home in base.rglob("*"):
        for pid in servers_of(home) if home.is_dir() and not home.is_symlink() else ():
            kill(pid)
    shutil.rmtree(base)


# Becomes another user, tries each of these on every path, and prints the error's number.
STRANGER = f"""
import os, socket, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
def tried(do):
    try:
        do()
    except OSError as error:
        return error.errno
    return 0
home = sys.argv[1]
print(tried(lambda: os.listdir(home)))
print(tried(lambda: os.symlink("/etc/passwd", home + "/planted")))
print(tried(lambda: os.rename(home, home + ".mine")))
for name in sys.argv[2:]:
    path = home + "/" + name
    print(tried(lambda: open(path, "rb").close()))
    print(tried(lambda: open(path, "ab").close()))
    print(tried(lambda: os.unlink(path)))
    print(tried(lambda: socket.socket(socket.AF_UNIX).connect(path)))
"""


@as_root
def test_another_user_can_neither_connect_nor_read_nor_plant_anything(base: Path) -> None:
    server = EmbeddedServer(base / "home")
    server.ensure()
    names = sorted(str(path.relative_to(base / "home")) for path in (base / "home").rglob("*"))
    assert {"windlass.sock", "windlass.conf", "windlass.log", "windlass.lock"} <= set(names)
    assert any(name.endswith(".aof") for name in names)
    done = subprocess.run(
        [sys.executable, "-c", STRANGER, base / "home", *names], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {str(errno.EACCES)}


@has_proc
def test_it_listens_on_its_socket_alone(base: Path) -> None:
    server = EmbeddedServer(base / "home")
    server.ensure()
    own = set()
    for fd in Path(f"/proc/{pid_of(server)}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile: a connection, none to listen on
            own.add(os.readlink(fd))
    assert own
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        listening += [row for row in rows if f"socket:[{row.split()[9]}]" in own]
    assert listening == []
    assert "\nport 0\n" in CONFIGURATION


def test_nothing_is_written_into_a_folder_that_all_can_write(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither there nor beside the home; a deep path, whose socket needs a short way, included."""
    shared = base / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    private = base / "private"
    private.mkdir(mode=0o700)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private))
    monkeypatch.setenv("XDG_CACHE_HOME", str(private))
    monkeypatch.chdir(shared)
    before = os.umask(0)
    try:
        for home in (private / "home", private / ("deep" * 40)):
            with Windlass(home=home) as app:
                app.queue("embedded").enqueue(b"x")
                assert app.queue("embedded").purge() == 1
            EmbeddedServer(home).stop()
    finally:
        os.umask(before)
    assert list(shared.iterdir()) == []
    for path in private.rglob("*"):
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode):
            assert not stat.S_IMODE(found.st_mode) & 0o077, path


@pytest.mark.parametrize(
    "name", ["windlass.lock", "windlass.log", "windlass.conf.new", "windlass.conf", "windlass.sock"]
)
def test_a_planted_link_leads_nowhere(base: Path, name: str) -> None:
    """Even somebody who once could write there cannot have us write through a link of his."""
    victim = base / "victim"
    victim.write_text("untouched")
    home = base / "home"
    home.mkdir(mode=0o700)
    (home / name).symlink_to(victim)
    with suppress(EmbeddedError):  # to refuse is as good as to put a file of our own in its place
        EmbeddedServer(home).ensure()
    assert victim.read_text() == "untouched"
    assert mode(victim) != 0o600
    assert stat.S_ISREG(victim.lstat().st_mode)


@as_root
def test_a_home_that_another_user_made_first_is_refused(base: Path) -> None:
    """In a shared folder anybody may be faster: what he made is not used, be it a folder or a link to one of ours."""
    shared = base / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    ours = base / "ours"
    ours.mkdir(mode=0o700)
    plant = f"""
import os, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
os.mkdir(sys.argv[1] + "/folder", 0o700)
os.symlink(sys.argv[2], sys.argv[1] + "/link")
"""
    subprocess.run([sys.executable, "-c", plant, shared, ours], check=True)
    for name in ("folder", "link"):
        with pytest.raises(EmbeddedError, match="not safe"):
            EmbeddedServer(shared / name).ensure()
    assert list(ours.iterdir()) == []
