"""The contract of queues, on the layout of Processor Job Queue."""

from tests.support.layouts import take_over

take_over(globals(), "processor")
