"""Jumps of the server's wall clock under load: nothing starts early, no lease is cut short, none lasts for ever.

`python -m chaos.clock_jumps --jumps 40` lets the clock leap by an hour or a day, ahead and back. `actors.py` are
programs that lease, hold, abandon and schedule meanwhile, and write down what they did; `judge.py` holds that against
the one clock that no jump touches, the CLOCK_MONOTONIC of this machine.
"""
