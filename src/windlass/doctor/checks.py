"""The checks: plain functions from what was read to what is to be said of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windlass.doctor.facts import RULES, Facts
from windlass.doctor.finding import Finding, danger, note, ok, warning
from windlass.doctor.known_bugs import known_bugs_of
from windlass.transport.server_facts import OLDEST

Check = Callable[[Facts], Iterator[Finding]]

FULL, CROWDED = 0.95, 0.8  # parts of a limit
SKEW = 1.0  # seconds
LATE = 0.05  # seconds of a round trip
LAG = 10  # seconds that a replica may be behind
LITTLE_DISK = 0.1  # part that is free


def _unseen(check: str, facts: Facts, line: str) -> Finding:
    rule = facts.unseen.get(line) or RULES.get(line, "+info")
    command = " ".join(line.split()[:2])
    what = f"the user {facts.user!r} may not run {command}, or the server does not have it"
    return Finding(check, "unseen", what, f"to see it: ACL SETUSER {facts.user} {rule}")


def version(facts: Facts) -> Iterator[Finding]:
    """Whether it is new enough, and without known holes."""
    if not facts.version:
        yield _unseen("version", facts, "INFO")
        return
    name = f"{facts.kind} {'.'.join(map(str, facts.version))}"
    if facts.version < OLDEST[facts.kind]:
        yield danger("version", f"{name} is too old", "upgrade it: Redis 7.0 or Valkey 7.2 or newer")
    else:
        yield ok("version", name)
    for hole, fixed in known_bugs_of(facts.kind, facts.version):
        yield warning(
            "hole",
            f"{hole.id} in {name}: {hole.title}",
            f"upgrade to {fixed}, unless your distribution has put the fix into its {name}",
        )


def loading(facts: Facts) -> Iterator[Finding]:
    """Whether it answers at all."""
    if facts.info.get("loading") == "1":
        left = facts.info.get("loading_eta_seconds", "?")
        yield warning("loading", f"it is still reading its data, for about {left} s", "wait; calls wait, too")


def eviction(facts: Facts) -> Iterator[Finding]:
    """Whether it may throw keys away when memory runs short."""
    policy = facts.info.get("maxmemory_policy")
    if policy is None:
        yield _unseen("eviction", facts, "INFO")
    elif policy != "noeviction":
        yield danger(
            "eviction",
            f"maxmemory-policy is {policy}: when memory runs short it throws jobs away in silence",
            "set `maxmemory-policy noeviction`",
        )
    else:
        yield ok("eviction", "maxmemory-policy is noeviction")
    if gone := facts.number("evicted_keys"):
        yield warning(
            "eviction",
            f"{gone} keys were thrown away since it was started",
            "set `maxmemory-policy noeviction`, and look with `windlass audit` what is left of the queues",
        )


def role(facts: Facts) -> Iterator[Finding]:
    """Whether it takes writes."""
    if "role" not in facts.info:
        yield _unseen("role", facts, "INFO")
    elif facts.info["role"] != "master":
        primary = f"{facts.info.get('master_host', '?')}:{facts.info.get('master_port', '?')}"
        yield danger(
            "role",
            f"it is a replica of {primary}: nothing can be written here",
            "connect to the primary, or to the sentinels (redis+sentinel://…)",
        )
    else:
        yield ok("role", "it is a primary")


def persistence(facts: Facts) -> Iterator[Finding]:
    """Whether what it has is on disk."""
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
            f"it keeps nothing on disk: restarted, it is empty, and empties its {_count(replicas, 'replica')} too",
            remedy,
        )
    else:
        yield warning("persistence", "it keeps nothing on disk: a restart loses all jobs", remedy)


def fsync(facts: Facts) -> Iterator[Finding]:
    """When its log is on disk for certain."""
    if facts.info.get("aof_enabled") != "1":
        return
    policy = facts.setting("appendfsync")
    if policy is None:
        yield _unseen("fsync", facts, "CONFIG GET save")
    elif policy == "always":
        yield ok("fsync", "appendfsync is always: what is acknowledged is on disk")
    elif policy == "everysec":
        yield note(
            "fsync",
            "appendfsync is everysec: a power cut may lose up to 2 s of what was acknowledged; with a slow disk so may "
            "a mere kill of the server",
            "set `appendfsync always` if that is too much",
        )
    else:
        yield warning(
            "fsync",
            f"appendfsync is {policy}: how much a power cut loses is up to the operating system, often 30 s",
            "set `appendfsync always`, or everysec",
        )


def rewrite(facts: Facts) -> Iterator[Finding]:
    """Whether it keeps its word about fsync while it rewrites its log."""
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
    """Whether it can write to its disk."""
    remedy = "look at its log and at the room on its disk"
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
        yield ok("disk", "what it wrote last is written")


def memory(facts: Facts) -> Iterator[Finding]:
    """How much room is left for jobs."""
    used, limit = facts.number("used_memory"), facts.number("maxmemory")
    if "used_memory" not in facts.info:
        yield _unseen("memory", facts, "INFO")
    elif not limit:
        yield note(
            "memory",
            f"{_megabytes(used)} used, and no limit: a queue that grows takes all memory, until the server is killed",
            "set `maxmemory` below the machine's: then an enqueue is refused with QueueFull, and the rest goes on",
        )
    else:
        what = f"{_megabytes(used)} of {_megabytes(limit)} used, {used / limit:.0%}"
        remedy = "raise `maxmemory`, or let workers make room"
        if used > FULL * limit:
            yield danger("memory", f"{what}: an enqueue is refused, or soon will be", remedy)
        elif used > CROWDED * limit:
            yield warning("memory", what, remedy)
        else:
            yield ok("memory", what)


def replicas(facts: Facts) -> Iterator[Finding]:
    """Who has a copy, and whether it is in step."""
    count = facts.number("connected_slaves")
    if facts.embedded or facts.info.get("role", "master") != "master":
        return
    if not count:
        yield note("replicas", "no replica is connected: what its own disk loses is lost")
        return
    found = [_words(value) for name, value in facts.info.items() if name.startswith("slave") and name[5:].isdigit()]
    late = [each for each in found if each.get("state") != "online" or int(each.get("lag", "0")) > LAG]
    if late:
        names = ", ".join(f"{each.get('ip')}:{each.get('port')} ({each.get('state')})" for each in late)
        yield warning("replicas", f"not in step: {names}", "look at their logs and at the network between")
    else:
        yield ok("replicas", f"{_count(count, 'replica')} in step")
    least = facts.setting("min-replicas-to-write")
    if least is None:
        yield _unseen("replicas", facts, "CONFIG GET save")
    elif least == "0":
        yield warning(
            "replicas",
            "min-replicas-to-write is 0: cut off from its replicas it acknowledges what the next primary will not have",
            "set `min-replicas-to-write 1`",
        )


def clients(facts: Facts) -> Iterator[Finding]:
    """Whether there is room for more connections."""
    used, limit = facts.number("connected_clients"), facts.number("maxclients")
    if not limit:
        yield _unseen("clients", facts, "INFO")
        return
    what = f"{used} of {limit} connections used"
    if used > CROWDED * limit:
        yield warning("clients", what, "raise `maxclients`, and its limit of open files")
    else:
        yield ok("clients", what)


def timeout(facts: Facts) -> Iterator[Finding]:
    """Whether it cuts connections that are idle."""
    seconds = facts.setting("timeout")
    if seconds and seconds != "0":
        yield note(
            "timeout",
            f"it closes connections that were idle for {seconds} s: Windlass connects again, and loses a little time",
            "set `timeout 0`",
        )


def clock(facts: Facts) -> Iterator[Finding]:
    """Whether its clock and ours agree."""
    if facts.ahead is None:
        yield _unseen("clock", facts, "TIME")
        return
    what = f"its clock is {abs(facts.ahead):.1f} s {'ahead of' if facts.ahead > 0 else 'behind'} this machine's"
    if abs(facts.ahead) > SKEW:
        yield warning("clock", f"{what}: run times are compared with its clock", "have both set their clocks by NTP")
    else:
        yield ok("clock", "its clock and this machine's agree")


def latency(facts: Facts) -> Iterator[Finding]:
    """How long a round trip takes."""
    if not facts.pings and not facts.calls:
        yield _unseen("latency", facts, "PING")
    for name, times in (("PING", facts.pings), ("a script", facts.calls)):
        if times:
            p50, p99 = _percentile(times, 0.5), _percentile(times, 0.99)
            what = f"{name} takes {p50 * 1000:.1f} ms (p50), {p99 * 1000:.1f} ms (p99)"
            if p99 > LATE:
                yield warning("latency", what, "look for slow commands (SLOWLOG), swapping, and the network between")
            else:
                yield ok("latency", what)


def rights(facts: Facts) -> Iterator[Finding]:
    """Whether this user may do what a worker does."""
    if facts.denied is None:
        yield Finding(
            "rights",
            "unseen",
            f"the user {facts.user!r} may not load and run scripts, or the server cannot tell what it may run",
            f"to see it: ACL SETUSER {facts.user} +script|load +evalsha",
        )
    elif facts.denied:
        names = ", ".join(sorted({_command(line) for line in facts.denied}))
        yield warning(
            "rights",
            f"the user {facts.user!r} could not be a worker's: it may not run {names}, or not on windlass:*",
            "for a worker, give it the line in docs/acl/worker.acl; a producer or reader needs less",
        )
    else:
        yield ok("rights", f"the user {facts.user!r} may run all that a worker needs")


def cluster(facts: Facts) -> Iterator[Finding]:
    """Whether the cluster is whole."""
    if facts.info.get("cluster_enabled") != "1":
        return
    if facts.cluster is None:
        yield _unseen("cluster", facts, "CLUSTER INFO")
    elif facts.cluster.get("cluster_state") != "ok":
        yield danger(
            "cluster",
            f"cluster_state is {facts.cluster.get('cluster_state')}: queues whose slots are not served stand still",
            "look at CLUSTER INFO and CLUSTER NODES",
        )
    else:
        yield ok("cluster", f"whole, of {facts.cluster.get('cluster_size', '?')} primaries")
    if facts.replicas_of_slots == 0:
        yield note(
            "cluster", "this primary has no replica: if it dies, its queues stand still", "add one (CLUSTER REPLICATE)"
        )


def embedded(facts: Facts) -> Iterator[Finding]:
    """Whether the embedded server is as it was started, and has room."""
    if not facts.embedded:
        return
    home = facts.setting("dir")
    if facts.setting("appendfsync") != "always":
        yield warning(
            "embedded",
            f"the embedded server in {home} has been told to fsync less than always",
            "have it started anew: windlass server restart",
        )
    if facts.free is not None and facts.free < LITTLE_DISK:
        yield warning("embedded", f"the disk of {home} is nearly full: {facts.free:.0%} free", "make room there")
    elif facts.free is not None:
        yield ok("embedded", f"its data is in {home}; {facts.free:.0%} of that disk is free")


def slow_scripts(facts: Facts) -> Iterator[Finding]:
    """Whether our own scripts have held it up."""
    if facts.slow is None:
        yield _unseen("slow scripts", facts, "SLOWLOG GET 1")
    elif facts.slow:
        worst = max(facts.slow, key=lambda each: each.seconds)
        yield note(
            "slow scripts",
            f"{_count(len(facts.slow), 'call')} of Windlass in its SLOWLOG, the slowest {worst.script} with "
            f"{worst.seconds * 1000:.0f} ms",
            "a busy machine or a fork shows like this; if it is always the same script, please report it",
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

# What means that jobs are lost, or that there can be no work: a worker does not start on these.
PERILS: tuple[Check, ...] = (version, role, eviction, persistence, rewrite)


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
