"""The result: one value with all measurements, and the ratios that the performance goals refer to."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

from bench.calm import Calm
from bench.contest import Entry
from bench.peers import PEERS, WINDLASS, Peer

RULES = (
    "Same machine, same server (the bundled one, no persistence, loopback TCP), same run.",
    "In each round all do a workload one after the other; who begins changes; the middle of the rounds counts.",
    "A loop of fixed work is timed before each sample. Samples with a slow loop, or with others on the CPU, are taken "
    "anew while time allows; figures that had to be made of such are marked ~.",
    "Each in an environment of its own, at the best settings that its documentation offers, results off, hiredis and "
    "uvloop where it can use them, its own bulk call where it has one.",
    "Every job is counted by its handler. A drain is timed from the first job to the last.",
    "CPU is that of the worker's whole process tree and of the server, for one job.",
    "Rates differ from machine to machine: only ratios of one run are worth comparing.",
)

# Each compared figure: its title, its number, and whether more is better.
_COMPARED = {
    "enqueue_blocking": ("enqueue, one by one, blocking", "rate", True),
    "enqueue_awaited": ("enqueue, one by one, awaited", "rate", True),
    "enqueue_concurrent": ("enqueue, 100 awaits at a time", "rate", True),
    "enqueue_bulk": ("enqueue in bulk", "rate", True),
    "drain": ("no-op drain, one worker process", "rate", True),
    "drain_server": ("server CPU for one job, µs", "server_us", False),
    "naps_100": ("10 ms jobs, 100 at a time", "rate", True),
    "naps_1000": ("10 ms jobs, 1,000 at a time", "rate", True),
    "latency_p50": ("pick-up on an idle worker, p50 ms", "p50", False),
    "latency_p99": ("pick-up on an idle worker, p99 ms", "p99", False),
    "memory": ("server memory for one queued job, bytes", "bytes", False),
    "layout_workqueue": ("redis-work-queue's layout, drain", "rate", True),
}


def build(
    entries: list[Entry], skipped: dict[str, str], runs: int, server: dict[str, str], calm: Calm
) -> dict[str, Any]:
    """Build the result."""
    figures: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for key, figure in entry.figures(runs).items():
            figures.setdefault(key, {})[entry.who.peer.name] = figure
    names = dict.fromkeys([*(entry.who.peer.name for entry in entries), *skipped])
    return {
        "versions": {"windlass": version("windlass"), "python": platform.python_version(), **server},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "runs": runs,
        "rules": list(RULES),
        "peers": {name: _about(PEERS[name]) for name in names},
        "figures": figures,
        "ratios": ratios(figures),
        "skipped": skipped,
        "failed": [
            {"peer": entry.who.peer.name, "workload": entry.workload.name, "why": entry.failed}
            for entry in entries
            if entry.failed
        ],
        "noise": {
            "calibration_spread": calm.spread,
            "samples": sum(len(entry.samples) for entry in entries),
            "noisy_samples": sum(len(entry.samples) - len(entry.quiet) for entry in entries),
        },
    }


def _about(peer: Peer) -> dict[str, Any]:
    return {"title": peer.title, "packages": list(peer.packages), "settings": peer.settings, "gap": peer.gap}


def ratios(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Windlass divided by the best other peer; above 1 is better, also for figures where less is better."""
    found = {}
    for key, (title, number, more_is_better) in _COMPARED.items():
        of_all = figures.get(key) or figures.get(key.split("_")[0], {})
        numbers = {name: figure[number] for name, figure in of_all.items() if number in figure}
        ours = numbers.pop(WINDLASS, None)
        if not ours or not numbers:
            continue
        best = (max if more_is_better else min)(numbers, key=lambda name: numbers[name])
        ratio = ours / numbers[best] if more_is_better else numbers[best] / ours
        quiet = [of_all[name]["is_quiet"] for name in (WINDLASS, best)]
        found[key] = {"title": title, "windlass": ours, "best": numbers[best], "best_peer": best, "ratio": ratio}
        found[key] |= {"windlass_is_quiet": quiet[0], "best_is_quiet": quiet[1]}
    return found
