"""An app whose jobs carry a secret everywhere they can: as arguments, results, to other queues, to failure handlers."""

from __future__ import annotations

from tests.support.workers import note
from windlass import Failure, Job, JobRecord, Windlass, current

app = Windlass()  # the keys come from the environment


@app.task(queue="near", run="process", keep_result=600)
def answer(secret: str, job: Job = current()) -> str:
    note("answer", job, right=secret.startswith("canary-"))
    return f"{secret} again"


@app.task(queue="near")
async def send(secret: str, job: Job = current()) -> None:
    job.enqueue(receive.call(secret))


@app.task(queue="far")
def receive(secret: str, job: Job = current()) -> None:
    note("receive", job, right=secret.startswith("canary-"))


@app.task(queue="near")
async def fail(secret: str) -> None:
    raise Failure("without saying what it was given")


@fail.on_failure
def on_failure(data: dict[str, str], job: JobRecord) -> None:
    note("failure", id=job.id, right=data["secret"].startswith("canary-") and b"canary-" in job.data)


@app.handler("raw")
def handle(payload: bytes) -> None:
    note("raw", right=payload.startswith(b"canary-"))


@app.task(queue="near")
async def tick(secret: str) -> None:
    note("tick", right=secret.startswith("canary-"))


app.schedule("often", tick.call("canary-ecafb3"), every="1s", overlap="allow")
