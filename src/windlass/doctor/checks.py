"""The checks: pure functions from the facts about a server to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windlass.doctor.facts import RULES, Facts
from windlass.doctor.finding import Finding, danger, note, ok, warning
from windlass.doctor.known_bugs import known_bugs_of
from windlass.transport.server_facts import MIN_VERSIONS

Check = Callable[[Facts], Iterator[Finding]]

FULL_RATIO, CROWDED_RATIO = 0.95, 0.8  # of a limit: danger, warning
MAX_CLOCK_SKEW_S = 1.0  # more than NTP ever leaves
SLOW_ROUND_TRIP_S = 0.05  # far above a healthy network and server
MAX_REPLICA_LAG_S = 10  # a replica reports each second
MIN_FREE_DISK_RATIO = 0.1  # a log rewrite needs about the size of the data


def _unseen(check: str, facts: Facts, line: str) -> Finding:
    rule = facts.unseen.get(line) or RULES.get(line, "+info")
    command = " ".join(line.split()[:2])
    what = f"the user {facts.user!r} may not run {command}, or the server does not have this command"
    return Finding(check, "unseen", what, f"to see it: ACL SETUSER {facts.user} {rule}")


def version(facts: Facts) -> Iterator[Finding]:
    """Is the server new enough, and free of known bugs?"""
    if not facts.version:
        yield _unseen("version", facts, "INFO")
        return
    name = f"{facts.kind} {'.'.join(map(str, facts.version))}"
    if facts.version < MIN_VERSIONS[facts.kind]:
        yield danger("version", f"{name} is too old", "upgrade to Redis 7.0 or Valkey 7.2, or newer")
    else:
        yield ok("version", name)
    for bug, fixed in known_bugs_of(facts.kind, facts.version):
        yield warning(
            "hole",
            f"{bug.id} in {name}: {bug.title}",
            f"upgrade to {fixed}, unless your distribution has backported the fix to {name}",
        )


def loading(facts: Facts) -> Iterator[Finding]:
    """Has the server finished loading its data?"""
    if facts.info.get("loading") == "1":
        left = facts.info.get("loading_eta_seconds", "?")
        yield warning("loading", f"it is still loading its data, for about {left} s", "wait; calls wait too")


def eviction(facts: Facts) -> Iterator[Finding]:
    """Can the server evict keys when memory runs short?"""
    policy = facts.info.get("maxmemory_policy")
    if policy is None:
        yield _unseen("eviction", facts, "INFO")
    elif policy != "noeviction":
        yield danger(
            "eviction",
            f"maxmemory-policy is {policy}: when memory runs short it silently deletes jobs",
            "set `maxmemory-policy noeviction`",
        )
    else:
        yield ok("eviction", "maxmemory-policy is noeviction")
    if gone := facts.number("evicted_keys"):
        yield warning(
            "eviction",
            f"it has evicted {gone} keys since it was started",
            "set `maxmemory-policy noeviction`, and check the queues with `windlass audit`",
        )


def role(facts: Facts) -> Iterator[Finding]:
    """Does the server accept writes?"""
    if "role" not in facts.info:
        yield _unseen("role", facts, "INFO")
    elif facts.info["role"] != "master":
        primary = f"{facts.info.get('master_host', '?')}:{facts.info.get('master_port', '?')}"
        yield danger(
            "role",
            f"it is a replica of {primary}, and accepts no writes",
            "connect to the primary, or to the Sentinels (redis+sentinel://…)",
        )
    else:
        yield ok("role", "it is a primary")


def persistence(facts: Facts) -> Iterator[Finding]:
    """Does the server keep its data on disk?"""
    if "aof_enabled" not in facts.info:
        yield _unseen("persistence", facts, "INFO")
        return
    if facts.info["aof_enabled"] == "1":
        yield ok("persistence", "it keeps an append-only log")
        return
    remedy = "set `appendonly yes`"
    if facts.config is None:
        yield warning("persistence", "it keeps no append-only log", remedy)
        yield _unseen("persistence", facts, "CONFIG GET save")
    elif facts.setting("save"):
        yield warning("persistence", "it keeps snapshots only: a restart loses all jobs since the last one", remedy)
    elif replicas := facts.number("connected_slaves"):
        yield danger(
            "persistence",
            f"it keeps nothing on disk: a restart loses all jobs, here and on its {_count(replicas, 'replica')}",
            remedy,
        )
    else:
        yield warning("persistence", "it keeps nothing on disk: a restart loses all jobs", remedy)


def fsync(facts: Facts) -> Iterator[Finding]:
    """When does the server sync its log to disk?"""
    if facts.info.get("aof_enabled") != "1":
        return
    policy = facts.setting("appendfsync")
    if policy is None:
        yield _unseen("fsync", facts, "CONFIG GET save")
    elif policy == "always":
        yield ok("fsync", "appendfsync is always: every acknowledged write is on disk")
    elif policy == "everysec":
        yield note(
            "fsync",
            "appendfsync is everysec: a power cut may lose the acknowledged writes of up to 2 s; with a slow disk, so "
            "may killing the server",
            "set `appendfsync always` if that is too much",
        )
    else:
        yield warning(
            "fsync",
            f"appendfsync is {policy}: a power cut loses what the operating system has not yet written, often 30 s",
            "set `appendfsync always`, or everysec",
        )


def rewrite(facts: Facts) -> Iterator[Finding]:
    """Does the server sync its log during a log rewrite too?"""
    if facts.info.get("aof_enabled") != "1" or facts.config is None:
        return
    if facts.setting("no-appendfsync-on-rewrite") != "yes":
        yield ok("rewrite", "fsync goes on while the log is rewritten")
        return
    what = "no-appendfsync-on-rewrite is yes: while the log is rewritten nothing is fsynced"
    remedy = "set `no-appendfsync-on-rewrite no`"
    if facts.setting("appendfsync") == "always":
        yield danger("rewrite", f"{what}, although appendfsync is always", remedy)
    else:
        yield warning("rewrite", what, remedy)


def disk(facts: Facts) -> Iterator[Finding]:
    """Can the server write to its disk?"""
    remedy = "check its log and the free space on its disk"
    if facts.info.get("aof_enabled") == "1" and facts.info.get("aof_last_write_status", "ok") != "ok":
        yield danger("disk", "it could not write its log, and refuses writes (MISCONF)", remedy)
    elif facts.info.get("rdb_last_bgsave_status", "ok") != "ok":
        stops = facts.setting("stop-writes-on-bgsave-error") == "yes" and facts.setting("save")
        what = "its last snapshot failed"
        if stops:
            yield danger("disk", f"{what}, and it refuses writes (MISCONF)", remedy)
        else:
            yield warning("disk", what, remedy)
    elif facts.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield warning("disk", "its last rewrite of the log failed", remedy)
    else:
        yield ok("disk", "its last writes to disk succeeded")


def memory(facts: Facts) -> Iterator[Finding]:
    """How much memory is left for jobs?"""
    used, limit = facts.number("used_memory"), facts.number("maxmemory")
    if "used_memory" not in facts.info:
        yield _unseen("memory", facts, "INFO")
    elif not limit:
        yield note(
            "memory",
            f"{_megabytes(used)} used, without a limit: a growing queue takes all memory, until the server is killed",
            "set `maxmemory` below the machine's memory: then only new jobs are refused, with QueueFull",
        )
    else:
        what = f"{_megabytes(used)} of {_megabytes(limit)} used, {used / limit:.0%}"
        remedy = "raise `maxmemory`, or run more workers"
        if used > FULL_RATIO * limit:
            yield danger("memory", f"{what}: new jobs are refused, or soon will be", remedy)
        elif used > CROWDED_RATIO * limit:
            yield warning("memory", what, remedy)
        else:
            yield ok("memory", what)


def replicas(facts: Facts) -> Iterator[Finding]:
    """Are there replicas, and are they in sync?"""
    count = facts.number("connected_slaves")
    if facts.embedded or facts.info.get("role", "master") != "master":
        return
    if not count:
        yield note("replicas", "no replica is connected: if its disk fails, all jobs are lost")
        return
    found = [_words(value) for name, value in facts.info.items() if name.startswith("slave") and name[5:].isdigit()]
    late = [each for each in found if each.get("state") != "online" or int(each.get("lag", "0")) > MAX_REPLICA_LAG_S]
    if late:
        names = ", ".join(f"{each.get('ip')}:{each.get('port')} ({each.get('state')})" for each in late)
        yield warning("replicas", f"not in sync: {names}", "check their logs and the network in between")
    else:
        yield ok("replicas", f"{_count(count, 'replica')} in sync")
    least = facts.setting("min-replicas-to-write")
    if least is None:
        yield _unseen("replicas", facts, "CONFIG GET save")
    elif least == "0":
        yield warning(
            "replicas",
            "min-replicas-to-write is 0: cut off from its replicas, it acknowledges jobs that a failover then loses",
            "set `min-replicas-to-write 1`",
        )


def clients(facts: Facts) -> Iterator[Finding]:
    """Can more clients connect?"""
    used, limit = facts.number("connected_clients"), facts.number("maxclients")
    if not limit:
        yield _unseen("clients", facts, "INFO")
        return
    what = f"{used} of {limit} connections used"
    if used > CROWDED_RATIO * limit:
        yield warning("clients", what, "raise `maxclients`, and its limit of open files")
    else:
        yield ok("clients", what)


def timeout(facts: Facts) -> Iterator[Finding]:
    """Does the server close idle connections?"""
    seconds = facts.setting("timeout")
    if seconds and seconds != "0":
        yield note(
            "timeout",
            f"it closes connections that are idle for {seconds} s: Windlass reconnects, which takes a little time",
            "set `timeout 0`",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    """Do the server's clock and ours agree?"""
    if facts.ahead is None:
        yield _unseen("clock", facts, "TIME")
        return
    what = f"its clock is {abs(facts.ahead):.1f} s {'ahead of' if facts.ahead > 0 else 'behind'} this machine's"
    if abs(facts.ahead) > MAX_CLOCK_SKEW_S:
        yield warning("clock", f"{what}: run times go by the server's clock", "synchronise both clocks with NTP")
    else:
        yield ok("clock", "its clock and this machine's agree")


