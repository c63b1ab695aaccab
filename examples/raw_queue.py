"""The first job: bytes on a queue, a lease on them, done.

Nothing has to be set up. Without WINDLASS_URL the jobs are kept by a durable embedded server, in WINDLASS_HOME
or in the platform's folder for user data.
"""

from windlass import Windlass

with Windlass() as app:
    queue = app.queue("example-hello")

    receipt = queue.enqueue(b"hello, world")  # when this returns, the server has the job
    print(f"enqueued   {receipt.id} ({receipt.status})")

    lease = queue.lease(seconds=30, wait=1)  # for 30 seconds this job is ours alone
    assert lease is not None
    print(f"leased     {lease.id}: {lease.data!r}, attempt {lease.attempt}")

    print(f"completed  {queue.complete(lease)}")  # true exactly once for a job
    print(f"left       {queue.counts().waiting}")
