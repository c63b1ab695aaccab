"""The first job: declare a task, enqueue a call of it, and run a worker in this program until the job is done.

It needs no setup. In production the worker is a separate program: `windlass worker first_job:app`.
"""

import asyncio

from windlass import Job, Windlass, current

app = Windlass()


@app.task(queue="example-greetings")
async def greet(name: str, job: Job = current()) -> None:
    print(f"running    {job.id}: hello, {name}!")
    done.set()


async def main() -> None:
    receipt = await greet.aenqueue("world")  # when this returns, the server has the job
    print(f"enqueued   {receipt.id} ({receipt.status})")

    worker = app.worker()
    running = asyncio.create_task(worker.run())
    await done.wait()
    await worker.stop()  # takes no more jobs; running jobs finish
    await running
    print(f"left       {(await app.queue('example-greetings').acounts()).waiting}")


done = asyncio.Event()
if __name__ == "__main__":
    asyncio.run(main())
    app.close()