def latency(facts: Facts) -> Iterator[Finding]:
    """How long does a round trip take?"""
    if not facts.pings and not facts.calls:
        yield _unseen("latency", facts, "PING")
    for name, times in (("PING", facts.pings), ("a script", facts.calls)):
        if times:
            p50, p99 = _percentile(times, 0.5), _percentile(times, 0.99)
            what = f"{name} takes {p50 * 1000:.1f} ms (p50), {p99 * 1000:.1f} ms (p99)"
            if p99 > SLOW_ROUND_TRIP_S:
                yield warning("latency", what, "check slow commands (SLOWLOG), swapping, and the network")
            else:
                yield ok("latency", what)


def rights(facts: Facts) -> Iterator[Finding]:
    """May this user run all commands of a worker?"""
    if facts.denied is None:
        yield Finding(
            "rights",
            "unseen",
            f"the user {facts.user!r} may not load and run scripts, or the server cannot report its permissions",
            f"to see it: ACL SETUSER {facts.user} +script|load +evalsha",
        )
    elif facts.denied:
        names = ", ".join(sorted({_command(line) for line in facts.denied}))
        yield warning(
            "rights",
            f"the user {facts.user!r} lacks permissions of a worker: it may not run {names}, "
            f"or not on {facts.own_keys}",
            "for a worker, grant the rules in docs/acl/worker.acl; a producer or reader needs fewer",
        )
    else:
        yield ok("rights", f"the user {facts.user!r} may run all commands of a worker")


