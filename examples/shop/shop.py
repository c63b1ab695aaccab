"""A small shop: each order needs a thumbnail of its photo and an e-mail to the customer.

`windlass demo` runs the shop and kills its worker. To run it yourself, in this folder:

    windlass worker shop:app     runs the jobs
    python shop.py 100           in another terminal: places a hundred orders
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from windlass import Failure, Job, JobHandle, JobRecord, Windlass, current

app = Windlass()  # uses the embedded server, or the one that WINDLASS_URL names
FOLDER = Path(os.environ.get("SHOP_FOLDER", f"{gettempdir()}/windlass-shop"))
PHOTO = FOLDER / "photo.ppm"


@app.task(queue="shop-orders")  # a plain def: runs in a thread
def order(number: int, address: str, job: Job = current()) -> None:
    with noted("order", number, job):
        time.sleep(0.05)  # simulates charging the customer's card
        # Both are added in the step that completes this job, or never: an order that runs twice sends one e-mail.
        job.enqueue(thumbnail.call(number))
        job.enqueue(send_email.call(number, address))


# It runs in a process that can be killed, and may crash; then it runs again at once.
@app.task(queue="shop-media", run="process", timeout="10s", min_backoff=0)
def thumbnail(number: int, job: Job = current()) -> None:
    with noted("thumbnail", number, job):
        (FOLDER / f"thumbnail-{number}.ppm").write_bytes(shrink(PHOTO.read_bytes(), factor=5))


@app.task(queue="shop-mail", max_failures=20, min_backoff="200ms", max_backoff="2s")  # async def: on the event loop
async def send_email(number: int, address: str, job: Job = current()) -> None:
    with noted("email", number, job):
        await asyncio.sleep(0.1)  # a mail server is slow,
        if address.endswith(".invalid"):
            raise Failure(f"550 no such mailbox: {address}")  # rejects some addresses (for good: no retry),
        if random.random() < 0.1:
            raise ConnectionError("451 busy, try again later")  # and is sometimes busy: Windlass retries after a pause


@send_email.on_failure  # runs for each e-mail that failed for good
def call_customer(data: dict[str, int], job: JobRecord) -> None:
    note("did", "call", data["number"], job)


@app.task(queue="shop-media", run="process", max_stalls=2, min_backoff=0)
def corrupt_photo(job: Job = current()) -> None:
    with noted("poison", 0, job):
        os.kill(os.getpid(), signal.SIGKILL)  # as a bad decoder would. Two crashes are forgiven, here without a pause


@app.task(queue="shop-orders", priority=0)  # before all waiting orders
def heartbeat(job: Job = current()) -> None:
    note("did", "tick", 0, job)


app.schedule("heartbeat", heartbeat.call(), every="1s", overlap="allow")  # each tick is a job of its own


def place_orders(count: int) -> list[JobHandle[Any]]:
    """Enqueue this many orders in one round trip. When it returns, the server has them."""
    PHOTO.write_bytes(b"P6\n250 200\n255\n" + bytes(x * y // 64 % 256 for y in range(200) for x in range(750)))
    hosts = {number: "nowhere.invalid" if number % 50 == 0 else "example.com" for number in range(1, count + 1)}
    return app.enqueue_many(order.call(number, f"customer-{number}@{host}") for number, host in hosts.items())


def shrink(picture: bytes, factor: int) -> bytes:
    """Shrink a PPM picture: each square of pixels becomes one pixel, the mean of its colours."""
    _, measures, _, pixels = picture.split(b"\n", 3)
    width, height = map(int, measures.split())
    small = bytearray()
    for top in range(0, height, factor):
        rows = [pixels[3 * width * y : 3 * width * (y + 1)] for y in range(top, top + factor)]
        for left in range(0, 3 * width, 3 * factor):
            for colour in range(left, left + 3):
                small.append(sum(sum(row[colour : left + 3 * factor : 3]) for row in rows) // factor**2)
    return b"P6\n%d %d\n255\n" % (width // factor, height // factor) + small


@contextmanager
def noted(what: str, number: int, job: Job) -> Iterator[None]:
    """Note that a job began, and how it ended. Only a killed process leaves an attempt without an end."""
    note("began", what, number, job)
    try:
        yield
    except BaseException:
        note("failed", what, number, job)
        raise
    note("did", what, number, job)


def note(deed: str, what: str, number: int, job: Job | JobRecord) -> None:
    """Append one line to a ledger outside the server, in one write: a kill leaves the whole line or none of it."""
    with open(FOLDER / "ledger", "a") as ledger:
        ledger.write(f"{time.monotonic():.6f} {os.getpid()} {deed} {what} {number} {job.id}\n")


FOLDER.mkdir(exist_ok=True)
if __name__ == "__main__":
    print(f"{len(place_orders(int(sys.argv[1])))} orders are on their way; what becomes of them is in {FOLDER}/ledger")
