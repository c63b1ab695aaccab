"""`windlass doctor`, and what a worker refuses: the checks over facts, and both against real servers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.cluster import Cluster
from tests.support.conditions import until
from tests.support.internals import arun_flow, perform, perform_call
from tests.support.proxy import FORWARD, Fault, FaultProxy, pretend_version, rewrite
from tests.support.replication import EAGER_REPLICATION
from tests.support.seats import ClusterSeat, EmbeddedSeat, PrimarySeat
from tests.support.server import Server, redis_binary, valkey_binary
from tests.support.waiting import wait_until
from tests.support.workers import Workshop
from windlass import RawJob, Windlass
from windlass.cli import main
from windlass.doctor import Finding, examine
from windlass.doctor.checks import CHECKS
from windlass.doctor.facts import Facts, Slow, needed
from windlass.doctor.known_bugs import KNOWN_BUGS, known_bugs_of
from windlass.errors import ServerMayEvict, ServerReadOnly, ServerTooOld, ServerUnfit
from windlass.transport.presence import beat as beat_worker
from windlass.transport.presence import forget
from windlass.values.outcome import Broken
from windlass.values.validation import MAX_BROKEN
from windlass.values.worker_record import WorkerRecord

RULES = Path(__file__).parents[2] / "docs" / "acl"
WINDLASS = Path(sys.executable).with_name("windlass")
EVICTING = (
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
)

# -- the checks, over facts that were read -----------------------------------------------------------

INFO = {
    "valkey_version": "9.1.2",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "evicted_keys": "0",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "used_memory": "1000000",
    "maxmemory": "10000000",
    "connected_slaves": "1",
    "slave0": "ip=10.0.0.2,port=6379,state=online,offset=1,lag=1",
    "connected_clients": "5",
    "maxclients": "10000",
    "cluster_enabled": "0",
}
CONFIG = {
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "save": "3600 1",
    "stop-writes-on-bgsave-error": "yes",
    "min-replicas-to-write": "1",
    "timeout": "0",
    "dir": "/data",
}
HEALTHY = Facts(
    "here:6379", INFO, CONFIG, denied=[], ahead=0.01, pings=[0.001] * 50, calls=[0.001] * 50, slow=[], free=0.5
)
REPLICA_OFF = "ip=10.0.0.2,port=6379,state=wait_bgsave,offset=1,lag=1"
REPLICA_LATE = "ip=10.0.0.2,port=6379,state=online,offset=1,lag=11"
CLUSTER = INFO | {"cluster_enabled": "1"}


def judge(facts: Facts, *names: str) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(facts) if not names or finding.check in names]


def with_info(**changes: str) -> Facts:
    return replace(HEALTHY, info=INFO | changes)


def with_config(_info: dict[str, str] | None = None, **changes: str) -> Facts:
    settings = CONFIG | {name.replace("_", "-"): value for name, value in changes.items()}
    return replace(HEALTHY, info=INFO | (_info or {}), config=settings)


NO_LOG = {"aof_enabled": "0"}
ALONE = {"aof_enabled": "0", "connected_slaves": "0"}

CASES: dict[str, tuple[Facts, str, str, str]] = {
    "too old": (with_info(valkey_version="7.0.0"), "version", "danger", "too old"),
    "a hole": (with_info(valkey_version="8.1.3"), "hole", "warning", "CVE-2025-49844"),
    "loading": (with_info(loading="1", loading_eta_seconds="7"), "loading", "warning", "about 7 s"),
    "a replica": (with_info(role="slave", master_host="10.0.0.1"), "role", "danger", "replica of 10.0.0.1"),
    "evicting": (with_info(maxmemory_policy="allkeys-lru"), "eviction", "danger", "allkeys-lru"),
    "has evicted": (with_info(evicted_keys="3"), "eviction", "warning", "evicted 3 keys"),
    "snapshots only": (with_info(**NO_LOG), "persistence", "warning", "snapshots only"),
    "nothing on disk": (with_config(ALONE, save=""), "persistence", "warning", "nothing on disk"),
    "nothing on disk, with replicas": (with_config(NO_LOG, save=""), "persistence", "danger", "on its 1 replica"),
    "settings unseen, no log": (replace(with_info(**NO_LOG), config=None), "persistence", "warning", "no append-only"),
    "everysec": (with_config(appendfsync="everysec"), "fsync", "note", "up to 2 s"),
    "fsync never": (with_config(appendfsync="no"), "fsync", "warning", "appendfsync is no"),
    "rewrite with always": (with_config(no_appendfsync_on_rewrite="yes"), "rewrite", "danger", "although"),
    "rewrite with everysec": (
        with_config(no_appendfsync_on_rewrite="yes", appendfsync="everysec"),
        "rewrite",
        "warning",
        "nothing is fsynced",
    ),
    "the log cannot be written": (with_info(aof_last_write_status="err"), "disk", "danger", "MISCONF"),
    "no snapshot, and writes refused": (with_info(rdb_last_bgsave_status="err"), "disk", "danger", "MISCONF"),
    "no snapshot": (
        replace(with_config(stop_writes_on_bgsave_error="no"), info=INFO | {"rdb_last_bgsave_status": "err"}),
        "disk",
        "warning",
        "snapshot failed",
    ),
    "no rewrite": (with_info(aof_last_bgrewrite_status="err"), "disk", "warning", "rewrite of the log failed"),
    "no limit of memory": (with_info(maxmemory="0"), "memory", "note", "without a limit"),
    "memory is short": (with_info(used_memory="8100000"), "memory", "warning", "81%"),
    "memory is full": (with_info(used_memory="9600000"), "memory", "danger", "96%"),
    "no replica": (with_info(connected_slaves="0"), "replicas", "note", "no replica"),
    "a replica that is not in step": (with_info(slave0=REPLICA_OFF), "replicas", "warning", "wait_bgsave"),
    "a replica that is behind": (with_info(slave0=REPLICA_LATE), "replicas", "warning", "not in sync"),
    "writes without replicas": (with_config(min_replicas_to_write="0"), "replicas", "warning", "min-replicas-to-write"),
    "few connections left": (with_info(connected_clients="8001"), "clients", "warning", "8001 of 10000"),
    "idle connections are cut": (with_config(timeout="300"), "timeout", "note", "idle for 300 s"),
    "a clock that is ahead": (replace(HEALTHY, ahead=1.5), "clock", "warning", "1.5 s ahead of"),
    "a clock that is behind": (replace(HEALTHY, ahead=-90.0), "clock", "warning", "90.0 s behind"),
    "a slow network": (replace(HEALTHY, pings=[0.001] * 49 + [0.051]), "latency", "warning", "51.0 ms (p99)"),
    "slow scripts here": (replace(HEALTHY, calls=[0.06] * 50), "latency", "warning", "a script takes 60.0 ms"),
    "rights are missing": (
        replace(HEALTHY, denied=["ZADD k 1 1", "SCRIPT LOAD x"]),
        "rights",
        "warning",
        "SCRIPT|LOAD, ZADD",
    ),
    "rights cannot be seen": (replace(HEALTHY, denied=None), "rights", "unseen", "load and run scripts"),
    "a cluster in pieces": (
        replace(HEALTHY, info=CLUSTER, cluster={"cluster_state": "fail"}),
        "cluster",
        "danger",
        "cluster_state is fail",
    ),
    "a primary by itself": (
        replace(HEALTHY, info=CLUSTER, cluster={"cluster_state": "ok"}, replicas_of_slots=0),
        "cluster",
        "note",
        "no replica",
    ),
    "a disk that is full": (replace(HEALTHY, embedded=True, free=0.09), "embedded", "warning", "9% free"),
    "embedded, told otherwise": (
        replace(with_config(appendfsync="everysec"), embedded=True),
        "embedded",
        "warning",
        "no longer has appendfsync always",
    ),
    "scripts that were slow": (
        replace(HEALTHY, slow=[Slow("native/turn", 0.2, 0), Slow("native/beat", 0.1, 0)]),
        "slow scripts",
        "note",
        "2 calls of Windlass in its SLOWLOG, the slowest: native/turn with 200 ms",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_check_says_what_it_should(case: str) -> None:
    facts, check, level, words = CASES[case]
    found = [finding for finding in judge(facts, check) if finding.level == level and words in finding.what]
    assert len(found) == 1, judge(facts, check)
    assert found[0].remedy or level == "note"


def test_a_healthy_server_is_all_right() -> None:
    assert {finding.level for finding in judge(HEALTHY)} == {"ok"}


def test_a_server_that_tells_nothing_is_unseen_with_the_rule_that_would_show_it() -> None:
    found = judge(Facts("here", user="u"))
    assert {finding.level for finding in found} <= {"unseen", "ok", "note"}
    for finding in found:
        if finding.level == "unseen":
            assert re.search(r"ACL SETUSER u \+\S+", finding.remedy), finding


@pytest.mark.parametrize(
    ("kind", "version", "ids"),
    [
        ("redis", "6.2.6", {"CVE-2022-24735", "CVE-2024-31449", "CVE-2024-46981", "CVE-2025-49844"}),
        ("redis", "7.0.15", {"CVE-2024-31449", "CVE-2024-46981", "CVE-2025-49844"}),
        ("redis", "7.2.10", {"CVE-2025-49844", "CVE-2026-23479"}),
        ("redis", "7.2.13", {"CVE-2026-23479"}),
        ("redis", "7.2.14", set()),
        ("redis", "7.4.2", {"redis#13793", "CVE-2025-49844", "CVE-2026-23479"}),
        ("redis", "7.4.9", set()),
        ("redis", "8.0.4", {"CVE-2026-23479"}),
        ("redis", "8.2.1", {"CVE-2025-49844", "CVE-2026-23479"}),
        ("redis", "8.2.6", set()),
        ("valkey", "7.2.10", {"CVE-2025-49844"}),
        ("valkey", "7.2.11", set()),
        ("valkey", "8.0.1", {"CVE-2024-46981", "CVE-2025-49844", "valkey#4342"}),
        ("valkey", "8.1.6", {"CVE-2026-23479", "valkey#4342"}),
        ("valkey", "8.1.10", set()),
        ("valkey", "9.0.3", {"CVE-2026-23479"}),
        ("valkey", "9.1.2", set()),
        ("redis", "", set()),
    ],
)
def test_the_known_bugs_of_a_version_are_known(kind: str, version: str, ids: set[str]) -> None:
    found = {hole.id for hole, _ in known_bugs_of(kind, tuple(map(int, version.split("."))) if version else ())}
    assert found - {"CVE-2025-46817, CVE-2025-46818"} == ids


def test_every_hole_says_what_to_upgrade_to() -> None:
    for hole in KNOWN_BUGS:
        for kind, lines in (("redis", hole.redis), ("valkey", hole.valkey)):
            for line, patch in lines.items():
                assert hole.fixed_in(kind, (*line, 0)) == (f"{line[0]}.{line[1]}.{patch}" if patch else _told(patch))


def _told(patch: int | None) -> str | None:
    return "a newer release line" if patch is None else None


def test_what_a_worker_needs_is_what_its_acl_line_gives() -> None:
    """But for what a client tells of itself."""
    given = set(re.findall(r"\+(\S+)", (RULES / "worker.acl").read_text())) - {"client|setinfo"}
    asked = {
        ("|".join(line.split()[:2]) if line.startswith(("CLIENT", "SCRIPT")) else line.split()[0]) for line in needed()
    }
    assert {name.lower() for name in asked} == given


# -- real servers ------------------------------------------------------------------------------------

Run = Callable[..., Result]


@pytest.fixture(scope="module", params=["valkey", "redis 7.0"])
def durable(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server as it should be; tests change its settings, and put them back."""
    binary = valkey_binary() if request.param == "valkey" else redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    config = {"maxmemory": "100mb", "aclfile": ""}
    with Server(binary, tcp=True, appendonly=True, appendfsync="always", config=config) as server:
        yield server


