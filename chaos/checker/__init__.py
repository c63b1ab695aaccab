"""The checker: judges from the event log of a run (chaos/log.py) whether every promise was kept.

It makes one pass over all files, merged in the server's order. The modules and their invariants:

    enqueues.py  I3           an enqueue happens once
    claims.py    I2 I5 I6     a leased job was enqueued, is unchanged, has not ended, has a new fence
                 I10 I11 I12  … is not early, is in order, has exact counts
    settles.py   I4 I7 I12    one end, decided by the lease's owner only; budgets
    reaps.py     I8           every duplicate has a cause
    runs.py      I8 I9 I10    attempts in real time
    rewinds.py   I1           what a server that lost state may lose
    ending.py    I1 I12       nothing is lost, everything has drained

Supporting modules: frames.py and index.py (reading), evidence.py (faults), ledger.py, lives.py, line.py, book.py (state
of jobs), steps.py and check.py (the pass), report.py and history.py (output). forge.py writes logs of invented runs, to
measure and test the checker.
"""

from chaos.checker.book import Limits
from chaos.checker.check import check
from chaos.checker.report import INVARIANTS, Report, Violation

__all__ = ["INVARIANTS", "Limits", "Report", "Violation", "check"]
