"""The first job: declare a task, put a call of it on the queue, run a worker in this program until it is done.

Nothing has to be set up. In production a worker is a program of its own, `windlass worker first_job:app`.
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
    await worker.stop()  # takes no more jobs, and lets what runs finish
    await running
    print(f"left       {(await app.queue('example-greetings').acounts()).waiting}")


done = asyncio.Event()
if __name__ == "__main__":
    asyncio.run(main())
    app.close()