@pytest.fixture(scope="module")
def followed() -> Iterator[tuple[Server, Server]]:
    """A primary that keeps nothing on disk, and its replica."""
    with Server(tcp=True, config=EAGER_REPLICATION) as primary, Server(tcp=True) as replica:
        replica.command("REPLICAOF", "127.0.0.1", primary.port or 0)
        wait_until(lambda: "state=online" in primary.info("replication").get("slave0", ""), "the replica to be in step")
        yield primary, replica


@contextmanager
def settings(server: Server, **changes: str) -> Iterator[None]:
    """Other settings for a while."""
    before = {name: server.command("CONFIG", "GET", name.replace("_", "-"))[1] for name in changes}
    try:
        for name, value in changes.items():
            server.command("CONFIG", "SET", name.replace("_", "-"), value)
        yield
    finally:
        for name, value in before.items():
            server.command("CONFIG", "SET", name.replace("_", "-"), value)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)
    return lambda *words: CliRunner().invoke(main, ["doctor", *words])


def told(result: Result, code: int = 0) -> dict[str, list[dict[str, Any]]]:
    """What the command said in JSON: findings by check."""
    assert result.exit_code == code, result.output
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(result.stdout)["findings"]:
        by_check.setdefault(finding["check"], []).append(finding)
    return by_check


