"""The contract of queues, on the layout of Queasy."""

from tests.support.layouts import take_over

take_over(globals(), "queasy")
