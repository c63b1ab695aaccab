"""A TCP proxy process that delays every byte by a fixed time, without blocking later bytes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Self

from bench.environments import ROOT


class Proxy:
    """Between a port of its own and another on loopback, with a delay in each direction."""

    def __init__(self, to: int, delay: float) -> None:
        command = [sys.executable, "-m", "bench.proxy", str(to), str(delay)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)
        assert self._process.stdout
        self._process.stdout.close()


class _Half(asyncio.Protocol):
    """One side of a connection: forwards its data to the other side, delayed and in order."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[asyncio.Transport] = self._loop.create_future()
        self.other: _Half

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.ready.set_result(transport)
        if self.other.ready.done():
            self.other.ready.result().resume_reading()
        else:
            transport.pause_reading()  # what it hears before would have nowhere to go

    def data_received(self, data: bytes) -> None:
        self._loop.call_later(self._delay, self._deliver, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._loop.call_later(self._delay, self._close)

    def _deliver(self, data: bytes) -> None:
        self.other.ready.result().write(data)

    def _close(self) -> None:
        if self.other.ready.done():
            self.other.ready.result().close()


async def _serve(to: int, delay: float) -> None:
    loop = asyncio.get_running_loop()
    connecting = set()

    def accept() -> _Half:
        near, far = _Half(delay), _Half(delay)
        near.other, far.other = far, near
        task = loop.create_task(loop.create_connection(lambda: far, "127.0.0.1", to))
        connecting.add(task)
        task.add_done_callback(connecting.discard)
        return near

    server = await loop.create_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