def levels(result: Result, check: str, code: int = 0) -> list[str]:
    return [finding["level"] for finding in told(result, code)[check]]


def test_a_good_server_passes_and_nothing_is_written(durable: Server, run: Run) -> None:
    before = durable.info("persistence")["rdb_changes_since_last_save"]
    by_check = told(run("--url", durable.url, "--json"))
    assert durable.info("persistence")["rdb_changes_since_last_save"] == before
    for check in ("role", "eviction", "persistence", "fsync", "rewrite", "disk", "memory", "clients", "rights"):
        assert [finding["level"] for finding in by_check[check]] == ["ok"], by_check[check]
    assert [finding["level"] for finding in by_check["version"]] == ["ok"]
    assert by_check["clock"][0]["level"] == "ok"
    assert len(by_check["latency"]) == 2
    assert {finding["server"] for each in by_check.values() for finding in each} == {str(durable.socket_path)}


def test_people_get_a_table_and_what_to_do(durable: Server, run: Run) -> None:
    with settings(durable, maxmemory_policy="allkeys-lru"):
        result = run("--url", durable.url)
    assert result.exit_code == 1
    lines = [line.split(None, 2) for line in result.stdout.splitlines()]
    assert lines[0] == ["level", "check", "what"]
    assert ["danger", "eviction"] in [line[:2] for line in lines]
    assert "eviction: set `maxmemory-policy noeviction`" in result.stdout