def cluster(facts: Facts) -> Iterator[Finding]:
    """Are all slots of the cluster served?"""
    if facts.info.get("cluster_enabled") != "1":
        return
    if facts.cluster is None:
        yield _unseen("cluster", facts, "CLUSTER INFO")
    elif facts.cluster.get("cluster_state") != "ok":
        yield danger(
            "cluster",
            f"cluster_state is {facts.cluster.get('cluster_state')}: queues in slots that no node serves stand still",
            "look at CLUSTER INFO and CLUSTER NODES",
        )
    else:
        yield ok("cluster", f"cluster_state is ok, with {facts.cluster.get('cluster_size', '?')} primaries")
    if facts.replicas_of_slots == 0:
        yield note(
            "cluster", "this primary has no replica: if it dies, its queues stand still", "add one (CLUSTER REPLICATE)"
        )


def embedded(facts: Facts) -> Iterator[Finding]:
    """Does the embedded server have its original settings, and enough disk space?"""
    if not facts.embedded:
        return
    home = facts.setting("dir")
    if facts.setting("appendfsync") != "always":
        yield warning(
            "embedded",
            f"the embedded server in {home} no longer has appendfsync always",
            "run `windlass server restart`",
        )
    if facts.free is not None and facts.free < MIN_FREE_DISK_RATIO:
        yield warning("embedded", f"the disk of {home} is nearly full: {facts.free:.0%} free", "free disk space")
    elif facts.free is not None:
        yield ok("embedded", f"its data is in {home}; {facts.free:.0%} of that disk is free")


def slow_scripts(facts: Facts) -> Iterator[Finding]:
    """Have Windlass scripts blocked the server?"""
    if facts.slow is None:
        yield _unseen("slow scripts", facts, "SLOWLOG GET 1")
    elif facts.slow:
        worst = max(facts.slow, key=lambda each: each.seconds)
        yield note(
            "slow scripts",
            f"{_count(len(facts.slow), 'call')} of Windlass in its SLOWLOG, the slowest: {worst.script} with "
            f"{worst.seconds * 1000:.0f} ms",
            "a busy machine or a fork can cause this; if it is always the same script, please report it",
        )
    else:
        yield ok("slow scripts", "no call of Windlass is in its SLOWLOG")


CHECKS: tuple[Check, ...] = (
    version,
    loading,
    role,
    eviction,
    persistence,
    fsync,
    rewrite,
    disk,
    memory,
    replicas,
    cluster,
    clients,
    timeout,
    clock,
    latency,
    rights,
    embedded,
    slow_scripts,
)

# A worker does not start if one of these finds a danger: jobs may be lost, or none can run.
WORKER_CHECKS: tuple[Check, ...] = (version, role, eviction, persistence, rewrite)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _megabytes(amount: int) -> str:
    return f"{amount / 1e6:,.1f} MB"


def _words(value: str) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in value.split(","))


def _percentile(times: Sequence[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))]


def _command(line: str) -> str:
    first, second, *_ = [*line.split(), ""]
    return f"{first}|{second}" if first in ("CLIENT", "SCRIPT") else first
