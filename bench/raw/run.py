"""The section `raw`: two servers, the cases, and the tables of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.calm import Calm
from bench.raw import report
from bench.raw.cases import Rig
from bench.raw.measure import Plan, measure, measure_memory
from bench.server import BenchServer
from windlass.embedded import find_server_binary


def run(plan: Plan, folder: Path | None, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures of raw queues, as one value."""
    with ExitStack() as stack:
        calm = Calm()
        payloads = [b'{"n": %d}' % i for i in range(plan.most_jobs)]
        rigs = {}
        for name in (report.PLAIN, report.FSYNC):
            fsync = name == report.FSYNC
            server = stack.enter_context(BenchServer(find_server_binary(), folder, fsync=fsync))
            rigs[name] = Rig(server, payloads)
            stack.callback(rigs[name].close)
        figures = measure(rigs, plan, calm, say)
        say(f"memory of {plan.memory_jobs:,} jobs")
        memory = measure_memory(rigs[report.PLAIN], plan.memory_jobs)
        facts = rigs[report.PLAIN].server.describe()
        return report.build(figures, memory, facts, rigs[report.FSYNC].server.fsync_seconds(), calm)


def make_plan(*, quick: bool, runs: int, scale: float) -> Plan:
    """How much is done: half a minute or three."""
    seconds, share, memory_jobs, patience = (0.12, 0.2, 20_000, 15.0) if quick else (0.7, 1.0, 100_000, 140.0)
    return Plan(
        runs=runs,
        seconds=seconds * scale,
        share=share * scale,
        memory_jobs=max(1000, round(memory_jobs * scale)),
        patience=patience * scale,
    )
