"""The contract of queues, on the layout of Worqr."""

from tests.support.layouts import take_over

take_over(globals(), "worqr")
