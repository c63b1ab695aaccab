"""The app: one program's way to its queues. It owns the sessions and says goodbye when it is closed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from windlass.embedded import EmbeddedServer
from windlass.errors import InvalidOption, UnsupportedByLayout, WindlassError
from windlass.layout import Layout
from windlass.layouts.native import NativeLayout
from windlass.layouts.native import scripts as native_scripts
from windlass.limits import MAX_PAYLOAD, check_name, check_whole
from windlass.queue import Queue
from windlass.times import Duration, milliseconds
from windlass.transport import AwaitableRunner, BlockingRunner, Endpoint, Flow, Session, SessionOptions

T = TypeVar("T")

LONGEST_RETRY = 300.0  # half of the time for which a queue remembers the last answer of a silent lane


class Windlass:
    """An app: `Windlass()` uses a durable embedded server, `Windlass("redis://…")` or `WINDLASS_URL` another.

    `retry_for` is how long a call is repeated while the server cannot be reached; then it raises.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        max_payload: int = MAX_PAYLOAD,
        max_dead: int = 1000,
        retry_for: Duration = 10,
        call_timeout: Duration = 10,
        allow_eviction: bool = False,
    ) -> None:
        if url == "":
            raise InvalidOption("the server's URL is empty: leave it away to use the embedded server")
        url = url or ("embedded://" if home is not None else os.environ.get("WINDLASS_URL")) or "embedded://"
        self._endpoint = Endpoint.parse(url)
        if home is not None and (not self._is_embedded or self._endpoint.addresses[0].path):
            raise InvalidOption("home is the data folder of the embedded server: give a URL or a home, not both")
        folder = home or self._endpoint.addresses[0].path
        self._embedded = EmbeddedServer(Path(folder) if folder else None) if self._is_embedded else None
        self._max_payload = check_whole(max_payload, "max_payload", 1, 512 * 1024 * 1024)
        self._max_dead = check_whole(max_dead, "max_dead", 0, 1_000_000)
        self._options = SessionOptions(
            scripts=native_scripts.ALL,
            retry_for=milliseconds(retry_for, "retry_for", most=LONGEST_RETRY) / 1000,
            call_timeout=milliseconds(call_timeout, "call_timeout", least=0.001, most=LONGEST_RETRY) / 1000,
            allow_eviction=allow_eviction,
            locate=self._embedded.ensure if self._embedded else None,
        )
        self._blocking = BlockingRunner(self._endpoint, self._options.call_timeout)
        self._awaitable = AwaitableRunner(self._endpoint, self._options.call_timeout)
        self._layouts: dict[str, Layout] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._inherited: list[object] = []
        self._start_afresh()
        _apps.add(self)

    @property
    def _is_embedded(self) -> bool:
        return self._endpoint.kind == "embedded"

    def __repr__(self) -> str:
        return f"<Windlass on {'the embedded server' if self._is_embedded else self._endpoint}>"

    def queue(self, name: str, *, layout: str = "native") -> Queue:
        """A queue by its name; it comes into being with its first job."""
        check_name(name)
        if layout != "native":
            raise UnsupportedByLayout(f"there is no layout {layout!r}: this version has only 'native'")
        # All handles of a queue share one layout object, and so what is known of the queue's clock.
        known = self._layouts.get(name) or self._layouts.setdefault(name, NativeLayout(name, max_dead=self._max_dead))
        return Queue(known, self, max_payload=self._max_payload)

    # -- running flows ---------------------------------------------------------------------------

    def run(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow in this thread."""
        return self._blocking.run(flow(self._session()))

    async def arun(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow on this event loop."""
        return await self._awaitable.run(flow(self._loop_session()))

    def _session(self) -> Session:
        self._guard()
        return self._thread_session

    def _loop_session(self) -> Session:
        self._guard()
        loop = asyncio.get_running_loop()
        session = self._loop_sessions.get(loop)
        if session is None:
            session = Session(self._endpoint, self._options)
            with self._lock:  # other threads may begin and end loops of their own
                for ended in [each for each in self._loop_sessions if each.is_closed()]:
                    session.adopt(self._loop_sessions.pop(ended))
                self._loop_sessions[loop] = session
        return session

    def _guard(self) -> None:
        """After a fork the child must not speak on its parent's connections, nor as its lanes."""
        if self._pid != os.getpid():
            self._start_afresh()
        if self._closed:
            raise InvalidOption("this app is closed: make a new Windlass()")

    def _start_afresh(self) -> None:
        """Begin with no connections: at first, and in a child after a fork."""
        self._pid = os.getpid()
        # A child must keep what it inherited: freeing an asyncio connection would end it for the parent as well.
        self._inherited.append((getattr(self, "_thread_session", None), getattr(self, "_loop_sessions", None)))
        self._thread_session = Session(self._endpoint, self._options)
        self._loop_sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        for layout in self._layouts.values():
            layout.forget_names()

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye to the server and close all connections. The embedded server goes on for the next program.

        A call that another thread has under way ends with `OutcomeUnknown`.
        """
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            sessions = [self._thread_session, *self._loop_sessions.values()]
        self._say_goodbye(sessions)
        for session in sessions:
            session.end()

    async def aclose(self) -> None:
        """Awaitable `close`."""
        await asyncio.to_thread(self.close)

    def _say_goodbye(self, sessions: list[Session]) -> None:
        """On a connection of its own: those of event loops cannot be used, and a deaf server must not hold us up."""
        address = next((known for known in (session.known_primary for session in sessions) if known), None)
        if address is None:
            return  # never connected, or the connection was lost: nothing to say, or nobody to hear it
        options = replace(self._options, retry_for=0.0, locate=lambda: address.path)
        parting = Session(self._endpoint, options)
        runner = BlockingRunner(self._endpoint, min(1.0, self._options.call_timeout))
        try:
            for layout in list(self._layouts.values()):
                first = layout.counts().keys[0]
                call = layout.farewell([name for session in sessions for name in session.idle_lanes(first)])
                if call is not None:
                    runner.run(parting.perform(call))
        except WindlassError:
            pass  # a goodbye that is not heard is only untidy: lanes are forgotten by themselves
        finally:
            parting.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


_apps: weakref.WeakSet[Windlass] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for app in list(_apps):
        app.close()
