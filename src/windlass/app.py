"""The app: one program's way to its queues. It owns the sessions and says goodbye when it is closed."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from inspect import iscoroutine
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar, Unpack, cast, overload

from msgspec import structs

from windlass.embedded import EmbeddedServer
from windlass.errors import InvalidArguments, InvalidOption, InvalidTask, NotDurable, WindlassError
from windlass.handle import JobHandle
from windlass.queue import Queue
from windlass.schedules import Schedules, schedule_of
from windlass.storage.capabilities import need
from windlass.storage.layouts import check_layout, make_layout
from windlass.storage.native import scripts as native_scripts
from windlass.storage.native.sealing import ENCRYPTION_VARIABLE, SIGNING_VARIABLE, UNSEALED, Seal, read_keys
from windlass.storage.port import Capability, Layout
from windlass.task import Handler, Task, TaskMaker, TaskOptions
from windlass.tasks.call import TaskCall
from windlass.tasks.declaration import (
    HandlerOptions,
    OnException,
    QueueOptions,
    check_on_exception,
    check_queue_options,
    declaring,
)
from windlass.tasks.registry import Registry
from windlass.transport import AsyncDriver, Endpoint, Flow, Session, SessionOptions, SyncDriver
from windlass.transport.presence import list_queues, list_workers
from windlass.values.durability import EVERY_QUEUE, Durability, levels_by_queue
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Receipt
from windlass.values.options import RawJob
from windlass.values.outcome import Child
from windlass.values.redacted import Redacted
from windlass.values.schedule import Schedule, TimingOptions
from windlass.values.validation import MAX_BROKEN, MAX_DEAD, MAX_PAYLOAD, check_flag, check_name, check_whole
from windlass.values.worker_record import WorkerRecord

if TYPE_CHECKING:
    from windlass.worker.in_process import Worker

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

LONGEST_RETRY = 300.0  # half of the time for which a queue remembers the last answer of a silent caller


class AppConfig(Redacted, frozen=True):
    """What an app was made with, in plain values: enough to make another like it. URL and keys are not for all eyes."""

    hidden: ClassVar[tuple[str, ...]] = ("url", "signing_keys", "encryption_keys")

    url: str | None
    home: str | None
    max_payload: int
    max_dead: int
    max_broken: int
    retry_for: float
    call_timeout: float
    allow_eviction: bool
    layouts: dict[str, str]
    durability: dict[str, str]
    signing_keys: dict[str, bytes] | None
    encryption_keys: dict[str, bytes] | None


class Windlass:
    """An app: `Windlass()` uses a durable embedded server, `Windlass("redis://…")` or `WINDLASS_URL` another.

    `retry_for` is how long a call is repeated while the server cannot be reached; then it raises. `queue_options`
    are the defaults for the tasks of a queue: `{"emails": {"max_failures": 3}}`. `on_exception` says what an exception
    of a job means that is neither `Retry` nor `Failure`: "retry", or "fail" for good; a task may say otherwise.
    `layouts` names the queues that speak the keys of another system: `{"thumbs": "workqueue"}`, or `{"*": "workqueue"}`
    for all others; the variable `WINDLASS_LAYOUTS` ("thumbs=workqueue mail=hworker") counts for more.
    `durability` is how safe a job must be when its enqueue returns: "memory", "everysec", "fsync" or "replicated(n)",
    for all queues or by queue (`{"orders": "replicated(2)", "*": "fsync"}`). Without one nothing is waited for, and
    receipts state what is certain: "fsync" on the embedded server, "memory" on another.
    A queue keeps the last `max_dead` jobs that failed for good. Jobs that cannot be decoded are kept apart and never
    dropped: a worker that finds `max_broken` of them stops taking jobs from that queue.
    `signing_keys` and `encryption_keys` are keys by their ids: `{"2026-11": b"…"}`, or `WINDLASS_SIGNING_KEYS` and
    `WINDLASS_ENCRYPTION_KEYS` ("2026-11:base64 2026-05:base64"). The first one seals every payload, all of them open;
    what is not sealed with one of them is never run.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        max_payload: int = MAX_PAYLOAD,
        max_dead: int = MAX_DEAD,
        max_broken: int = MAX_BROKEN,
        retry_for: Duration = 10,
        call_timeout: Duration = 10,
        allow_eviction: bool = False,
        queue_options: Mapping[str, QueueOptions] | None = None,
        on_exception: OnException = "retry",
        layouts: Mapping[str, str] | None = None,
        durability: str | Mapping[str, str] | None = None,
        signing_keys: Mapping[str, bytes] | None = None,
        encryption_keys: Mapping[str, bytes] | None = None,
    ) -> None:
        if url == "":
            raise InvalidOption("the server's URL is empty: leave it away to use the embedded server")
        url = url or ("embedded://" if home is not None else os.environ.get("WINDLASS_URL")) or "embedded://"
        self._endpoint = Endpoint.parse(url)
        if home is not None and (not self.is_embedded or self._endpoint.addresses[0].path):
            raise InvalidOption("home is the data folder of the embedded server: give a URL or a home, not both")
        folder = home or self._endpoint.addresses[0].path
        self._embedded = EmbeddedServer(Path(folder) if folder else None) if self.is_embedded else None
        self._max_payload = check_whole(max_payload, "max_payload", 1, 512 * 1024 * 1024)
        self._max_dead = check_whole(max_dead, "max_dead", 0, 1_000_000)
        self.max_broken = check_whole(max_broken, "max_broken", 1, 1_000_000)
        self._queue_options = check_queue_options({} if queue_options is None else queue_options)
        self.on_exception = check_on_exception(on_exception)
        self._layout_names = _check_layouts({} if layouts is None else layouts)
        self._layout_names |= read_layouts(os.environ.get("WINDLASS_LAYOUTS", "").split())
        signing, encryption = _keys(signing_keys, SIGNING_VARIABLE), _keys(encryption_keys, ENCRYPTION_VARIABLE)
        self._seal = Seal(signing, encryption)
        _check_layouts(self._layout_names, self._seal)  # refuses what cannot be sealed
        self._durability = levels_by_queue(durability)
        self._registry: Registry[Task[..., Any, Any], Handler[..., Any]] = Registry()
        self._declared_schedules: dict[str, Schedule] = {}
        self._options = SessionOptions(
            scripts=native_scripts.ALL + native_scripts.PRESENCE,
            retry_for=milliseconds(retry_for, "retry_for", most=LONGEST_RETRY) / 1000,
            call_timeout=milliseconds(call_timeout, "call_timeout", least=0.001, most=LONGEST_RETRY) / 1000,
            allow_eviction=allow_eviction,
            locate=self._embedded.ensure if self._embedded else None,
        )
        self.given = AppConfig(
            None if self._embedded else url,
            str(self._embedded.home) if self._embedded else None,  # also where WINDLASS_HOME, or nobody, has named it
            max_payload,
            max_dead,
            max_broken,
            self._options.retry_for,
            self._options.call_timeout,
            allow_eviction,
            self._layout_names,
            {queue: str(level) for queue, level in self._durability.items()},
            None if signing is None else dict(signing),
            None if encryption is None else dict(encryption),
        )
        self._blocking = SyncDriver(self._endpoint, self._options.call_timeout)
        self._awaitable = AsyncDriver(self._endpoint, self._options.call_timeout)
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._inherited: list[object] = []
        self._start_afresh()
        _apps.add(self)

    @property
    def is_embedded(self) -> bool:
        """Whether it uses the embedded server."""
        return self._endpoint.kind == "embedded"

    def __repr__(self) -> str:
        return f"<Windlass on {'the embedded server' if self.is_embedded else self._endpoint}>"

    def queue(self, name: str, *, layout: str | None = None, durability: str | None = None) -> Queue:
        """A queue by its name; it comes into being with its first job.

        `layout` is how it lies in the server: "native", or the keys of another system ("worqr", "workqueue", "queasy",
        "hworker", "processor"). By default what the app's `layouts` say, else native. `durability` is how safe a job
        must be when its enqueue returns; by default what the app's `durability` says.
        """
        lies = self.layout(name, layout)
        level = self._durability.get(name) or self._durability.get(EVERY_QUEUE)
        if durability is not None:
            level = Durability.parse(durability)
        return Queue(lies, self, max_payload=self._max_payload, durability=level)

    def layout(self, queue: str, name: str | None = None) -> Layout:
        """How a queue lies in the server. All who use the queue share one, and so what is known of its clock."""
        if not isinstance(queue, str):
            check_name(queue)  # which refuses it
        chosen = name or self._layout_names.get(queue) or self._layout_names.get("*", "native")
        found = self._layouts.get((queue, chosen))
        return found or self._layouts.setdefault(
            (queue, chosen),
            make_layout(chosen, queue, max_dead=self._max_dead, max_broken=self.max_broken, seal=self._seal),
        )

    @overload
    def job(self, queue: str, id: str) -> JobHandle[Any]: ...

    @overload
    def job(self, queue: str, id: str, returns: type[V]) -> JobHandle[V]: ...

    def job(self, queue: str, id: str, returns: Any = Any) -> JobHandle[Any]:
        """A handle on a job: its result, its events, its record. `returns` is the type that its result is read as."""
        return JobHandle(self.layout(queue), self, id, returns=returns)

    def hand_over(self, parent: str, call: TaskCall) -> Child:
        """A call that a running job of a queue hands over, checked."""
        _checked(call)
        if "durability" in call.options:
            raise InvalidOption(f"{call!r}: a job that is handed over is as safe as the step that completes its parent")
        for queue in (parent, call.queue):
            need(self.layout(queue), Capability.HAND_OVER, "hand a job over")
        return Child(call.queue, self.queue(call.queue).new_job(call.data, call.options))

    def queue_defaults(self, name: str) -> QueueOptions:
        """What `queue_options` says for the tasks of this queue."""
        return self._queue_options.get(name, {})

    # -- tasks and handlers ----------------------------------------------------------------------

    @overload
    def task(  # what is awaited comes first: only then is its value meant
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...

    @overload
    def task(self, function: Callable[P, V], /) -> Task[P, V, V]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskMaker: ...

    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Task[..., Any, Any] | TaskMaker:
        """Declare a task, as `@app.task` or with options.

        Options: `queue` ("default"), `name` (the function's own), `run` ("loop" for async def, "thread" for def, or
        "process"), `timeout` (not in a thread), `max_failures`, `max_stalls`, `min_backoff`, `max_backoff`, `priority`,
        `keep_result`, `on_exception` ("retry" or "fail").
        """
        if function is not None:
            return self._declare(function, options)
        return cast(TaskMaker, lambda function: self._declare(function, options))

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any, Any]:
        name = options.get("name", getattr(function, "__name__", repr(function)))
        with declaring(f"task {name!r}"):
            task: Task[..., Any, Any] = Task(self, function, name, options)
            self._registry.add_task(task)
        return task

    def handler(
        self, queue: str, /, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[Concatenate[bytes, P], R]], Handler[P, R]]:
        """Declare the one function that gets every payload of a queue as bytes: `@app.handler("thumbs")`.

        Options: `run`, `timeout`, `max_failures`, `max_stalls`, `min_backoff`, `max_backoff`, `on_exception`.
        """
        if callable(queue):
            raise InvalidTask('a handler needs the name of its queue: @app.handler("thumbs")')
        self.layout(queue)  # refuses what can be no name of a queue

        def declare(function: Callable[Concatenate[bytes, P], R]) -> Handler[P, R]:
            with declaring(f"the handler of queue {queue!r}"):
                handler = Handler(self, queue, function, options)
                self._registry.add_handler(handler)
            return handler

        return declare

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """All tasks, by their names."""
        return self._registry.tasks

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        """All handlers, by their queues."""
        return self._registry.handlers

    def find(self, name: str) -> Task[..., Any, Any] | None:
        """The task of this name, if there is one."""
        return self._registry.tasks.get(name)

    # -- schedules -------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """The schedules in the server: add, pause, run now, delete, list."""
        return Schedules(self.layout, self, max_payload=self._max_payload)

    def schedule(self, name: str, call: TaskCall, **timing: Unpack[TimingOptions]) -> None:
        """Declare a schedule in code: `app.schedule("nightly", clean.call(30), cron="0 3 * * *", zone="Asia/Tokyo")`.

        Workers that have the declaration put it into the server and tick it; take it out of the code and it stops.
        """
        if name in self._declared_schedules:
            raise InvalidTask(f"there are two schedules {name!r}: give one of them another name")
        with declaring(f"schedule {name!r}"):
            made = schedule_of(name, _checked(call), declared=True, max_payload=self._max_payload, **timing)
        self._declared_schedules[name] = made

    @property
    def declared_schedules(self) -> Mapping[str, Schedule]:
        """The schedules that are declared in code, by their names."""
        return MappingProxyType(self._declared_schedules)

    def worker(
        self,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        *,
        concurrency: int = 100,
        threads: int = 8,
        lease: Duration = 15,
        grace: Duration = 30,
        name: str | None = None,
        allow_unsafe: bool = False,
    ) -> Worker:
        """A worker inside this program: `await app.worker().run()`. In production use `windlass worker module:app`.

        `queues` with their weights; by default all that have a task or handler here. A thread keeps the leases alive,
        so no job may hold the interpreter for longer than `lease`; tasks that run in processes are refused. On a server
        that may lose jobs (see `windlass doctor`) it does not start, unless with `allow_unsafe`.
        """
        from windlass.worker.in_process import Worker  # costs time that a producer need not spend
        from windlass.worker.settings import Settings, worker_name

        if isinstance(queues, str):
            raise InvalidOption(f"queues must be a list of names, or names with weights: [{queues!r}]")
        own = self.own_queues() if queues is None else queues
        chosen = own if isinstance(own, Mapping) else dict.fromkeys(own, 1)
        if not chosen:
            raise InvalidOption(
                "there is nothing to work on: the app has no task and no handler, or no queue was named"
            )
        settings = Settings(
            name=worker_name(check_name(name, "worker") if name else None),
            queues={
                self.layout(queue).queue: check_whole(w, f"weight of {queue}", 1, 1000) for queue, w in chosen.items()
            },
            concurrency=check_whole(concurrency, "concurrency", 1, 10_000),
            threads=check_whole(threads, "threads", 1, 1000),
            processes=0,
            lease=milliseconds(lease, "lease", least=1, most=3600) / 1000,
            grace=milliseconds(grace, "grace", most=86400) / 1000,
            allow_unsafe=check_flag(allow_unsafe, "allow_unsafe"),
        )
        return Worker(self, settings)

    def own_queues(self) -> list[str]:
        """The queues that have a task, a handler or a schedule here."""
        scheduled = {schedule.queue for schedule in self._declared_schedules.values()}
        return sorted({task.queue for task in self.tasks.values()} | set(self.handlers) | scheduled)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # -- what there is ---------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """The names of all queues that are in use on the server, and of those that have a layout of another system.

        What lies in the server in another layout cannot be told from other keys, so it must be named.
        """
        return self._with_named(self.run(list_queues))

    async def aqueues(self) -> list[str]:
        """Awaitable `queues`."""
        return self._with_named(await self.arun(list_queues))

    def _with_named(self, found: list[str]) -> list[str]:
        return sorted({*found, *self._layout_names} - {"*"})

    def workers(self) -> list[WorkerRecord]:
        """All workers that were heard of within the last minute, by name."""
        return self.run(list_workers)

    async def aworkers(self) -> list[WorkerRecord]:
        """Awaitable `workers`."""
        return await self.arun(list_workers)

    # -- many at a time --------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Put many calls on their queues: `app.enqueue_many(welcome.call(i) for i in ids)`. Receipts in that order.

        One round trip, and one atomic step, for each queue and 1,000 calls. All are checked before any is sent.
        """
        return self.run(self._enqueue_many(calls))

    async def aenqueue_many(self, calls: Iterable[TaskCall]) -> list[Receipt]:
        """Awaitable `enqueue_many`."""
        return await self.arun(self._enqueue_many(calls))

    def _enqueue_many(self, calls: Iterable[TaskCall]) -> Callable[[Session], Flow[list[Receipt]]]:
        given = [_checked(call) for call in calls]
        places: dict[str, list[int]] = {}
        for place, call in enumerate(given):
            places.setdefault(call.queue, []).append(place)
        if len(places) == 1:
            return self._sending(given[0].queue, given)
        flows = [(places[name], self._sending(name, [given[place] for place in places[name]])) for name in places]

        def flow(session: Session) -> Flow[list[Receipt]]:
            receipts: dict[int, Receipt] = {}
            short: NotDurable | None = None
            for own, send in flows:
                try:
                    got = yield from send(session)
                except NotDurable as error:
                    got, short = error.receipts, error
                receipts.update(zip(own, got, strict=True))
            in_order = [receipts[place] for place in range(len(given))]
            if short is not None:
                raise NotDurable(short.queue, short.asked, short.reached, in_order)
            return in_order

        return flow

    def _sending(self, name: str, calls: list[TaskCall]) -> Callable[[Session], Flow[list[Receipt]]]:
        queue = self.queue(name)
        jobs = [RawJob(call.data, **call.options) if call.options else call.data for call in calls]
        return queue._enqueue(queue._new_jobs(jobs))

    # -- running flows ---------------------------------------------------------------------------

    def run(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow in this thread."""
        return self._blocking.run(flow(self._session()))

    async def arun(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow on this event loop."""
        session = self._known_loop_session() or await self._new_loop_session()
        return await self._awaitable.run(flow(session))

    def tolerate_eviction(self) -> None:
        """From now on use a server that may throw jobs away, too; for a worker that was told to."""
        self._options = replace(self._options, allow_eviction=True)
        self.given = structs.replace(self.given, allow_eviction=True)
        for session in (self._thread_session, *self._loop_sessions.values()):
            session.options = self._options

    async def is_cluster(self) -> bool:
        """Whether the queues are spread over several servers."""
        return await self.arun(lambda session: session.find_out())

    def _session(self) -> Session:
        self._guard()
        return self._thread_session

    def _known_loop_session(self) -> Session | None:
        self._guard()
        return self._loop_sessions.get(asyncio.get_running_loop())

    async def _new_loop_session(self) -> Session:
        loop = asyncio.get_running_loop()
        session = Session(self._endpoint, self._options)
        with self._lock:  # other threads may begin and end loops of their own
            for ended in [each for each in self._loop_sessions if each.is_closed()]:
                session.adopt(self._loop_sessions.pop(ended))
                self._loop_ends.pop(ended)
            self._loop_sessions[loop] = session
            self._loop_ends[loop] = ending = _hang_up_in_the_end(session)
        await anext(ending)
        return session

    def _guard(self) -> None:
        """After a fork the child must not speak on its parent's connections, nor as its callers."""
        if self._pid != os.getpid():
            self._start_afresh()
        if self._closed:
            raise InvalidOption("this app is closed: make a new Windlass()")

    def _start_afresh(self) -> None:
        """Begin with no connections: at first, and in a child after a fork."""
        self._pid = os.getpid()
        # A child must keep what it inherited: freeing an asyncio connection would end it for the parent as well.
        self._inherited += [getattr(self, name, None) for name in ("_thread_session", "_loop_sessions", "_loop_ends")]
        self._thread_session = Session(self._endpoint, self._options)
        self._loop_sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._loop_ends: dict[asyncio.AbstractEventLoop, AsyncIterator[None]] = {}
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
        await asyncio.sleep(0)  # let the sockets of this loop be closed before it ends

    def _say_goodbye(self, sessions: list[Session]) -> None:
        """On a connection of its own: those of event loops cannot be used, and a deaf server must not hold us up."""
        address = next((known for known in (session.known_primary for session in sessions) if known), None)
        if address is None:
            return  # never connected, or the connection was lost: nothing to say, or nobody to hear it
        options = replace(self._options, retry_for=0.0)
        parting = Session(self._endpoint, options)
        parting.start_at(address)
        runner = SyncDriver(self._endpoint, min(1.0, self._options.call_timeout))
        try:
            for layout in list(self._layouts.values()):
                first = layout.counts().keys[0]
                callers = [name for session in sessions for name in session.idle_callers(first)]
                lossy = [name for session in sessions for name in session.idle_callers(first, lossy=True)]
                call = layout.farewell(callers, lossy)
                if call is not None:
                    runner.run(parting.perform(call))
        except WindlassError:
            pass  # a goodbye that is not heard is only untidy: callers are forgotten by themselves
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


async def _hang_up_in_the_end(session: Session) -> AsyncIterator[None]:
    """A generator that is left half-way is closed by its event loop when that ends: the time to close connections."""
    try:
        yield
    finally:
        session.hang_up()


def _check_layouts(given: Mapping[str, str], seal: Seal = UNSEALED) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidOption('layouts must be names of layouts by queue, like {"thumbs": "workqueue"}')
    for queue, name in given.items():
        # Refuses what can be no name of a queue.
        make_layout(check_layout(name), "all" if queue == "*" else queue, seal=seal)
    return dict(given)


def _keys(given: Mapping[str, bytes] | None, variable: str) -> Mapping[str, bytes] | None:
    """The keys that the program gives, else those of its environment."""
    text = os.environ.get(variable)
    return read_keys(variable, text) if given is None and text is not None else given


def read_layouts(words: Iterable[str]) -> dict[str, str]:
    """Layouts by queue from words such as `thumbs=workqueue`; one without a queue is for all others."""
    pairs = (word.rpartition("=") for word in words)
    return _check_layouts({queue or "*": name for queue, _, name in pairs})


def _checked(call: TaskCall) -> TaskCall:
    if not isinstance(call, TaskCall):
        forgot = ": was an await forgotten?" if iscoroutine(call) else ": pass what task.call(…) returns"
        raise InvalidArguments(f"{call!r} is no call of a task{forgot}")
    return call


_apps: weakref.WeakSet[Windlass] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for app in list(_apps):
        app.close()
