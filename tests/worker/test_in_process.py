"""A worker inside another program: jobs run on its event loop and in threads; a thread renews the leases."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from typing import Any, cast

import pytest

from tests.support.conditions import until
from tests.support.internals import arun_flow
from windlass import Job, JobLogFilter, Lease, Retry, Windlass, current
from windlass.errors import InvalidOption, JobFailed
from windlass.storage.native.keys import queue_key
from windlass.worker.app_facts import QueueFacts, facts_of
from windlass.worker.heartbeat import send_heartbeat


async def test_it_runs_coroutines_and_threads_and_stops(app: Windlass) -> None:
    seen: list[tuple[str, int, bool]] = []

    @app.task(queue="local")
    async def on_the_loop(n: int, job: Job = current()) -> None:
        await job.aprogress(0.5)
        seen.append(("loop", n, threading.current_thread() is threading.main_thread()))

    @app.task(queue="local", min_backoff=0.001, max_backoff=0.001)
    def in_a_thread(n: int, job: Job = current()) -> None:
        if job.attempt == 1:
            raise Retry("once more", delay=0)
        seen.append(("thread", n, threading.current_thread() is threading.main_thread()))

    worker = app.worker(["local"])
    working = asyncio.create_task(worker.run())
    await app.aenqueue_many(call for n in range(20) for call in (on_the_loop.call(n), in_a_thread.call(n)))
    await until(lambda: len(seen) == 40)
    await worker.stop()
    await working
    assert sorted(seen) == sorted([("loop", n, True) for n in range(20)] + [("thread", n, False) for n in range(20)])
    assert (await app.queue("local").acounts()).running == 0


async def test_the_programs_own_logging_learns_of_the_job(app: Windlass, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("shop")
    caplog.handler.addFilter(JobLogFilter())
    problem = ValueError("no good")

    @app.task(queue="local", max_failures=0)
    async def on_the_loop() -> None:
        log.warning("on the loop", extra={"queue": "of its own"})
        raise problem

    @app.task(queue="local")
    def in_a_thread() -> None:
        log.warning("in a thread")

    worker = app.worker(["local"])
    working = asyncio.create_task(worker.run())
    ids = [(await task.aenqueue()).id for task in (on_the_loop, in_a_thread)]
    await until(lambda: {"on the loop", "in a thread"} <= {record.msg for record in caplog.records})
    await until(lambda: any(record.exc_info for record in caplog.records))
    await worker.stop()
    await working
    told = {record.getMessage().partition(":")[0]: vars(record) for record in caplog.records}
    fields = ("job_id", "task", "queue", "attempt")
    assert [told["on the loop"][name] for name in fields] == [ids[0], on_the_loop.name, "of its own", 1]
    assert [told["in a thread"][name] for name in fields] == [ids[1], in_a_thread.name, "local", 1]
    failed = told[f"{on_the_loop.name} local/{ids[0]}"]
    assert [failed[name] for name in fields] == [ids[0], on_the_loop.name, "local", 1]
    assert failed["exc_info"][1] is problem
    log.warning("outside")
    assert vars(caplog.records[-1])["job_id"] is None
    await app.queue("local").apurge()


async def test_cancelling_it_returns_running_jobs(app: Windlass) -> None:
    started = asyncio.Event()

    @app.task(queue="local")
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    receipt = await endless.aenqueue()
    working = asyncio.create_task(app.worker().run())
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    (lease,) = await app.queue("local").alease_many(5)
    assert (lease.id, lease.attempt) == (receipt.id, 1)
    await app.queue("local").acomplete(lease)


async def test_its_leases_are_renewed_while_a_job_blocks_the_loop(app: Windlass) -> None:
    runs: list[int] = []
    stolen: list[Lease | None] = []
    thief = threading.Thread(target=lambda: asyncio.run(steal(app, 3.0, stolen)))

    @app.task(queue="local")
    async def block(job: Job = current()) -> None:
        runs.append(job.fence)
        thief.start()
        time.sleep(3)  # noqa: ASYNC251  # that is the point

    await block.aenqueue()
    worker = app.worker(["local"], lease=1)
    working = asyncio.create_task(worker.run())
    await until(lambda: runs)
    await worker.stop()
    await working
    await asyncio.to_thread(thief.join)
    assert len(runs) == 1
    assert len(stolen) > 10
    assert set(stolen) == {None}


async def test_a_bug_in_its_heartbeat_loses_no_lease(
    app: Windlass, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[None] = []
    beats: list[None] = []
    facts = facts_of

    def fail_once(*args: Any, **options: Any) -> Any:
        beats.append(None)
        if len(beats) == 2:  # the first one registers the holder
            failures.append(None)
            raise RuntimeError("dictionary changed size during iteration")
        return facts(*args, **options)

    @app.task(queue="local")
    async def wait(job: Job = current()) -> None:
        fences.append(job.fence)
        await until(lambda: len(beats) > 4)

    fences: list[int] = []
    monkeypatch.setattr("windlass.worker.in_process.facts_of", fail_once)
    await wait.aenqueue()
    worker = app.worker(["local"], lease=1)
    working = asyncio.create_task(worker.run())
    await until(lambda: len(beats) > 4)
    await worker.stop()
    await working
    assert (len(failures), len(fences)) == (1, 1)
    assert "Heartbeat failed" in caplog.text
    assert "RuntimeError" in caplog.text
    assert app.queue("local").counts().waiting == 0


async def test_a_result_that_does_not_fit_its_annotation_is_a_failure(app: Windlass) -> None:
    @app.task(queue="local", keep_result="1m")
    async def count(what: str) -> int:
        returned: dict[str, Any] = {"number": 3, "text": "three", "yes": True, "large": "x" * 2_000_000}
        return cast(int, returned[what])

    @app.task(queue="local")
    async def not_kept() -> int:
        return cast(int, "three")

    worker = app.worker(["local"])
    working = asyncio.create_task(worker.run())
    assert await (await count.aenqueue("number")).aresult(10) == 3
    for what, told in (
        ("text", "the task returned str, which does not fit its annotation"),
        ("yes", "the task returned bool, which does not fit its annotation"),
        ("large", "store it elsewhere and return a reference"),
    ):
        with pytest.raises(JobFailed, match=told):
            await (await count.aenqueue(what)).aresult(10)
    unkept = await not_kept.aenqueue()
    await until(lambda: app.queue("local").get(unkept.id) is None)
    assert app.queue("local").counts().dead == 3, "what nobody keeps, nobody checks"
    await worker.stop()
    await working
    await app.queue("local").apurge()


async def test_a_job_that_completes_too_late_is_logged(app: Windlass, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="local", timeout=0.05)
    async def block() -> None:
        time.sleep(0.2)  # noqa: ASYNC251  # nothing can cancel it

    job = await block.aenqueue()
    worker = app.worker(["local"])
    with caplog.at_level("INFO", "windlass"):
        working = asyncio.create_task(worker.run())
        await until(lambda: app.queue("local").get(job.id) is None)
        await worker.stop()
        await working
    told = re.search(rf"block local/{job.id}: done after (\d+\.\d) s, over its timeout of 0.05 s", caplog.text)
    assert told is not None
    assert float(told[1]) >= 0.2, "as long as it took on this machine"
    assert "stopped; jobs run: 1" in caplog.text


async def test_failure_handlers_are_named_in_the_log(app: Windlass, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(queue="local", max_failures=0)
    async def caught() -> None:
        raise ValueError("no luck")

    @caught.on_failure(max_failures=0)
    async def catch() -> None:
        raise KeyError("no net")

    @app.task(queue="local", max_failures=0)
    async def uncaught() -> None:
        raise ValueError("nobody hears this")

    ids = [(await caught.aenqueue()).id, (await uncaught.aenqueue()).id]
    worker = app.worker(["local"])
    with caplog.at_level("INFO", "windlass"):
        working = asyncio.create_task(worker.run())
        await until(lambda: app.queue("local").counts().dead == 2)
        await worker.stop()
        await working
    assert f".caught local/{ids[0]}: failed for good: KeyError" in caplog.text
    assert "has no failure handler" not in caplog.text
    await app.queue("local").apurge()


async def steal(app: Windlass, seconds: float, found: list[Lease | None]) -> None:
    """Sweep for expired leases all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(await app.queue("local").alease(1))
        await asyncio.sleep(0.1)


