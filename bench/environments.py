"""A virtual environment per peer, created once and kept in `.bench/` until its pins change."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peers import WINDLASS, Peer

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".bench"
_MARK = ".pins"

Say = Callable[[str], None]


class Missing(Exception):
    """Why a peer cannot take part."""


@dataclass(frozen=True, slots=True)
class Environment:
    """How to start a peer's driver: the interpreter and the environment variables."""

    command: tuple[str, ...]
    variables: dict[str, str]


def prepare(peer: Peer, say: Say, *, install: bool = True) -> Environment:
    """The environment of a peer, created if none with these pins exists. Raises `Missing` if that fails."""
    folder = FOLDER / peer.name
    interpreter = "" if peer.node else _interpreter(peer)
    pins = "\n".join((interpreter, *peer.packages))
    mark = folder / _MARK
    if not mark.exists() or mark.read_text() != pins:
        if not install:
            if peer.name == WINDLASS:  # works as well without the faster loop
                return Environment((sys.executable, "-m", peer.module), {"PYTHONPATH": str(ROOT)})
            raise Missing(f"{peer.title} is not installed, and --no-install was given")
        say(f"installing {', '.join(peer.packages)}")
        shutil.rmtree(folder, ignore_errors=True)
        _install(peer, folder, interpreter)
        mark.write_text(pins)
    return _environment(peer, folder)


def _interpreter(peer: Peer) -> str:
    if sys.version_info >= peer.python:
        return sys.executable
    for minor in range(peer.python[1], peer.python[1] + 4):
        found = shutil.which(f"python3.{minor}")
        of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python"))
        for python in [found, *map(str, of_pyenv)]:
            if python and _runs(python):
                return python
    raise Missing(f"{peer.title} needs Python {peer.python[0]}.{peer.python[1]} or newer, and none was found")


def _runs(python: str) -> bool:
    """Whether it works; it may be a launcher for a version that is not installed."""
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _install(peer: Peer, folder: Path, interpreter: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer.node:
        if not shutil.which("node") or not shutil.which("npm"):
            raise Missing(f"{peer.title} needs node and npm, and they are not on PATH")
        folder.mkdir()
        _run(peer, ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *peer.packages])
    elif peer.name == WINDLASS:  # runs in the project's environment, with these on top
        _run(peer, [interpreter, *pip, "--target", str(folder), *peer.packages])
    else:
        _run(peer, [interpreter, "-m", "venv", str(folder)])
        _run(peer, [str(folder / "bin" / "python"), *pip, *peer.packages])


def _run(peer: Peer, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no reason given").splitlines()[-1]
        raise Missing(f"{peer.title} could not be installed: {said}")


def _environment(peer: Peer, folder: Path) -> Environment:
    if peer.node:
        script = ROOT / "bench" / "peers" / f"{peer.name}_driver.mjs"
        return Environment(("node", str(script)), {"BENCH_MODULES": str(folder / "node_modules")})
    if peer.name == WINDLASS:
        return Environment((sys.executable, "-m", peer.module), {"PYTHONPATH": f"{ROOT}:{folder}"})
    return Environment((str(folder / "bin" / "python"), "-m", peer.module), {"PYTHONPATH": str(ROOT)})
