"""An app whose jobs fail in every way there is, each with a secret in its arguments and in its variables.

No error that is raised here has the secret in its own words: what a program writes into its errors is its own affair.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from enum import Enum
from typing import Any, Literal

from msgspec import Struct

from windlass import Failure, Job, Retry, Windlass, current

app = Windlass(retry_for=0.5)
QUEUE, RAW = "secretive", "secretive-raw"
once: dict[str, Any] = {"queue": QUEUE, "max_failures": 0, "max_stalls": 0, "min_backoff": 0.01, "max_backoff": 0.01}


class Colour(Enum):
    """A choice that no secret is among."""

    RED = "red"


class Circle(Struct, tag=True):
    """One of two, told apart by a word."""

    radius: float


class Square(Struct, tag=True):
    """The other."""

    side: float


@app.task(**once)
async def raise_on_the_loop(secret: str) -> None:
    """Its frame holds the secret."""
    copied = [secret, {"again": secret}]
    raise RuntimeError(f"failed with {len(copied)} things at hand")


@app.task(**once)
def raise_in_a_thread(secret: str) -> None:
    """An error behind an error."""
    try:
        int(secret[:0])
    except ValueError as error:
        raise LookupError("nothing found") from error


@app.task(run="process", **once)
def raise_in_a_process(secret: str) -> None:
    """It comes back as a frame from the child."""
    held = secret
    assert len(held) < 0, "too long"


@app.task(run="process", timeout=0.2, **once)
def outlast(secret: str) -> None:
    """It is killed with the secret on its stack."""
    time.sleep(60)


@app.task(timeout=0.2, **once)
async def outlast_on_the_loop(secret: str) -> None:
    """It is cancelled."""
    await asyncio.sleep(60)


@app.task(run="process", **once)
def crash(secret: str) -> None:
    """Its process dies."""
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(run="process", **once)
def leave(secret: str) -> None:
    """It ends the process by itself."""
    os._exit(3)


@app.task(**{**once, "max_failures": 1})
async def come_again(secret: str) -> None:
    """It asks for another try."""
    raise Retry("not yet", delay=0.01)


@app.task(**once)
async def give_up(secret: str) -> None:
    """It says that it has failed."""
    raise Failure("no use")


@app.task(**once)
async def fall_twice(secret: str) -> None:
    """It fails, and so does who is told of it."""
    raise RuntimeError("the first fall")


@fall_twice.on_failure(max_failures=0)
async def fall_again(data: dict[str, Any], error: Exception) -> None:
    """Gets the arguments, and fails with them at hand."""
    raise RuntimeError(f"the second fall, of {len(data)}")


@app.task(keep_result=60, **once)
async def return_odd(secret: str) -> Any:
    """What it returns cannot be written."""
    return {"secret": secret, "what": object()}


@app.task(keep_result=60, **once)
async def return_other(secret: str) -> Literal["red"]:
    """What it returns is not what it says."""
    return secret  # type: ignore[return-value]


@app.task(**once)
async def hand_over(secret: str, job: Job = current()) -> None:
    """It hands the secret on, and then fails."""
    job.enqueue(give_up.call(secret))
    raise RuntimeError("before the end")


@app.task(**once)
async def pick(colour: Colour, size: Literal["s", "l"], shape: Circle | Square, number: int) -> None:
    """Arguments that do not fit are told by their names."""


@app.task(run="thread", **once)
def be_cancelled(secret: str, job: Job = current()) -> None:
    """It runs until somebody cancels it."""
    while not job.cancelled:
        time.sleep(0.01)


@app.handler(RAW, max_failures=0)
async def take_raw(data: bytes) -> None:
    """A payload as it is."""
    raise RuntimeError(f"{len(data)} bytes are too many")