async def test_a_worker_that_lost_its_leases_stops_its_jobs_and_goes_on(app: Windlass, client: object) -> None:
    runs: list[tuple[int, str]] = []

    @app.task(queue="local")
    async def wait(job: Job = current()) -> None:
        runs.append((job.fence, "began"))
        try:
            await asyncio.sleep(60 if len(runs) == 1 else 0)
        except asyncio.CancelledError:
            runs.append((job.fence, "stopped"))
            raise

    await wait.aenqueue()
    worker = app.worker(["local"], lease=1.5)
    working = asyncio.create_task(worker.run())
    await until(lambda: runs)
    # Mark the holder as lost, as a sweep does after a long silence.
    client.zadd(queue_key("local", "holders"), dict.fromkeys(client.zrange(queue_key("local", "holders"), 0, -1), 1))  # type: ignore[attr-defined]
    await app.queue("local").aclean()
    await until(lambda: len(runs) == 3)
    await worker.stop()
    await working
    assert [what for _, what in sorted(runs)] == ["began", "stopped", "began"]
    assert (await app.queue("local").acounts()).running == 0


async def test_what_it_cannot_do_is_refused(app: Windlass) -> None:
    with pytest.raises(InvalidOption, match="declare a task or handler"):
        app.worker()

    @app.task(queue="media", run="process")
    def thumbnail() -> None: ...

    for queues in (None, ["media"]):
        with pytest.raises(InvalidOption, match=r'queue media: all tasks there have run="process".*windlass worker'):
            app.worker(queues)
    with pytest.raises(InvalidOption, match="concurrency"):
        app.worker(["x"], concurrency=0)


