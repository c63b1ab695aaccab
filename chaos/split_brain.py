"""A primary is cut off together with one client while the others fail over: which writes it accepts and later loses.

    python -m chaos.split_brain --rounds 5

It runs in its own network namespace (`unshare --net`). The first primary has its own address there. The cut removes
that address, and every connection through it goes silent; the isolated client uses the primary's unix socket. The
sentinels promote another primary, and work goes on there. Then the address returns, and the old primary discards the
writes that only it had. With `min-replicas-to-write 1` it accepts writes for at most `min-replicas-max-lag` plus two
seconds; with `replicated(2)` it acknowledges nothing. A job leased on both sides has a greater fence on the new
primary.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass, field
from time import monotonic, sleep

from tests.support.sentinel import SentinelGroup
from tests.support.waiting import wait_until

from chaos.nemesis.fault import lacking
from windlass import Lease, Queue, Windlass
from windlass.errors import NotDurable, WindlassError

ISOLATED_ADDRESS = "10.9.0.1"
MAX_LAG_S = 1  # seconds of silence after which a replica no longer counts
ALLOWED_S = MAX_LAG_S + 2.0  # measured: up to 2.52 s; the server appears to count whole seconds
LEASE_S = 1.0
SAFE = "replicated(2)"


@dataclass
class Account:
    """Answers to the isolated client, as seconds since the cut, and the jobs it lost."""

    taken: dict[str, float] = field(default_factory=dict)  # acknowledged at `memory`
    taken_safely: int = 0  # acknowledged at `replicated(2)`
    not_durable: int = 0
    refused: int = 0
    lost: list[float] = field(default_factory=list)
    fences: tuple[int, int] = (0, 0)
    kept: bool = False  # jobs from before the cut, and those of the new primary, still exist

    @property
    def window(self) -> float:
        """Seconds after the cut during which it acknowledged jobs that were lost."""
        return max(self.lost, default=0.0)

    @property
    def faults(self) -> list[str]:
        """The problems found."""
        before, after = self.fences
        found = {
            f"jobs were lost that were acknowledged {self.window:.2f} s after the cut": self.window > ALLOWED_S,
            f"{self.taken_safely} jobs were acknowledged at {SAFE}": self.taken_safely > 0,
            "the old primary accepted no writes: there was no split": not self.taken,
            "the old primary never refused writes": not self.refused,
            f"the fence on the new primary is {after}, not above {before}": after <= before,
            "jobs acknowledged before the cut or by the new primary are missing": not self.kept,
        }
        return [fault for fault, is_so in found.items() if is_so]


def split(group: SentinelGroup) -> Account:
    """Make one cut, and heal it."""
    account = Account()
    old = group.wait_calm()
    with (
        Windlass(group.url, retry_for=30) as others,
        Windlass(old.url, retry_for=0.3, call_timeout=1) as inside,
    ):
        queue, cut_off = others.queue("split"), inside.queue("split")
        queue.purge()
        queue.enqueue(b"both hold it", id="both", durability=SAFE)
        first = _lease(cut_off)
        wait_until(lambda: len(list(queue.all_jobs("running"))) == 1, "the lease to be known")
        _ip("addr", "del", f"{ISOLATED_ADDRESS}/32", "dev", "lo")
        cut = monotonic()
        _take_all_it_gets(cut_off, account, cut)
        group.wait_new_primary(instead_of=old)
        queue.enqueue(b"taken by the others", id="new", durability="replicated(1)")
        second = wait_until(lambda: queue.lease(30), "the job of the expired lease")
        account.fences = (first.fence, second.fence)
        _ip("addr", "add", f"{ISOLATED_ADDRESS}/32", "dev", "lo")
        group.wait_replicas(2)
        there = {job.id for state in ("ready", "running") for job in queue.all_jobs(state)}
        account.kept = there >= {"both", "new"}
        account.lost = [after for id, after in account.taken.items() if id not in there]
        assert queue.complete(second)
        queue.purge()
    return account


def _lease(queue: Queue) -> Lease:
    lease = queue.lease(LEASE_S)
    assert lease is not None
    return lease


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _take_all_it_gets(queue: Queue, account: Account, cut: float) -> None:
    """Enqueue on the isolated side until it refuses; the first enqueue asks for `replicated(2)`."""
    try:
        queue.enqueue(b"", durability=SAFE)
        account.taken_safely += 1
    except NotDurable:
        account.not_durable += 1
    while monotonic() - cut < 5 * ALLOWED_S:
        try:
            account.taken[queue.enqueue(b"").id] = monotonic() - cut
        except WindlassError:
            account.refused += 1
            return
        sleep(0.005)


def run() -> Account:
    """Make one cut of a new group, in the current network namespace."""
    _ip("link", "set", "lo", "up")
    _ip("addr", "add", f"{ISOLATED_ADDRESS}/32", "dev", "lo")
    config = {"min-replicas-to-write": "1", "min-replicas-max-lag": str(MAX_LAG_S)}
    with SentinelGroup(config=config, appendonly=True, appendfsync="always", first_host=ISOLATED_ADDRESS) as group:
        return split(group)


def main() -> int:
    """Print the result; fail if there was a problem."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="cuts, each in its own network namespace (default 5)")
    parser.add_argument("--here", action="store_true", help="one cut, in the current network namespace")
    given = parser.parse_args()
    if not given.here:
        if (reason := lacking("ip", "unshare", root=True)) is not None:
            raise SystemExit(f"cannot create a network namespace: {reason}")
        command = ["unshare", "--net", sys.executable, "-m", "chaos.split_brain", "--here"]
        return max(subprocess.run(command, check=False).returncode for _ in range(given.rounds))
    account = run()
    print(
        f"accepted by the old primary {len(account.taken)}, of these lost {len(account.lost)}, the last "
        f"{account.window:.2f} s after the cut (allowed {ALLOWED_S:g} s); {SAFE}: {account.taken_safely} accepted, "
        f"{account.not_durable} NotDurable; fences {account.fences[0]} and then {account.fences[1]}"
    )
    for fault in account.faults:
        print(fault)
    print(f"{len(account.faults)} faults", flush=True)
    return 1 if account.faults else 0


if __name__ == "__main__":
    sys.exit(main())
