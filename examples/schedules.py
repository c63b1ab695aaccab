"""Schedules: a job every second from the code, and another one added while the program runs."""

import asyncio

from windlass import Job, Windlass, current

app = Windlass()
QUEUE = "example-schedules"
ticks: asyncio.Queue[str] = asyncio.Queue()


@app.task(queue=QUEUE)
async def report(kind: str, job: Job = current()) -> None:
    await ticks.put(kind)


app.schedule("each-second", report.call("from the code"), every="1s")  # put into the server by the first worker


async def main() -> None:
    worker = app.worker()
    running = asyncio.create_task(worker.run())

    print("declared  ", await ticks.get())

    await app.schedules.aadd("reminder", report.call("added later"), cron="0 9 * * MON-FRI", zone="Europe/Berlin")
    await app.schedules.arun_now("reminder", QUEUE)  # beside its ticks, which stay as they are
    while (kind := await ticks.get()) != "added later":
        pass
    print("run now   ", kind)

    for schedule in await app.schedules.alist(QUEUE):
        print(f"schedule   {schedule.name}: fired {schedule.fired} so far")
        await app.schedules.adelete(schedule.name, QUEUE)

    await worker.stop()
    await running
    print("left      ", await app.queue(QUEUE).apurge())


if __name__ == "__main__":
    asyncio.run(main())
    app.close()
