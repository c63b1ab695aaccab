"""The default options of a job. They stand here only.

A default applies to new jobs. A job that is queued already keeps the values that it was enqueued with: see `IMPLIED` in
storage/formats.py.
"""

PRIORITY = 5  # the middle of 0 (first) to 9 (last)
MAX_FAILURES = 10  # with the backoff below, the last retry comes about 25 minutes after the first failure
MAX_STALLS = 3  # a job that loses its worker this often is probably the cause
MAX_SNOOZES = 1_000  # at one a minute, 17 hours: what a job still waits for then may never come
MIN_BACKOFF_MS = 2_000  # long enough for a restart of what the job needs
MAX_BACKOFF_MS = 300_000  # short enough that a repaired job runs again soon
