"""The contract of queues, on this layout."""

from tests.support.layouts import take_over

take_over(globals(), "hworker")
