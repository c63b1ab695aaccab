"""Schedules: one is declared in the code (a job every second), another is added while the program runs."""

import asyncio

from windlass import Job, Windlass, current

app = Windlass()
QUEUE = "example-schedules"
ticks: asyncio.Queue[str] = asyncio.Queue()


@app.task(queue=QUEUE)
async def report(kind: str, job: Job = current()) -> None:
    await ticks.put(kind)


app.schedule("each-second", report.call("from the code"), every="1s")  # the first worker writes it to the server


async def main() -> None:
    worker = app.worker()
    running = asyncio.create_task(worker.run())

    print("declared  ", await ticks.get())

    await app.schedules.aadd("reminder", report.call("added later"), cron="0 9 * * MON-FRI", zone="Europe/Berlin")
    await app.schedules.arun_now(QUEUE, "reminder")  # an extra run; its ticks stay as they are
    while (kind := await ticks.get()) != "added later":
        pass
    print("run now   ", kind)

    for schedule in await app.schedules.alist(QUEUE):
        print(f"schedule   {schedule.name}: fired {schedule.fired} so far")
        await app.schedules.adelete(QUEUE, schedule.name)

    await worker.stop()
    await running
    print("left      ", await app.queue(QUEUE).apurge())


if __name__ == "__main__":
    asyncio.run(main())
    app.close()
