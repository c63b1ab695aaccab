"""`Windlass`, the app: one program's queues, tasks and connections."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from asyncio.events import _get_running_loop
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from functools import partial
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
from windlass.storage.formats import CALLER_TTL_MS
from windlass.storage.layouts import check_layout, make_layout
from windlass.storage.native import scripts as native_scripts
from windlass.storage.native.sealing import ENCRYPTION_VARIABLE, SIGNING_VARIABLE, UNSEALED, Seal, read_keys
from windlass.storage.port import Capability, Layout
from windlass.task import Handler, Task, TaskMaker, TaskOptions
from windlass.tasks.call import TaskCall
from windlass.tasks.codec import Codec, Decode, Encode
from windlass.tasks.declaration import (
    HandlerOptions,
    OnException,
    QueueOptions,
    check_on_exception,
    check_queue_options,
    declaring,
)
from windlass.tasks.names import default_name
from windlass.tasks.registry import Registry
from windlass.transport import AsyncDriver, Endpoint, Flow, Session, SessionOptions, SyncDriver
from windlass.transport.errors import ConnectFailed, WireLost, public_error
from windlass.transport.loop_check import warn_of_blocking
from windlass.transport.presence import list_queues, list_workers
from windlass.values.durability import EVERY_QUEUE, Durability, levels_by_queue
from windlass.values.durations import Duration, milliseconds
from windlass.values.job import Receipt
from windlass.values.options import RawJob
from windlass.values.outcome import HandOver
from windlass.values.redacted import Redacted
from windlass.values.schedule import Schedule, TimingOptions
from windlass.values.validation import (
    LARGEST_PAYLOAD,
    MAX_BROKEN,
    MAX_DEAD,
    MAX_PAYLOAD,
    check_flag,
    check_name,
    check_whole,
)
from windlass.values.worker_record import WorkerRecord

if TYPE_CHECKING:
    from windlass.worker.in_process import Worker

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

NAMESPACE_VARIABLE = "WINDLASS_NAMESPACE"
MAX_RETRY_S = CALLER_TTL_MS / 2000  # a queue has not yet forgotten the last answer to a caller that retries


class AppConfig(Redacted, frozen=True):
    """The options of an app as plain values, to make another app like it. Its repr hides the URL and the keys."""

    hidden: ClassVar[tuple[str, ...]] = ("url", "signing_keys", "encryption_keys")

    url: str | None
    home: str | None
    namespace: str
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
    """The app: gives access to queues, declares tasks, and owns the connections to the server.

    `Windlass()` starts or joins the embedded server, whose data is durable. `Windlass("redis://…")`, or the variable
    `WINDLASS_URL`, uses a Redis or Valkey server of yours.

    Options:
      home            data folder of the embedded server; `WINDLASS_HOME` sets the default.
      namespace       keeps the queues and workers of this app apart from others on the same server, with the same names
                      or not; `WINDLASS_NAMESPACE` sets the default, which is none. Only for the native layout.
      retry_for       how long a call is retried while the server cannot be used, 10 s by default; then it raises.
      call_timeout    how long one try of a call waits for its reply, 10 s by default.
      max_payload     the largest payload that is enqueued, 1 MiB by default and 512 MiB at most. Workers run every
                      payload up to 512 MiB.
      max_dead        how many dead jobs a queue keeps, 1,000 by default; then it drops the oldest.
      max_broken      how many broken jobs (with a payload that cannot be decoded) a queue keeps, 1,000 by default.
                      None is ever dropped: at this limit workers lease only one job at a time, to try.
      queue_options   defaults for the tasks of a queue: `{"emails": {"max_failures": 3}}`.
      on_exception    what to do when a job raises: "retry" (the default), or "fail" to let it die at once. `Retry`,
                      `Snooze` and `Failure` decide for themselves. A task can override this.
      durability      the level a job must reach before its enqueue returns: "memory", "everysec", "fsync" or
                      "replicated(n)", for all queues or by queue: `{"orders": "replicated(2)", "*": "fsync"}`. Without
                      it an enqueue waits for nothing more than the server's reply.
      layouts         queues that use another system's keys: `{"thumbs": "workqueue"}`; "*" means all other queues.
                      `WINDLASS_LAYOUTS` ("thumbs=workqueue mail=hworker") overrides it.
      signing_keys, encryption_keys
                      keys by id: `{"2026-11": b"…"}`. The first key seals every new payload, all keys open one. A
                      worker never runs a payload that none of them opens. Default: `WINDLASS_SIGNING_KEYS` and
                      `WINDLASS_ENCRYPTION_KEYS` ("2026-11:base64 2026-05:base64").
      allow_eviction  use a server that may evict keys, and so lose jobs, when its memory is full.
      encode, decode  carry arguments and results of your own types: `encode(value)` returns plain values, and
                      `decode(type, plain)` makes the value again. pydantic models need neither.

    Close it with `close` or `aclose`, or use it as a context manager. Every blocking method `x` has an awaitable
    twin `ax`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
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
        encode: Encode | None = None,
        decode: Decode | None = None,
    ) -> None:
        if url == "":
            raise InvalidOption("the server's URL is empty: omit it to use the embedded server")
        url = url or ("embedded://" if home is not None else os.environ.get("WINDLASS_URL")) or "embedded://"
        self._endpoint = Endpoint.parse(url)
        if home is not None and (not self.is_embedded or self._endpoint.addresses[0].path):
            raise InvalidOption("home is the data folder of the embedded server: pass a URL or home, not both")
        folder = home or self._endpoint.addresses[0].path
        self._embedded = EmbeddedServer(Path(folder) if folder else None) if self.is_embedded else None
        space = os.environ.get(NAMESPACE_VARIABLE, "") if namespace is None else namespace
        self.namespace = check_name(space, "namespace") if space != "" else ""
        self._max_payload = check_whole(max_payload, "max_payload", 1, LARGEST_PAYLOAD)
        self._max_dead = check_whole(max_dead, "max_dead", 0, 1_000_000)
        self.max_broken = check_whole(max_broken, "max_broken", 1, 1_000_000)
        self._queue_options = check_queue_options({} if queue_options is None else queue_options)
        self.codec = Codec(encode, decode)
        self.on_exception = check_on_exception(on_exception)
        self._layout_names = _check_layouts({} if layouts is None else layouts)
        self._layout_names |= read_layouts(os.environ.get("WINDLASS_LAYOUTS", "").split())
        signing, encryption = _keys(signing_keys, SIGNING_VARIABLE), _keys(encryption_keys, ENCRYPTION_VARIABLE)
        self._seal = Seal(signing, encryption).within(self.namespace)
        _check_layouts(self._layout_names, self.namespace, self._seal)  # refuses layouts that have neither
        self._durability = levels_by_queue(durability)
        self._registry: Registry[Task[..., Any, Any], Handler[..., Any]] = Registry()
        self._declared_schedules: dict[str, Schedule] = {}
        self._options = SessionOptions(
            scripts=native_scripts.ALL + native_scripts.PRESENCE,
            retry_for=milliseconds(retry_for, "retry_for", most=MAX_RETRY_S) / 1000,
            call_timeout=milliseconds(call_timeout, "call_timeout", least=0.001, most=MAX_RETRY_S) / 1000,
            allow_eviction=allow_eviction,
            locate=self._embedded.ensure if self._embedded else None,
        )
        self.given = AppConfig(
            None if self._embedded else url,
            str(self._embedded.home) if self._embedded else None,  # also if it comes from WINDLASS_HOME or the default
            self.namespace,
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
        self._flows = _Flows(self, self._endpoint, self._options.call_timeout)
        self._layouts: dict[tuple[str, str], Layout] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._inherited: list[object] = []
        self._reset_connections()
        _apps.add(self)

    @property
    def is_embedded(self) -> bool:
        """Whether this app uses the embedded server."""
        return self._endpoint.kind == "embedded"

    def __repr__(self) -> str:
        within = f", namespace {self.namespace!r}" if self.namespace else ""
        return f"<Windlass on {'the embedded server' if self.is_embedded else self._endpoint}{within}>"

    def queue(self, name: str, *, layout: str | None = None, durability: str | None = None) -> Queue:
        """Return a queue for raw jobs (bytes). The queue exists once it has a job.

        `layout` chooses its keys: "native", or those of another system ("worqr", "workqueue", "queasy", "hworker",
        "processor"); the default comes from the app's `layouts`, else "native". `durability` is the level that a job
        must reach before its enqueue returns; the default is the app's. Raises `InvalidName` and `InvalidOption`.
        """
        chosen = self.layout(name, layout)
        level = self._durability.get(name) or self._durability.get(EVERY_QUEUE)
        if durability is not None:
            level = Durability.parse(durability)
        return Queue(chosen, self._flows, max_payload=self._max_payload, durability=level)

    def layout(self, queue: str, name: str | None = None) -> Layout:
        """The layout object of a queue. All users of the queue share it, and with it the view of the server's clock."""
        if not isinstance(queue, str):
            check_name(queue)  # raises
        chosen = name or self._layout_names.get(queue) or self._layout_names.get("*", "native")
        found = self._layouts.get((queue, chosen))
        return found or self._layouts.setdefault(
            (queue, chosen),
            make_layout(
                chosen,
                queue,
                max_dead=self._max_dead,
                max_broken=self.max_broken,
                namespace=self.namespace,
                seal=self._seal,
            ),
        )

    @overload
    def job(self, queue: str, id: str) -> JobHandle[Any]: ...

    @overload
    def job(self, queue: str, id: str, returns: type[V]) -> JobHandle[V]: ...

    def job(self, queue: str, id: str, returns: Any = Any) -> JobHandle[Any]:
        """Return a handle on a job by its id: to wait for its result, watch its events or cancel it.

        `returns` is the type that `result` decodes the value to. The server is not asked whether the job exists.
        """
        return JobHandle(self.layout(queue), self._flows, id, returns=returns, codec=self.codec)

    def hand_over(self, parent: str, call: TaskCall) -> HandOver:
        """Check a call that a running job of the queue `parent` hands over, and build its job."""
        _check_call(call)
        if "durability" in call.options:
            raise InvalidOption(
                f"{call!r}: durability cannot be set for a handed-over job, which is added in its parent's last step"
            )
        for queue in (parent, call.queue):
            need(self.layout(queue), Capability.HAND_OVER, "hand a job over")
        return HandOver(call.queue, self.queue(call.queue).new_job(call.data, call.options))

    def queue_defaults(self, name: str) -> QueueOptions:
        """The `queue_options` of one queue."""
        return self._queue_options.get(name, {})

    # -- tasks and handlers ----------------------------------------------------------------------

    @overload
    def task(  # the coroutine overload comes first, so that V is the awaited value
        self, function: Callable[P, Coroutine[Any, Any, V]], /
    ) -> Task[P, Coroutine[Any, Any, V], V]: ...

    @overload
    def task(self, function: Callable[P, V], /) -> Task[P, V, V]: ...

    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskMaker: ...

    def task(
        self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Task[..., Any, Any] | TaskMaker:
        """Declare a task: `@app.task`, or `@app.task(queue="emails", max_failures=3)`. Enqueue it with `.enqueue(…)`.

        Options:
          queue         where its jobs go; "default".
          name          the task's name in the payload; its module and function, "shop.jobs.send_mail".
          run           "loop" for `async def`, "thread" for `def`, or "process", which can be killed.
          timeout       time limit of one attempt; not with run="thread", because a thread cannot be killed.
          max_failures  how many failed attempts are retried, 10. The next failure makes the job dead.
          max_stalls    how many lost leases (worker killed or stuck) are retried, 3. Crashes add to the same
                        counter: see "When a job is dead" in docs/tasks.md.
          max_snoozes   how often a job may put itself off with `Snooze`, 1,000.
          min_backoff, max_backoff
                        the wait after the first failure, 2 s; it doubles up to 5 min. After a crash it is shorter.
          priority      0 (first) to 9 (last); 5.
          tags, expires as in `Queue.enqueue`.
          keep_result   how long to keep the return value: "1h". By default it is not kept.
          on_exception  "retry" or "fail"; the app's `on_exception`.

        Raises `InvalidTask` for a function or option that cannot work.
        """
        if function is not None:
            return self._declare(function, options)
        return cast(TaskMaker, lambda function: self._declare(function, options))

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> Task[..., Any, Any]:
        name = options["name"] if "name" in options else default_name(function)
        with declaring(f"task {name!r}"):
            task: Task[..., Any, Any] = Task(self, function, name, options)
            self._registry.add_task(task)
        return task

    def handler(
        self, queue: str, /, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[Concatenate[bytes, P], R]], Handler[P, R]]:
        """Declare the function that handles every job of a queue as raw bytes: `@app.handler("thumbs")`.

        A queue has tasks or one handler. Options, as for `task`: `run`, `timeout`, `max_failures`, `max_stalls`,
        `max_snoozes`, `min_backoff`, `max_backoff`, `on_exception`. Raises `InvalidTask`.
        """
        if callable(queue):
            raise InvalidTask('a handler needs a queue name: @app.handler("thumbs")')
        self.layout(queue)  # raises if this is not a queue name

        def declare(function: Callable[Concatenate[bytes, P], R]) -> Handler[P, R]:
            with declaring(f"the handler of queue {queue!r}"):
                handler = Handler(self, queue, function, options)
                self._registry.add_handler(handler)
            return handler

        return declare

    @property
    def tasks(self) -> Mapping[str, Task[..., Any, Any]]:
        """All declared tasks, by name."""
        return self._registry.tasks

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        """All declared handlers, by queue."""
        return self._registry.handlers

    def find_task(self, name: str) -> Task[..., Any, Any] | None:
        """The task of this name, or `None`. The function's name alone is enough if one task of the app has it."""
        return self._registry.find_task(name)

    @property
    def task_names(self) -> list[str]:
        """All names that `find_task` finds a task for."""
        return self._registry.task_names()

    # -- schedules -------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """The schedules stored in the server: add, pause, resume, run now, delete, get, list."""
        return Schedules(self.layout, self._flows, max_payload=self._max_payload)

    def schedule(self, name: str, call: TaskCall, **timing: Unpack[TimingOptions]) -> None:
        """Declare a schedule in code: `app.schedule("nightly", clean.call(30), cron="0 3 * * *", zone="Asia/Tokyo")`.

        Workers with this declaration store it in the server and enqueue its jobs. Without it in the code of any running
        worker, it enqueues nothing. For the timing options see `Schedules.add`. Raises `InvalidTask`.
        """
        if name in self._declared_schedules:
            raise InvalidTask(f"schedule {name!r} is declared twice: give one of them another name")
        with declaring(f"schedule {name!r}"):
            made = schedule_of(name, _check_call(call), declared=True, max_payload=self._max_payload, **timing)
        self._declared_schedules[name] = made

    @property
    def declared_schedules(self) -> Mapping[str, Schedule]:
        """The schedules declared in code, by name."""
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
        """Return a worker that runs inside this program: `await app.worker().run()`.

        In production prefer `windlass worker module:app`, which restarts processes that crash or get stuck.

        Options:
          queues        names, or names with weights (`{"emails": 3, "thumbs": 1}`); all queues of this app's tasks.
          concurrency   how many `async def` jobs run at once; 100.
          threads       how many `def` jobs run at once; 8.
          lease         lease time of a running job. A thread renews leases, so no job may block the interpreter longer.
          grace         how long running jobs may go on when the worker stops; then they go back to the queue.
          name          the worker's name; a generated one.
          allow_unsafe  start on a server that may lose jobs (see `windlass doctor`).

        It has no child processes: jobs of tasks with run="process" wait for `windlass worker`, and a queue that has
        only such tasks is left out, or refused if you name it. Raises `InvalidOption`.
        """
        from windlass.worker.in_process import Worker  # imported here: producers never need it
        from windlass.worker.settings import Settings, worker_name

        if isinstance(queues, str):
            raise InvalidOption(f"queues must be a list of names, or names with weights: write [{queues!r}]")
        own = self.own_queues() if queues is None else queues
        chosen = own if isinstance(own, Mapping) else dict.fromkeys(own, 1)
        if not chosen:
            raise InvalidOption("the worker has no queue: declare a task or handler, or pass queues")
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
        return Worker(self, settings, queues_are_chosen=queues is not None)

    def own_queues(self) -> list[str]:
        """The queues that this app has tasks, handlers or schedules for."""
        scheduled = {schedule.queue for schedule in list(self._declared_schedules.values())}
        return sorted({task.queue for task in list(self.tasks.values())} | set(self.handlers) | scheduled)

    @property
    def closed(self) -> bool:
        """Whether the app is closed."""
        return self._closed

    # -- queues and workers ----------------------------------------------------------------------

    def queues(self) -> list[str]:
        """List the names of all queues of this namespace in the server, and of all queues named in `layouts`.

        The keys of another system's queue cannot be told from other keys, so such a queue is listed only if named.
        """
        return self._with_named(self._flows.run(partial(list_queues, namespace=self.namespace)))

    async def aqueues(self) -> list[str]:
        """Awaitable `queues`."""
        return self._with_named(await self._flows.arun(partial(list_queues, namespace=self.namespace)))

    def _with_named(self, found: list[str]) -> list[str]:
        return sorted({*found, *self._layout_names} - {"*"})

    def workers(self) -> list[WorkerRecord]:
        """List the workers that sent a heartbeat within the last minute, by name."""
        return self._flows.run(partial(list_workers, namespace=self.namespace))

    async def aworkers(self) -> list[WorkerRecord]:
        """Awaitable `workers`."""
        return await self._flows.arun(partial(list_workers, namespace=self.namespace))

    # -- bulk enqueue ----------------------------------------------------------------------------

    def enqueue_many(self, calls: Iterable[TaskCall]) -> list[JobHandle[Any]]:
        """Enqueue many task calls: `app.enqueue_many(welcome.call(i) for i in ids)`. Returns handles in that order.

        All calls are checked before any is sent. Each queue takes one atomic step and round trip per 1,000 calls. If a
        step fails, earlier steps stay. Raises the errors of `Queue.enqueue`.
        """
        given = [_check_call(call) for call in calls]
        return self._handles(given, self._flows.run(self._enqueue_many(given)))

    async def aenqueue_many(self, calls: Iterable[TaskCall]) -> list[JobHandle[Any]]:
        """Awaitable `enqueue_many`."""
        given = [_check_call(call) for call in calls]
        return self._handles(given, await self._flows.arun(self._enqueue_many(given)))

    def _handles(self, calls: list[TaskCall], receipts: list[Receipt]) -> list[JobHandle[Any]]:
        layouts = {queue: self.layout(queue) for queue in {call.queue for call in calls}}
        return [
            JobHandle.from_receipt(layouts[call.queue], self._flows, receipt, call.returns, call.keeps, self.codec)
            for call, receipt in zip(calls, receipts, strict=True)
        ]

    def _enqueue_many(self, given: list[TaskCall]) -> Callable[[Session], Flow[list[Receipt]]]:
        places: dict[str, list[int]] = {}
        for place, call in enumerate(given):
            places.setdefault(call.queue, []).append(place)
        if len(places) == 1:
            return self._send_calls(given[0].queue, given)
        flows = [(places[name], self._send_calls(name, [given[place] for place in places[name]])) for name in places]

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

    def _send_calls(self, name: str, calls: list[TaskCall]) -> Callable[[Session], Flow[list[Receipt]]]:
        queue = self.queue(name)
        jobs = [RawJob(call.data, **call.options) if call.options else call.data for call in calls]
        return queue._enqueue(queue._new_jobs(jobs))

    # -- connections -----------------------------------------------------------------------------

    def tolerate_eviction(self) -> None:
        """Accept a server that may evict jobs from now on: for a worker with `allow_unsafe`."""
        self._options = replace(self._options, allow_eviction=True)
        self.given = structs.replace(self.given, allow_eviction=True)
        for session in (self._thread_session, *self._loop_sessions.values()):
            session.options = self._options

    async def is_cluster(self) -> bool:
        """Whether the server is a Redis or Valkey Cluster. Connects, without retries."""
        return await self._flows.arun(lambda session: session.is_cluster())

    def _session(self) -> Session:
        self._check_usable()
        return self._thread_session

    def _known_loop_session(self) -> Session | None:
        self._check_usable()
        return self._loop_sessions.get(asyncio.get_running_loop())

    async def _new_loop_session(self) -> Session:
        loop = asyncio.get_running_loop()
        session = Session(self._endpoint, self._options)
        with self._lock:  # other threads may start and end event loops
            for ended in [each for each in self._loop_sessions if each.is_closed()]:
                session.adopt(self._loop_sessions.pop(ended))
                self._loop_ends.pop(ended)
            self._loop_sessions[loop] = session
            self._loop_ends[loop] = ending = _disconnect_when_loop_ends(session)
        await anext(ending)
        return session

    def _check_usable(self) -> None:
        """Refuse a closed app. After a fork, drop the connections and caller names, which belong to the parent."""
        if self._pid != os.getpid():
            self._reset_connections()
        if self._closed:
            raise InvalidOption("this app is closed: create a new Windlass()")

    def _reset_connections(self) -> None:
        """Start without connections: in a new app, and in a child after a fork."""
        self._pid = os.getpid()
        # A forked child keeps the inherited objects alive: freeing an asyncio connection would close the parent's too.
        self._inherited += [getattr(self, name, None) for name in ("_thread_session", "_loop_sessions", "_loop_ends")]
        self._thread_session = Session(self._endpoint, self._options)
        self._loop_sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._loop_ends: dict[asyncio.AbstractEventLoop, AsyncIterator[None]] = {}
        for layout in self._layouts.values():
            layout.forget_names()

    # -- closing ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections. The embedded server keeps running for other programs.

        A call that another thread is making ends with `OutcomeUnknown`.
        """
        with self._lock:
            if self._closed or self._pid != os.getpid():
                return
            self._closed = True
            sessions = [self._thread_session, *self._loop_sessions.values()]
        self._unregister(sessions)
        for session in sessions:
            session.end()

    async def aclose(self) -> None:
        """Awaitable `close`."""
        await asyncio.to_thread(self.close)
        await asyncio.sleep(0)  # one iteration of the loop, in which this loop's sockets are closed

    def _unregister(self, sessions: list[Session]) -> None:
        """Tell the server to forget this program's callers.

        It uses a new connection with a short timeout: the event loops own the others, and the server may be stuck.
        """
        address = next((known for known in (session.known_primary for session in sessions) if known), None)
        if address is None:
            return  # never connected, or the connection is lost
        options = replace(self._options, retry_for=0.0)
        session = Session(self._endpoint, options)
        session.start_at(address)
        driver = SyncDriver(self._endpoint, min(1.0, self._options.call_timeout))
        try:
            for layout in list(self._layouts.values()):
                first = layout.counts().keys[0]
                callers = [name for each in sessions for name in each.idle_callers(first)]
                may_arrive_late = [name for each in sessions for name in each.idle_callers(first, may_arrive_late=True)]
                call = layout.unregister(callers, may_arrive_late)
                if call is not None:
                    driver.run(session.perform(call))
        except WindlassError:
            pass  # harmless: the server forgets silent callers by itself
        finally:
            session.end()

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


class _Flows:
    """Runs flows on the connections of an app: the `FlowRunner` of its queues, tasks and workers."""

    def __init__(self, app: Windlass, endpoint: Endpoint, call_timeout: float) -> None:
        self._app = app
        self._endpoint = endpoint
        self.blocking = SyncDriver(endpoint, call_timeout)
        self._awaitable = AsyncDriver(endpoint, call_timeout)

    def run(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow in this thread. Raises public errors only."""
        if _get_running_loop() is not None:
            warn_of_blocking()
        session = self._app._session()
        try:
            return self.blocking.run(flow(session))
        except (ConnectFailed, WireLost) as error:
            raise public_error(error, self._endpoint) from error

    async def arun(self, flow: Callable[[Session], Flow[T]]) -> T:
        """Run a flow on this event loop. Raises public errors only."""
        session = self._app._known_loop_session() or await self._app._new_loop_session()
        try:
            return await self._awaitable.run(flow(session))
        except (ConnectFailed, WireLost) as error:
            raise public_error(error, self._endpoint) from error


async def _disconnect_when_loop_ends(session: Session) -> AsyncIterator[None]:
    """Close the session's connections when its event loop ends: the loop then closes every unfinished generator."""
    try:
        yield
    finally:
        session.disconnect()


def _check_layouts(given: Mapping[str, str], namespace: str = "", seal: Seal = UNSEALED) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidOption('layouts must map queue names to layout names, like {"thumbs": "workqueue"}')
    for queue, name in given.items():
        make_layout(
            check_layout(name), "all" if queue == "*" else queue, namespace=namespace, seal=seal
        )  # checks the queue's name
    return dict(given)


def _keys(given: Mapping[str, bytes] | None, variable: str) -> Mapping[str, bytes] | None:
    """The keys that the program passes, else those of the environment variable."""
    text = os.environ.get(variable)
    return read_keys(variable, text) if given is None and text is not None else given


def read_layouts(words: Iterable[str]) -> dict[str, str]:
    """Parse words such as `thumbs=workqueue` to layouts by queue. A word without a queue is for all other queues."""
    pairs = (word.rpartition("=") for word in words)
    return _check_layouts({queue or "*": name for queue, _, name in pairs})


def _check_call(call: TaskCall) -> TaskCall:
    if not isinstance(call, TaskCall):
        remedy = "was an await forgotten?" if iscoroutine(call) else "pass what task.call(…) returns"
        raise InvalidArguments(f"{call!r} is not a task call: {remedy}")
    return call


_apps: weakref.WeakSet[Windlass] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for app in list(_apps):
        app.close()
