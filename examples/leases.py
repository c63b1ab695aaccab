"""All that can happen to a lease: complete, retry, extend, fail, cancel. And the order in which jobs are leased."""

import time

from windlass import Lease, Queue, Windlass


def take(queue: Queue) -> Lease:
    """Lease the next job. This example always knows that there is one."""
    lease = queue.lease(seconds=10, wait=2)
    assert lease is not None
    return lease


def priority(queue: Queue) -> None:
    """0 is the most urgent, 9 the least, 5 the default. Within one priority, first in first out."""
    queue.enqueue(b"whenever", priority=9)
    queue.enqueue(b"normal")
    queue.enqueue(b"urgent", priority=0)
    order = [take(queue) for _ in range(3)]
    print("priority   taken in this order:", ", ".join(lease.data.decode() for lease in order))
    queue.complete_many(order)


def delay(queue: Queue) -> None:
    """A job with a delay (or a run_at) is scheduled. It can be leased when its time has come."""
    asked = time.monotonic()
    queue.enqueue(b"later", delay="300ms")
    print("delay      nothing to lease yet:", queue.lease())
    queue.complete(take(queue))
    print(f"           leased after {time.monotonic() - asked:.1f} s")


def retry(queue: Queue) -> None:
    """A failed attempt: the job comes back, with a count of its attempts."""
    queue.enqueue(b"flaky", max_failures=5)
    lease = take(queue)
    queue.retry(lease, delay=0.2, message="the other side was busy")
    lease = take(queue)
    print(f"retry      attempt {lease.attempt}, {lease.failures} failure so far")
    queue.complete(lease)


def extend(queue: Queue) -> None:
    """A job that takes longer than its lease asks for more time. When a lease ends, others can take the job."""
    queue.enqueue(b"long")
    lease = queue.lease(seconds=0.3)
    assert lease is not None
    print("extend     ten seconds more:", queue.extend(lease, 10))
    queue.complete(lease)

    queue.enqueue(b"forgotten")
    lost = queue.lease(seconds=0.2)
    assert lost is not None
    again = take(queue)  # waits until the first lease ends
    print(f"           not extended: taken back, the fence has risen: {again.fence > lost.fence}")
    print(f"           the first may not complete it any more: {queue.complete(lost)}")
    queue.complete(again)


def fail(queue: Queue) -> None:
    """A failure for good: the job is dead. The queue keeps it with the reason until the dead are purged."""
    queue.enqueue(b"hopeless", id="order-7")
    queue.fail(take(queue), "no such order")
    dead = queue.get("order-7")
    assert dead is not None
    print(f"fail       {dead.id} is {dead.state}: {dead.message}")
    queue.purge("dead")


def cancel(queue: Queue) -> None:
    """A waiting job is removed. A running job learns of it at its next report."""
    queue.enqueue(b"not needed", id="a")
    print("cancel     a waiting job:", queue.cancel("a"))
    queue.enqueue(b"not needed any more", id="b")
    lease = take(queue)
    queue.cancel("b", running=True)
    print("           a running job may go on:", queue.progress(lease, 0.5))
    queue.complete(lease)


with Windlass() as app:
    queue = app.queue("example-leases")
    queue.purge()  # an interrupted run may have left jobs
    for show in (priority, delay, retry, extend, fail, cancel):
        show(queue)
    print("left      ", queue.counts().waiting)
