"""The checker: whether a run kept every promise, by what its processes wrote down (chaos/log.py).

One pass over all files, merged in the server's order. What is judged where:

    enqueues.py  I3           an enqueue happens once
    claims.py    I2 I5 I6     what is given out was asked for, is unchanged, has not ended, has a new fence
                 I10 I11 I12  … is not early, passes nobody over, has exact counts
    settles.py   I4 I7 I12    one end, by the owner's word only; budgets
    reaps.py     I8           every duplicate has a cause
    runs.py      I8 I9 I10    attempts in real time
    rewinds.py   I1           what a server that was made to forget may lose
    ending.py    I1 I12       nothing is lost, everything has drained

and what that stands on: frames.py and index.py (reading), evidence.py (faults), ledger.py, lives.py, line.py, book.py
(what is known of jobs), steps.py and check.py (the pass), report.py and history.py (what comes out). forge.py makes
logs of runs that never were, to measure and to test the checker with.
"""

from chaos.checker.book import Limits
from chaos.checker.check import check
from chaos.checker.report import INVARIANTS, Report, Violation

__all__ = ["INVARIANTS", "Limits", "Report", "Violation", "check"]
