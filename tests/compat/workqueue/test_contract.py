"""The contract of queues, on the layout of Redis Work Queue."""

from tests.support.layouts import take_over

take_over(globals(), "workqueue")