def test_warnings_count_only_with_strict(durable: Server, run: Run) -> None:
    with settings(durable, appendfsync="no"):
        assert levels(run("--url", durable.url, "--json"), "fsync") == ["warning"]
        assert levels(run("--url", durable.url, "--json", "--strict"), "fsync", code=1) == ["warning"]


def test_memory_that_is_nearly_used_up_is_seen(durable: Server, run: Run) -> None:
    used = int(durable.info("memory")["used_memory"])
    with settings(durable, maxmemory=str(used)):
        assert levels(run("--url", durable.url, "--json"), "memory", code=1) == ["danger"]


def test_a_server_that_is_too_old_is_examined_all_the_same(durable: Server, run: Run) -> None:
    with FaultProxy(durable.address, faults=pretend_version("6.2.6")) as proxy:
        by_check = told(run("--url", proxy.url, "--json"), code=1)
    assert by_check["version"][0]["level"] == "danger"
    assert "CVE-2022-24735" in " ".join(finding["what"] for finding in by_check["hole"])
    assert by_check["eviction"][0]["level"] == "ok"


def test_a_clock_that_is_wrong_is_seen(durable: Server, run: Run) -> None:
    def ahead(frame: bytes) -> bytes:
        seconds = str(int(time.time()) + 3600).encode()
        return re.sub(rb"(?s)\*2\r\n\$\d+\r\n\d+\r\n", b"*2\r\n$%d\r\n%b\r\n" % (len(seconds), seconds), frame)

    def faults(request: list[bytes]) -> Fault:
        return rewrite(ahead) if request[0] == b"TIME" else FORWARD

    with FaultProxy(durable.address, faults=faults) as proxy:
        (clock,) = told(run("--url", proxy.url, "--json"))["clock"]
    assert clock["level"] == "warning"
    assert re.search(r"its clock is 3(599|600)\.\d s ahead of", clock["what"])


