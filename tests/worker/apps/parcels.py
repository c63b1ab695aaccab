"""Parents whose children all go to other queues."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="targets")
async def child(parent: str, number: int, job: Job = current()) -> None:
    note("child", job, parent=parent, number=number, queue=job.queue)


@app.task(queue="senders")
async def parent(counts: dict[str, int], job: Job = current()) -> None:
    note("parent", job)
    for queue, count in counts.items():
        for number in range(count):
            job.enqueue(child.using(queue=queue).call(job.id, number))
