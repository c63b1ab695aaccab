"""How fast the queue of this program is on the server of this user, and what limits it: `windlass bench`.

`run.py` is the run, step by step; `meter.py` reads clocks and CPU times, `figure.py` judges them. `crew.py` starts a
real worker, whose jobs are in `tasks.py`.
"""

from __future__ import annotations

from windlass.ops.benchmark.figure import Figure
from windlass.ops.benchmark.run import BenchRun, Options

__all__ = ["BenchRun", "Figure", "Options"]
