"""Jobs that log, print and fail in every way, and set up no logging of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from windlass import Failure, Windlass

app = Windlass(queue_options={"default": {"max_failures": 0}})

log = logging.getLogger("shop.orders")

FORGED = "14:03:22 ✗ forged default/1: failed for good"
# Clears the screen (C0 and C1), rings, sets a colour, turns the direction of text, and begins a line of its own.
HOSTILE = f"\x1b[2J\x9b2J\x07\x1b[31m\u202egnp.exe\u2066\r\n{FORGED}\u2028end"


def speak(word: str) -> None:
    log.debug("too quiet: %s", word)
    log.info("working on %s", word)


async def speak_in_a_task(word: str) -> None:
    await asyncio.gather(*[asyncio.to_thread(speak, word)])


def fail_in_a_chain() -> None:
    try:
        dict[str, str]()["missing"]
    except KeyError as error:
        problem = ValueError("outer")
        problem.add_note("a note of it")
        raise problem from error


@app.task
async def loop_speak(word: str) -> None:
    await speak_in_a_task(word)


@app.task
def thread_speak(word: str) -> None:
    speak(word)


@app.task(run="process")
def process_speak(word: str) -> None:
    speak(word)


@app.task(run="process")
async def coroutine_speak(word: str) -> None:
    await speak_in_a_task(word)


@app.task
async def loop_fail() -> None:
    await asyncio.sleep(0)
    fail_in_a_chain()


@app.task
def thread_fail() -> None:
    fail_in_a_chain()


@app.task(run="process")
def process_fail() -> None:
    fail_in_a_chain()


@app.task(run="process")
async def coroutine_fail() -> None:
    await asyncio.sleep(0)
    fail_in_a_chain()


@app.task
def fail_in_a_group() -> None:
    raise ExceptionGroup("two of them", [ValueError("first"), TypeError("second")])


@app.task
def give_up() -> None:
    try:
        fail_in_a_chain()
    except ValueError as error:
        raise Failure("not for us") from error


@app.task
def give_up_plainly() -> None:
    raise Failure("not for us")


@app.task
def misuse_windlass() -> None:
    app.queue("no good")


@app.task
def say_hostile(how: str) -> None:
    if how == "log":
        log.warning("it says %s", HOSTILE)
    elif how == "print":
        print(HOSTILE)
        print(f"unfinished\t{FORGED}", end="", flush=True)
        log.warning("after the unfinished line")
    else:
        raise ValueError(HOSTILE)


@app.task(run="process")
def print_and_die() -> None:
    print(HOSTILE, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def hurry(word: str) -> None:
    print(word)
