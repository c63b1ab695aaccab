"""The first raw job: enqueue bytes, lease the job, complete it.

It needs no setup. Without WINDLASS_URL a durable embedded server keeps the jobs, in WINDLASS_HOME or in the
platform's folder for user data.
"""

from windlass import Windlass

with Windlass() as app:
    queue = app.queue("example-hello")

    receipt = queue.enqueue(b"hello, world")  # when this returns, the server has the job
    print(f"enqueued   {receipt.id} ({receipt.status})")

    lease = queue.lease(seconds=30, wait=1)  # this program alone has the job, for 30 seconds
    assert lease is not None
    print(f"leased     {lease.id}: {lease.data!r}, attempt {lease.attempt}")

    print(f"completed  {queue.complete(lease)}")  # true only once for each job
    print(f"left       {queue.counts().waiting}")
