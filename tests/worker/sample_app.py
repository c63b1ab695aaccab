"""An app for the forkserver to import, and the jobs that its children run: `run_job` looks its job up by name."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from windlass import Windlass
from windlass.worker import process_info
from windlass.worker.executors.child import Link
from windlass.worker.ipc import frames
from windlass.worker.ipc.frames import MAX_BODY_BYTES, MAX_HEADER_BYTES

app = Windlass("redis://127.0.0.1:1")  # nobody connects to it
not_an_app = 42

Answer = tuple[dict[str, Any], bytes]


def facts(app: Windlass) -> dict[str, Any]:
    return {"shown": repr(app)}


def many_facts(app: Windlass) -> dict[str, Any]:
    return {"many": ["x" * 128] * (MAX_HEADER_BYTES // 128 + 1)}


def too_many_facts(app: Windlass) -> dict[str, Any]:
    frames.MAX_BODY_BYTES = 1000
    return {"many": "x" * 1001}


def unreadable_facts(app: Windlass) -> dict[str, Any]:
    return {"shown": object()}


def run_job(app: Windlass, header: dict[str, Any], body: bytes, link: Link) -> Answer:
    answer: Answer = globals()[f"job_{header['run']}"](header, body, link)
    return answer


def job_echo(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    return {"end": "done"}, body


def job_about(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    about = {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "role": os.environ["WINDLASS_ROLE"],
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "sigint": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "fds": {str(fd): path for fd, path in (process_info.open_files(os.getpid()) or {}).items()},
        "random": __import__("random").random(),
    }
    return about, b""


def job_print(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    began = time.monotonic()
    for _ in range(header["lines"]):
        print("x" * 99)
    return {"took": time.monotonic() - began}, b""


def job_close_output(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    sys.stdout.close()
    print("still there")
    return {"end": "done"}, b""


def job_raise(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "value": ValueError("no good"), "mute": Mute()}[
        header["what"]
    ]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has nothing to say")


def job_unsendable(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    return {"end": object()}, b""


def job_huge(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    return {"end": "done"}, bytes(MAX_BODY_BYTES + 1)


def job_progress(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    def send(part: int) -> None:
        for step in range(50):
            link.send({"progress": step, "part": part})

    threads = [threading.Thread(target=send, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    global last_link
    last_link = link
    return {"end": "done"}, b""


last_link: Link | None = None


def job_late_word(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    return {"sent": last_link is not None and last_link.send({"progress": "too late"})}, b""


def job_fork(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    """One copy returns, one raises, and both come out of `run_job` a second time."""
    if os.fork() == 0:
        link.send({"progress": "from a copy"})
        return {"end": "copy"}, b""
    if os.fork() == 0:
        raise ValueError("in a copy")
    return {"end": "original", "codes": [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2)]}, b""


def job_exit(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    os._exit(header["code"])


def job_crash(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    ctypes.string_at(0)
    raise AssertionError("it has not crashed")


def job_hang(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    """Ignore SIGTERM, with a `sleep` in the group, one in a session of its own, and one whose parent is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [subprocess.Popen(["sleep", "999"]).pid, subprocess.Popen(["sleep", "999"], start_new_session=True).pid]
    pids.append(_daemon("setsid"))
    link.send({"progress": "hanging", "pids": pids})
    while True:
        signal.pause()


def job_daemon(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    return {"pid": _daemon(header["with"])}, b""


def _daemon(command: str) -> int:
    """A `sleep` that goes on when the shell that started it has ended."""
    line = f"{command} sleep 999 >/dev/null & echo $!"
    return int(subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, check=True).stdout)


def job_embedded(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    """Start the embedded server, and a server of the same name that is only a job's."""
    from windlass.embedded import EmbeddedServer
    from windlass.embedded.binary import find_server_binary

    home = Path(header["home"])
    EmbeddedServer(home).ensure()
    settings = ["--port", "0", "--daemonize", "yes", "--dir", str(home.parent), "--save", "", "--appendonly", "no"]
    pidfile = home.parent / "other.pid"
    subprocess.run([find_server_binary(), *settings, "--pidfile", str(pidfile)], check=True)
    while not pidfile.exists() or not pidfile.read_text().strip():
        time.sleep(0.01)
    ours = EmbeddedServer(home).status().pid
    return {"embedded": ours, "other": int(pidfile.read_text())}, b""


def job_socket(header: dict[str, Any], body: bytes, link: Link) -> Answer:
    """What is left of what an app has opened when it was imported."""
    leaky: Any = sys.modules["leaky"]
    number = leaky.connection.fileno()
    with socket.socket() as fresh:
        leaky.log.write("from a child\n")
        leaky.log.flush()
        return {"leads_to": os.readlink(f"/proc/self/fd/{number}"), "reused": fresh.fileno() == number}, b""