def test_slow_calls_of_ours_are_found_in_the_slowlog(durable: Server, run: Run) -> None:
    durable.command("SLOWLOG", "RESET")
    assert levels(run("--url", durable.url, "--json"), "slow scripts") == ["ok"]
    with settings(durable, slowlog_log_slower_than="0"), Windlass(durable.url) as app:
        app.queue("slow").enqueue(b"", id="a")
        app.queue("slow").cancel("a")
    (found,) = told(run("--url", durable.url, "--json"))["slow scripts"]
    assert found["level"] == "note"
    assert "native/" in found["what"]
    durable.command("SLOWLOG", "RESET")


def test_a_replica_and_its_primary_are_seen(followed: tuple[Server, Server], run: Run) -> None:
    primary, replica = followed
    assert levels(run("--url", replica.tcp_url, "--json"), "role", code=1) == ["danger"]
    by_check = told(run("--url", primary.tcp_url, "--json"), code=1)
    assert by_check["persistence"][0]["level"] == "danger"
    assert [finding["level"] for finding in by_check["replicas"]] == ["ok", "warning"]


def test_a_server_that_cannot_be_reached_is_exit_code_4(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.connect.RETRY_FOR_S", 0.0)
    result = run("--url", "redis://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "127.0.0.1:1" in result.stderr


def test_every_primary_of_a_cluster_is_examined(cluster_of_six: ClusterSeat, run: Run) -> None:
    def all_known() -> dict[str, list[dict[str, Any]]] | None:
        found = told(run("--url", cluster_of_six.url, "--json"))
        return found if [finding["level"] for finding in found["cluster"]] == ["ok"] * 3 else None

    by_check = wait_until(all_known, "each primary to be known with its replica")
    assert len({finding["server"] for finding in by_check["role"]}) == 3
    assert {finding["level"] for finding in by_check["replicas"]} == {"ok", "warning"}
    shown = run("--url", cluster_of_six.url).stdout
    assert shown.startswith("server")


def test_with_sentinel_the_primary_is_examined(sentinel: PrimarySeat, run: Run) -> None:
    by_check = told(run("--url", sentinel.url, "--json"))
    assert [finding["level"] for finding in by_check["role"]] == ["ok"]
    assert "2 replicas in sync" in by_check["replicas"][0]["what"]


def test_the_embedded_server_tells_where_its_data_is(embedded: EmbeddedSeat, run: Run) -> None:
    by_check = told(run("--url", embedded.url, "--json"))
    home = embedded.url.removeprefix("embedded://")
    assert [finding["level"] for finding in by_check["fsync"]] == ["ok"]
    assert home in by_check["embedded"][0]["what"]
    assert "replicas" not in by_check


# -- users who may not see everything ------------------------------------------------------------------


def create_user(server: Server, name: str, *rules: str) -> str:
    server.command("ACL", "SETUSER", name, "reset", "on", ">secret", *rules)
    server.command("ACL", "LOG", "RESET")
    return f"unix://{name}:secret@{server.socket_path}"


def rules_of(role: str, server: Server) -> list[str]:
    words = re.findall(r"\(.*?\)|\S+", (RULES / f"{role}.acl").read_text())[4:]
    unknown = () if server.binary == valkey_binary() else ("+client|setinfo", "+waitaof")  # redis 7.0 has none of them
    return [word for word in words if word not in unknown and not word.startswith(">")]


@pytest.mark.parametrize("role", ["producer", "worker", "reader"])
def test_what_a_user_may_not_see_is_unseen_and_no_breach(durable: Server, run: Run, role: str) -> None:
    url = create_user(durable, role, *rules_of(role, durable))
    by_check = told(run("--url", url, "--json"))
    assert durable.command("ACL", "LOG") == [], "nothing forbidden was tried"
    assert by_check["fsync"] == [
        {
            "check": "fsync",
            "level": "unseen",
            "what": f"the user {role!r} may not run CONFIG GET, or the server does not have this command",
            "remedy": f"to see it: ACL SETUSER {role} +config|get",
            "server": str(durable.socket_path),
        }
    ]
    assert by_check["rights"][0]["level"] == ("ok" if role == "worker" else "warning")
    assert by_check["slow scripts"][0]["level"] == "unseen"
    assert by_check["eviction"][0]["level"] == "ok"
    durable.command("ACL", "SETUSER", role, "+config|get")
    assert levels(run("--url", url, "--json"), "fsync") == ["ok"], "as the remedy says"
    durable.command("ACL", "DELUSER", role)


def test_a_user_who_may_see_nothing_gets_no_crash(durable: Server, run: Run) -> None:
    url = create_user(durable, "nobody", "+client|setname")
    by_check = told(run("--url", url, "--json"))
    seen = {finding["level"] for each in by_check.values() for finding in each}
    assert "unseen" in seen
    assert "danger" not in seen
    durable.command("ACL", "DELUSER", "nobody")


# -- what a worker refuses -----------------------------------------------------------------------------


def an_app(url: str, **options: Any) -> Windlass:
    app = Windlass(url, retry_for=1, **options)

    @app.task(queue="guarded", name="nothing")
    async def nothing() -> None:
        pass

    return app


async def work_a_little(app: Windlass, **options: Any) -> None:
    """Start a worker inside this program, let it do one job, and end it."""
    worker = app.worker(lease=5, grace=1, **options)
    working = asyncio.create_task(worker.run())
    try:
        await app.find_task("nothing").aenqueue()  # type: ignore[union-attr]
        queue = app.queue("guarded")
        await until(lambda: working.done() or not (counts := queue.counts()).waiting + counts.running)
        await worker.stop()
    finally:
        await working


REFUSED = {
    **{f"maxmemory-policy {policy}": ({"maxmemory_policy": policy}, ServerMayEvict, policy) for policy in EVICTING},
    "no-appendfsync-on-rewrite with always": (
        {"no_appendfsync_on_rewrite": "yes"},
        ServerUnfit,
        "no-appendfsync-on-rewrite is yes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_worker_does_not_start_where_jobs_may_be_lost(
    durable: Server, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight of the twelve: settings that can be changed while the server runs."""
    changes, kind, words = REFUSED[case]
    keys = durable.command("KEYS", "*")  # marks of an earlier test
    with settings(durable, **changes):
        with an_app(durable.url) as app, pytest.raises(kind, match=f"(?s){words}.*allow-unsafe"):
            await app.worker().run()
        assert durable.command("KEYS", "*") == keys
        with an_app(durable.url) as app, caplog.at_level(logging.WARNING):
            app.tolerate_eviction()  # so that this program can enqueue, too
            await work_a_little(app, allow_unsafe=True)
        assert any("ignored (allow_unsafe)" in record.message and words in record.message for record in caplog.records)


async def test_a_worker_starts_where_eviction_was_allowed_to_the_app(durable: Server) -> None:
    with settings(durable, maxmemory_policy="allkeys-lru"), an_app(durable.url, allow_eviction=True) as app:
        await work_a_little(app)


async def test_a_worker_does_not_start_on_a_primary_that_would_empty_its_replicas(
    followed: tuple[Server, Server], caplog: pytest.LogCaptureFixture
) -> None:
    primary, _ = followed
    with an_app(primary.tcp_url) as app, pytest.raises(ServerUnfit, match="loses all jobs, here and on its 1 replica"):
        await app.worker().run()
    with an_app(primary.tcp_url) as app, caplog.at_level(logging.WARNING):
        await work_a_little(app, allow_unsafe=True)
    assert "loses all jobs, here and on its 1 replica" in caplog.text


async def test_a_worker_does_not_start_on_a_replica(followed: tuple[Server, Server]) -> None:
    _, replica = followed
    with an_app(replica.tcp_url) as app, pytest.raises(ServerUnfit, match="it is a replica of 127"):
        await app.worker().run()
    with an_app(replica.tcp_url) as app, pytest.raises(ServerReadOnly):
        await app.worker(allow_unsafe=True).run()


@pytest.mark.parametrize(("name", "version"), [("redis", "6.2.14"), ("valkey", "7.0.0")])
async def test_a_worker_does_not_start_on_a_server_that_is_too_old(durable: Server, name: Any, version: str) -> None:
    """Nor can that be allowed: the scripts need more."""
    with FaultProxy(durable.address, faults=pretend_version(version, name)) as proxy:
        for allowed in (False, True):
            with an_app(proxy.url) as app, pytest.raises(ServerTooOld, match=rf"{name} {version}"):
                await app.worker(allow_unsafe=allowed).run()


async def test_a_user_who_may_not_see_the_settings_can_be_a_workers(followed: tuple[Server, Server]) -> None:
    """Even where the settings are bad: it decides by what it may see, and nothing forbidden is tried."""
    primary, _ = followed
    url = create_user(primary, "worker", *rules_of("worker", primary))
    with an_app(url) as app:
        await work_a_little(app)
    assert primary.command("ACL", "LOG") == []
    primary.command("ACL", "DELUSER", "worker")


def test_the_command_refuses_too_and_says_why_in_one_line(followed: tuple[Server, Server]) -> None:
    primary, _ = followed
    done = subprocess.run(
        [WINDLASS, "worker", "tests.worker.apps.gated:app"],
        env={**os.environ, "WINDLASS_URL": primary.tcp_url, "PYTHONPATH": str(RULES.parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("windlass: the worker does not start on this server")
    assert "set `appendonly yes`" in last
    assert primary.command("KEYS", "*") == []


def test_a_worker_of_several_processes_works_where_it_is_allowed_to(tmp_path: Path) -> None:
    """All its processes have heard of it: the one that leases is refused an evicting server else."""
    gate = tmp_path / "gate"
    gate.touch()
    with Server() as server, Workshop(server, tmp_path) as shop:
        ids = [shop.send(f"{way}_gate", str(gate), queue="gated") for way in ("loop", "process")]
        server.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        worker = shop.start("gated", queues={"gated": 1}, allow_unsafe=True)
        for id in ids:
            shop.journal.wait(1, "end", id=id)
        assert worker.stop() == 0
        assert "ignored (allow_unsafe)" in worker.log
        assert "maxmemory-policy is volatile-lru" in worker.log


async def test_a_worker_waits_until_the_server_has_read_its_data(durable: Server) -> None:
    """While it loads, what it may lose cannot be seen; it is looked at when it can."""
    loading = [3]

    def faults(request: list[bytes]) -> Fault:
        if request[0] != b"INFO" or not loading[0]:
            return FORWARD
        loading[0] -= 1
        return rewrite(_still_loading)

    with (
        settings(durable, no_appendfsync_on_rewrite="yes"),
        FaultProxy(durable.address, faults=faults) as proxy,
        an_app(proxy.url) as app,
        pytest.raises(ServerUnfit, match="no-appendfsync-on-rewrite is yes"),
    ):
        await app.worker().run()
    assert loading == [0]


def _still_loading(frame: bytes) -> bytes:
    text = frame[frame.index(b"\r\n") + 2 : -2].replace(b"loading:0", b"loading:1")
    return b"$%d\r\n%b\r\n" % (len(text), text)


def test_workers_with_different_tasks_on_one_queue_are_told(durable: Server, run: Run) -> None:
    def record(name: str, queue: str, digest: str, *tasks: str) -> WorkerRecord:
        return WorkerRecord(name, "here", 1, queues={queue: 1}, tasks_digest=digest, tasks=tasks)

    workers = [
        record("w1", "default", "aa", "shop.jobs.pay", "shop.jobs.send"),
        record("w2", "default", "bb", "blog.jobs.publish"),
        record("w3", "default", "aa", "shop.jobs.pay"),
        record("w4", "media", "bb", "blog.jobs.publish"),
        record("w5", "default", ""),
    ]
    with Windlass(durable.url) as app:
        for each in workers:
            perform_call(app, beat_worker(each))
        findings = json.loads(run("--url", durable.url, "--json").stdout)["findings"]
        (told,) = [each for each in findings if each["check"] == "queues"]
        assert told["level"] == "warning"
        assert told["what"] == (
            "default: the workers w1 (shop.jobs.pay, shop.jobs.send, …) and w2 (blog.jobs.publish, …) have different "
            "tasks; each passes on the jobs that it does not know"
        )
        assert (
            "give each a namespace (Windlass(namespace=…) or WINDLASS_NAMESPACE) or queues of its own" in told["remedy"]
        )
        perform_call(app, forget("w2"))
        findings = json.loads(run("--url", durable.url, "--json").stdout)["findings"]
        assert not [each for each in findings if each["check"] == "queues"]
        for each in workers:
            perform_call(app, forget(each.name))


def test_the_flow_can_be_awaited_as_well(durable: Server) -> None:
    async def look() -> list[Finding]:
        async with Windlass(durable.url) as app:
            return await arun_flow(app, examine)

    assert {finding.level for finding in asyncio.run(look())} <= {"ok", "note", "warning"}


def test_a_primary_that_cannot_be_reached_hides_no_other(run: Run) -> None:
    with Cluster(primaries=2, node_timeout_ms=60_000) as cluster:
        cluster.nodes[1].kill()
        by_check = told(run("--url", cluster.url, "--json"), code=1)
    assert [finding["server"] for finding in by_check["reach"]] == [f"127.0.0.1:{cluster.nodes[1].port}"]
    assert [finding["server"] for finding in by_check["role"]] == [f"127.0.0.1:{cluster.nodes[0].port}"]


def test_a_queue_that_stands_still_for_what_cannot_be_decoded_is_told(durable: Server, run: Run) -> None:
    with Windlass(durable.url) as app:
        queue = app.queue("doctor-broken")
        queue.enqueue_many([RawJob(b"x", id=f"bad-{n}") for n in range(MAX_BROKEN)])
        outcomes = [Broken(lease, "not JSON") for lease in queue.lease_many(MAX_BROKEN)]
        perform(queue, lambda layout: layout.turn(outcomes))
        record = WorkerRecord("w1", "here", 1, queues={"doctor-broken": 1}, suspended={"doctor-broken": "wrong keys"})
        perform_call(app, beat_worker(record))
        result = run("--url", durable.url, "--json")
        told = [each["what"] for each in json.loads(result.stdout)["findings"] if each["check"] == "queues"]
        assert told == [
            "doctor-broken: worker w1 only tries one job at a time: wrong keys",
            "doctor-broken: 1000 jobs cannot be decoded; the queue keeps no more (max_broken)",
        ]
        queue.purge()