async def test_a_queue_of_process_tasks_is_left_out_with_a_warning(
    app: Windlass, caplog: pytest.LogCaptureFixture
) -> None:
    ran = asyncio.Event()

    @app.task(queue="media", run="process")
    def thumbnail() -> None: ...

    @app.task(queue="local")
    async def work() -> None:
        ran.set()

    with caplog.at_level("WARNING", "windlass"):
        worker = app.worker()
    assert "Queue media left out" in caplog.text
    assert "windlass worker" in caplog.text
    working = asyncio.create_task(worker.run())
    await work.aenqueue()
    await ran.wait()
    await until(lambda: app.workers()[0].queues == {"local": 1})
    await worker.stop()
    await working


async def test_a_process_task_beside_others_waits_for_another_worker(
    app: Windlass, caplog: pytest.LogCaptureFixture
) -> None:
    """It is put aside once, uncharged: this worker's heartbeats do not ask for a job that it cannot run."""

    @app.task(queue="local", run="process")
    def thumbnail() -> None: ...

    @app.task(queue="local")
    async def work() -> None: ...

    receipt = await thumbnail.aenqueue()
    worker = app.worker()
    with caplog.at_level("WARNING", "windlass"):
        working = asyncio.create_task(worker.run())
        await until(lambda: app.queue("local").counts().parked == 1)
    assert ".thumbnail: jobs wait for another worker" in caplog.text
    parked = app.queue("local").get(receipt.id)
    assert parked is not None
    assert parked.failures == parked.stalls == 0
    await worker.stop()
    await working

    async def beat(facts: QueueFacts) -> int:
        layout = app.layout("local")
        await arun_flow(app, lambda session: send_heartbeat(session, layout, "a", 1.0, facts, register=True))
        await arun_flow(app, lambda session: session.perform(layout.unregister_holder("a")))
        return (await app.queue("local").acounts()).parked

    assert await beat(facts_of(app, with_processes=False).of("local")) == 1
    assert await beat(facts_of(app).of("local")) == 0, "a worker with processes takes it back at once"
    await app.queue("local").apurge()
