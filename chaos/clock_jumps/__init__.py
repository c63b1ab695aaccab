"""Jumps of the server's wall clock under load: no job starts early, no lease is cut short, no lease lasts forever.

`python -m chaos.clock_jumps --jumps 40` moves the clock by an hour or a day, ahead and back. `actors.py` are programs
that lease, hold, abandon and schedule jobs and log their actions; `judge.py` compares the logs with the one clock that
no jump affects, this machine's CLOCK_MONOTONIC.
"""
