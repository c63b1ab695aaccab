"""--watch: when the code changes, a new runner with the new code takes over, and the old one finishes."""

from __future__ import annotations

from pathlib import Path

from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.support.workers import JOURNAL, Journal, Worker
from windlass import Windlass
from windlass.tasks.envelope import write_envelope
from windlass.worker.settings import Settings

CODE = """
from __future__ import annotations
import asyncio
from tests.support.workers import note
from windlass import Job, Windlass, current

app = Windlass()

@app.task(queue="watched")
async def say(job: Job = current()) -> None:
    note("said", job, version={version})

@app.task(queue="watched")
async def last(job: Job = current()) -> None:
    note("start", job, version={version})
    await asyncio.sleep(1.5)
    note("end", job, version={version})
"""


def test_new_code_takes_over_and_running_jobs_end_with_the_old(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    program = folder / "watched_app.py"
    program.write_text(CODE.format(version=1))
    journal = Journal(tmp_path / "journal")
    settings = Settings(name="watcher", queues={}, watch=True, grace=10.0)
    environment = {"WINDLASS_URL": server.url, JOURNAL: str(journal.path)}
    with Windlass(server.url) as app:
        queue = app.queue("watched")
        worker = Worker("watched_app:app", settings, environment, tmp_path / "log", folder=folder)
        try:
            queue.enqueue(write_envelope("say"))
            assert journal.wait(1, "said")[0].more == {"version": 1}
            queue.enqueue(write_envelope("last"))
            journal.wait(1, "start")
            program.write_text("this is no Python")
            wait_until(lambda: "the old code goes on" in worker.log, "the complaint about the new code")
            # Of another length: Python takes a file of the same second and length for the one that it compiled.
            program.write_text(CODE.format(version=2000))

            def said_by_the_new() -> bool:
                queue.enqueue(write_envelope("say"))
                return any(entry.more == {"version": 2000} for entry in journal.all("said"))

            wait_until(said_by_the_new, "a job run by the new code")
            (end,) = journal.wait(1, "end")
            assert end.more == {"version": 1}, "what ran under the old code ended under it"
            assert len(journal.all("start")) == 1
            assert worker.stop() == 0
        finally:
            worker.kill_everything()
            print(worker.log)  # shown when the test fails
            queue.purge()
