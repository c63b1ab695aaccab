"""Throughput and latency of Windlass on the user's own server, and the limit of each step: `windlass bench`.

`run.py` runs the steps. `meter.py` reads clocks and CPU times; `figure.py` computes the figures from them.
`worker_process.py` starts a real worker, whose jobs are in `tasks.py`.
"""

from __future__ import annotations

from windlass.ops.benchmark.figure import Figure
from windlass.ops.benchmark.run import BenchRun, Options

__all__ = ["BenchRun", "Figure", "Options"]
