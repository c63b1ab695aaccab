"""Partitions: a program in its own network namespace, whose only link can be cut silently.

    this machine                              │ the namespace
    server ── host address ── host end ═══════│══ guest end ── guest address ── a worker

The fault takes down the host end. Inside the namespace that looks like a cable cut further away: packets vanish, no
connection is refused or reset. (Taking down the guest end would notify the programs inside at once.)

A namespace lives as long as an idle process in it. That process ends with this one, and the link with it: even a killed
run leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_until

from chaos.nemesis.fault import Detail, Fault, first, lacking, refused

# Runs the given command after asking the kernel to end it together with the thread that started it.
_GUARD = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent process has ended")
os.execvp(sys.argv[2], sys.argv[2:])
"""
_NETWORK = 10, 213  # the first two numbers of all addresses
_IDLE_S = "2147483"  # seconds that the idle process sleeps


def lacking_namespaces() -> str | None:
    """Why namespaces are not available here."""
    return first(
        lambda: lacking("ip", "unshare", "nsenter", root=True),
        lambda: refused("unshare", "--net", "ip", "link", "add", "wltry0", "type", "veth", "peer", "name", "wltry1"),
    )


class Namespace:
    """A network with one link to this machine: `host` is this machine's address on it, `guest` the inner address.

    The creating thread must live as long as the namespace is used.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        token = secrets.token_hex(4)
        self.host_end, self.guest_end = f"wl{token}h", f"wl{token}g"
        self.host, self.guest = _free_addresses()
        self.is_cut = False
        command = ["unshare", "--net", "sleep", _IDLE_S]
        self._holder: subprocess.Popen[bytes] | None = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._connect(self._holder.pid)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs a command inside; exec keeps the pid."""
        if self._holder is None:
            raise RuntimeError(f"the namespace {self.name} is closed")
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *command]

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command inside. `options` are those of `subprocess.Popen`."""
        started: subprocess.Popen[bytes] = subprocess.Popen(self.command(command), env=env, **options)
        return started

    def cut(self) -> None:
        """Drop all packets in both directions from now on, silently."""
        _ip("link", "set", self.host_end, "down")
        self.is_cut = True

    def heal(self) -> None:
        """Let packets pass again; TCP resends lost ones at its next retry."""
        _ip("link", "set", self.host_end, "up")
        self.is_cut = False

    def close(self) -> None:
        """Remove the link now; the namespace ends with the last process in it."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        subprocess.run(["ip", "link", "delete", self.host_end], capture_output=True, check=False)
        holder.kill()
        holder.wait(5.0)

    def _connect(self, holder: int) -> None:
        ours = os.readlink("/proc/self/ns/net")

        wait_until(
            lambda: os.readlink(f"/proc/{holder}/ns/net") != ours,
            f"the namespace {self.name}",
            interval=0.002,
            ignoring=(OSError,),
        )
        _ip("link", "add", self.host_end, "type", "veth", "peer", "name", self.guest_end, "netns", str(holder))
        _ip("address", "add", f"{self.host}/30", "dev", self.host_end)
        _ip("link", "set", self.host_end, "up")
        inside = self.command(["ip", "-batch", "-"])
        orders = (
            f"link set lo up\naddress add {self.guest}/30 dev {self.guest_end}\nlink set {self.guest_end} up\n"
            # A fixed neighbour entry: otherwise a long cut would be reported as "no route to host".
            f"neighbour replace {self.host} lladdr {_mac(self.host_end)} dev {self.guest_end} nud permanent\n"
        )
        done = subprocess.run(inside, input=orders, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"{' '.join(inside)}: {done.stderr.strip()}")


class Partition(Fault):
    """A namespace is cut off until the end."""

    name = "partition"
    summary = "The link of a network namespace is cut: packets vanish both ways, and no connection is reset."

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    @classmethod
    def available(cls) -> str | None:
        return lacking_namespaces()

    def begin(self) -> Detail:
        self.namespace.cut()
        return {"namespace": self.namespace.name}

    def end(self) -> Detail:
        if self.namespace.is_cut:
            self.namespace.heal()
        return {"namespace": self.namespace.name}


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _mac(interface: str) -> str:
    return Path(f"/sys/class/net/{interface}/address").read_text().strip()


def _free_addresses() -> tuple[str, str]:
    """Two adjacent addresses that are free on this machine; several runs may choose at the same time."""
    taken = {address.get("local") for link in json.loads(_ip("-json", "address")) for address in link["addr_info"]}
    chance = random.SystemRandom()
    first_two = ".".join(map(str, _NETWORK))
    while True:
        third, fourth = chance.randrange(256), chance.randrange(0, 256, 4)
        host, guest = f"{first_two}.{third}.{fourth + 1}", f"{first_two}.{third}.{fourth + 2}"
        if host not in taken:
            return host, guest
