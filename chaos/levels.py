"""What each durability level can lose: kills the server under load and looks for every acknowledged job.

    python -m chaos.levels --rounds 5

Acknowledgements are kept in this process, outside the server. Some cases stall the disk: only then does a server that
syncs every second lose more than a second, even if only its process is killed. `python -m chaos.failovers` measures
what replication can lose.
"""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import ExitStack
from time import monotonic, sleep
from typing import NamedTuple

from tests.support.server import Server, valkey_binary

from chaos.nemesis.disk import StalledFsync
from windlass import State, Windlass
from windlass.errors import WindlassError

STALL_S = 1.8  # seconds that an fsync takes; the server goes on answering for two seconds
LOAD_S = 4.0  # seconds before the kill
PRODUCERS = 4
NONE = {"appendonly": "no"}
EVERYSEC = {"appendonly": "yes", "appendfsync": "everysec"}
ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


class Case(NamedTuple):
    """A level on a server with these settings, with a stalled or a normal disk."""

    level: str
    config: dict[str, str]
    stalls: bool
    most_lost: float  # seconds before the kill from which acknowledgements may be lost


class Outcome(NamedTuple):
    """The result of one round."""

    acknowledged: int
    lost: int
    window: float  # seconds from the oldest lost acknowledgement to the kill


CASES = (
    Case("memory", NONE, False, LOAD_S + 60),
    Case("everysec", EVERYSEC, False, 2.0),
    Case("everysec", EVERYSEC, True, 2.0),
    Case("fsync", ALWAYS, False, 0.0),
    Case("fsync", ALWAYS, True, 0.0),
)


def play(case: Case, seconds: float) -> Outcome:
    """One round: load, kill, restart, count."""
    with Server(valkey_binary(), config=case.config) as server, ExitStack() as stack:
        acknowledged: dict[str, float] = {}
        ending = threading.Event()

        def produce() -> None:
            with Windlass(server.url, durability=case.level, retry_for=0, call_timeout=30) as app:
                queue = app.queue("levels")
                while not ending.is_set():
                    try:
                        receipt = queue.enqueue(b"x" * 100)
                    except WindlassError:
                        return  # the server was killed: this enqueue is in doubt
                    acknowledged[receipt.id] = monotonic()

        producers = [threading.Thread(target=produce) for _ in range(PRODUCERS)]
        for producer in producers:
            producer.start()
        sleep(seconds / 2)
        stall = stack.enter_context(StalledFsync(server, STALL_S)) if case.stalls else None
        sleep(seconds / 2)
        killed_at = monotonic()
        server.kill()
        ending.set()
        for producer in producers:
            producer.join()
        if stall is not None:
            stall.end()  # which starts the server again
        if not server.alive:
            server.start()
        with Windlass(server.url) as app:
            found = {job.id for job in app.queue("levels").all_jobs(State.READY)}
        lost = [at for id, at in acknowledged.items() if id not in found]
        return Outcome(len(acknowledged), len(lost), max((killed_at - at for at in lost), default=0.0))


def main() -> int:
    """Play every case and print a line for each; returns 1 if one lost more than its level allows."""
    parser = argparse.ArgumentParser(prog="python -m chaos.levels", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds per case (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=LOAD_S, help="seconds of load before the kill (default %(default)s)"
    )
    chosen = parser.parse_args()
    missing = StalledFsync.available()
    bad = 0
    print(f"{'level':10} {'appendfsync':12} {'disk':8} {'acknowledged':>13} {'lost':>8} {'worst window':>13}   allowed")
    for case in CASES:
        disk = "stalls" if case.stalls else "fine"
        policy = case.config.get("appendfsync", "no log")
        if case.stalls and missing:
            print(f"{case.level:10} {policy:12} {disk:8} skipped: {missing}")
            continue
        rounds = [play(case, chosen.seconds) for _ in range(chosen.rounds)]
        window = max(each.window for each in rounds)
        bad += window > case.most_lost
        allowed = "everything" if case.config is NONE else f"{case.most_lost:.1f} s"
        print(
            f"{case.level:10} {policy:12} {disk:8} {sum(each.acknowledged for each in rounds):13,} "
            f"{sum(each.lost for each in rounds):8,} {window:11.2f} s   {allowed}",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
