"""Frames: they arrive unchanged, and invalid data raises an error."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from windlass.worker.ipc import frames
from windlass.worker.ipc.frames import MAX_BODY_BYTES, FdStream, FrameError, FrameStream

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_round_trip(pair: Pair) -> None:
    here, there = pair
    frames.send(here, {"run": "ä", "n": 2**53}, b"\0\xff")
    frames.send(here, {})
    assert frames.receive(there) == ({"run": "ä", "n": 2**53}, b"\0\xff")
    assert frames.receive(there) == ({}, b"")
    here.close()
    assert frames.receive(there) is None


@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 32 * 1024 + 1, 10_000_000, 70_000_000])
async def test_bodies_of_every_size_both_ways(pair: Pair, size: int) -> None:
    here, there = pair
    body = os.urandom(min(size, 4096)) * (size // 4096 + 1)
    body = body[:size]

    def echo() -> None:
        header, received = frames.receive(there) or ({}, b"")
        frames.send(there, header, received)

    thread = threading.Thread(target=echo)
    thread.start()
    stream = FrameStream(here)
    await stream.send({"size": size}, body)
    header, received = await stream.receive() or ({}, b"")
    assert header == {"size": size}
    assert received == body
    thread.join()
    stream.close()


def test_a_frame_that_is_too_large_is_refused_before_sending(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(FrameError, match="is too large"):
        frames.send(here, {}, bytes(MAX_BODY_BYTES + 1))
    with pytest.raises(FrameError, match="is too large"):
        frames.send(here, {"long": "x" * frames.MAX_HEADER_BYTES})
    frames.send(here, {"next": 1})
    assert frames.receive(there) == ({"next": 1}, b"")


BROKEN = {
    "lengths": (b"GET / HTTP/1.1\r\n", "over the limits"),
    "not JSON": (struct.pack(">II", 3, 0) + b"abc", "not a JSON object.*abc"),
    "no object": (struct.pack(">II", 2, 0) + b"[]", "not a JSON object"),
    "cut in the lengths": (b"\0\0", "middle of a frame"),
    "cut in the header": (struct.pack(">II", 20, 0) + b'{"a"', "middle of a frame"),
    "cut in the body": (struct.pack(">II", 2, 9) + b"{}half", "middle of a frame"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
async def test_broken_frames(pair: Pair, data: bytes, message: str) -> None:
    here, there = pair
    here.sendall(data)
    here.shutdown(socket.SHUT_WR)
    copy = there.dup()
    with copy, pytest.raises(FrameError, match=message):
        frames.receive(copy)


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=BROKEN)
async def test_broken_frames_on_the_loop(pair: Pair, data: bytes, message: str) -> None:
    here, there = pair
    frames.send(here, {"good": 1})
    here.sendall(data)
    here.shutdown(socket.SHUT_WR)
    stream = FrameStream(there)
    assert await stream.receive() == ({"good": 1}, b"")
    for _ in range(2):
        with pytest.raises(FrameError, match=message):
            await stream.receive()
    stream.close()


async def test_a_frame_in_single_bytes(pair: Pair) -> None:
    here, there = pair
    stream = FrameStream(there)
    receiving = asyncio.create_task(stream.receive())
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    for byte in struct.pack(">II", 7, 3) + b'{"a":1}abc':
        here.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await receiving == ({"a": 1}, b"abc")
    stream.close()


async def test_unread_frames_are_bounded(pair: Pair) -> None:
    here, there = pair
    stream = FrameStream(there)
    sent = 0
    here.setblocking(False)
    wanted = 5000

    async def send() -> None:
        nonlocal sent
        sender = FrameStream(here)
        for number in range(wanted):
            await sender.send({"n": number}, bytes(100))
            sent += 1

    sending = asyncio.create_task(send())
    done, _ = await asyncio.wait([sending], timeout=0.3)
    assert not done
    assert sent < wanted
    for number in range(wanted):
        assert (await stream.receive() or ({},))[0] == {"n": number}
    await sending
    stream.close()


async def test_a_cancelled_receive_loses_nothing(pair: Pair) -> None:
    here, there = pair
    stream = FrameStream(there)
    receiving = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    frames.send(here, {"n": 1})
    receiving.cancel()
    await asyncio.wait([receiving])
    assert await stream.receive() == ({"n": 1}, b"")
    stream.close()


async def test_receiving_and_sending_after_the_end(pair: Pair) -> None:
    here, there = pair
    stream = FrameStream(there)
    receiving = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    here.close()
    assert await receiving is None
    with pytest.raises(OSError):
        await stream.send({"n": 1})
    stream.close()
    assert await stream.receive() is None
    with pytest.raises(BrokenPipeError):
        await stream.send({"n": 1})


async def test_a_waiting_send_fails_when_the_peer_closes(pair: Pair) -> None:
    here, there = pair
    stream = FrameStream(here)
    sending = asyncio.create_task(stream.send({}, bytes(10_000_000)))
    await asyncio.sleep(0)
    there.close()
    with pytest.raises(OSError):
        await sending
    stream.close()


async def test_two_receivers_are_refused(pair: Pair) -> None:
    stream = FrameStream(pair[0])
    receiving = asyncio.create_task(stream.receive())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two tasks"):
        await stream.receive()
    stream.close()
    assert await receiving is None


def pipe_works(read: int, write: int) -> bool:
    os.write(write, b"!")
    return os.read(read, 1) == b"!"


def test_descriptors_travel(pair: Pair) -> None:
    here, there = pair
    read, write = os.pipe()
    frames.send_with_fds(here, {"a": 1}, b"one", [read])
    frames.send_with_fds(here, {"b": 2}, b"", [write, read])
    frames.send_with_fds(here, {"c": 3})
    header, body, first = frames.receive_with_fds(there) or ({}, b"", [])
    assert (header, body, len(first)) == ({"a": 1}, b"one", 1)
    header, body, second = frames.receive_with_fds(there) or ({}, b"", [])
    assert (header, len(second)) == ({"b": 2}, 2)
    assert frames.receive_with_fds(there) == ({"c": 3}, b"", [])
    os.close(read)
    os.close(write)
    assert pipe_works(first[0], second[0])
    assert not any(os.get_inheritable(fd) for fd in first + second)
    frames.close_all(first + second)


async def test_descriptors_travel_on_the_loop(pair: Pair) -> None:
    here, there = FdStream(pair[0]), FdStream(pair[1])
    pipes = [os.pipe() for _ in range(200)]
    count = len(os.listdir("/proc/self/fd"))

    async def send() -> None:
        for number, pipe in enumerate(pipes):
            # Large enough to fill the socket at times, so that descriptors wait in the outbox.
            await here.send({"n": number}, bytes(50_000 if number % 10 == 0 else 10), fds=pipe)
            here.post({"plain": number})

    sending = asyncio.create_task(send())
    for number in range(200):
        header, _, fds = await there.receive() or ({}, b"", [])
        assert header == {"n": number}
        assert pipe_works(*fds)
        frames.close_all(fds)
        assert await there.receive() == ({"plain": number}, b"", [])
    await sending
    assert len(os.listdir("/proc/self/fd")) == count
    here.finish()
    assert await there.receive() is None
    for pipe in pipes:
        frames.close_all(pipe)
    here.close()
    there.close()


async def test_unreceived_descriptors_are_closed(pair: Pair) -> None:
    here, there = pair
    read, write = os.pipe()
    stream = FdStream(there)
    frames.send_with_fds(here, {"a": 1})
    frames.send_with_fds(here, {"b": 1}, b"", [write])
    os.close(write)
    assert await stream.receive() == ({"a": 1}, b"", [])
    stream.close()
    assert os.read(read, 1) == b""  # the pipe has no writer left
    os.close(read)


def test_a_frame_without_the_descriptors_it_announces(pair: Pair) -> None:
    here, there = pair
    frames.send(here, {"fds": 1})
    with pytest.raises(FrameError, match="and 0 arrived"):
        frames.receive_with_fds(there)
    many: Any = [0] * 17
    with pytest.raises(FrameError, match="too many"):
        frames.send_with_fds(here, {}, b"", many)
