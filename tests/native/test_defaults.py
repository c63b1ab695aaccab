"""Changing a default changes new jobs. A queued job keeps the values that it was enqueued with."""

from __future__ import annotations

import json
import subprocess
import sys

import redis

from tests.support.server import Server
from windlass import Lease, Limits, Queue, Windlass
from windlass.storage.native.keys import queue_key
from windlass.tasks.envelope import write_envelope
from windlass.worker.attempt import Plan, plan

# A program of another release, in which four defaults differ. The module must be changed before others import it.
OTHER_RELEASE = """
import importlib.util, json, sys
name = "windlass.values.defaults"
spec = importlib.util.spec_from_file_location(name, sys.argv[1])
sys.modules[name] = defaults = importlib.util.module_from_spec(spec)
spec.loader.exec_module(defaults)
defaults.MAX_FAILURES, defaults.MIN_BACKOFF_MS, defaults.PRIORITY, defaults.MAX_SNOOZES = 2, 7_000, 4, 9

from windlass import Windlass
with Windlass(sys.argv[2]) as app:
    queue = app.queue(sys.argv[3])
    queue.enqueue(b"new", id="new")
    queue.enqueue(b"random")
    print(json.dumps({job.data.decode(): [
                          job.priority, job.limits.max_failures, job.limits.min_backoff, job.limits.max_snoozes]
                      for job in queue.all_jobs("ready")}))
"""


def run_other_release(server: Server, queue: str) -> dict[str, list[float]]:
    from windlass.values import defaults

    done = subprocess.run(
        [sys.executable, "-c", OTHER_RELEASE, str(defaults.__file__), server.url, queue],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def test_queued_jobs_keep_the_defaults_that_they_were_enqueued_with(raw_queue: Queue, server: Server) -> None:
    raw_queue.enqueue(b"old", id="old")
    raw_queue.enqueue(b"named", max_stalls=1)
    seen = run_other_release(server, raw_queue.name)
    old, new = [5, 10, 2.0, 1000], [4, 2, 7.0, 9]
    assert seen == {"old": old, "named": old, "new": new, "random": new}
    here = {lease.data: (lease.priority, lease.limits) for lease in raw_queue.lease_many(4)}
    assert here[b"old"] == (5, Limits())
    assert here[b"new"] == here[b"random"] == (4, Limits(max_failures=2, min_backoff=7.0, max_snoozes=9))


def test_a_plain_job_has_no_record_of_its_options(raw_queue: Queue, client: redis.Redis) -> None:
    raw_queue.enqueue(b"plain")
    assert not client.exists(queue_key(raw_queue.name, "meta"))
    raw_queue.enqueue(b"other", max_failures=11)
    assert client.hlen(queue_key(raw_queue.name, "meta")) == 1


def test_a_task_without_limits_leaves_a_job_its_own(server: Server) -> None:
    """The job was enqueued when the default was 4; its task gives no limits, or only some."""
    with Windlass(server.url) as app:
        app.task(name="bare")(lambda: None)
        app.task(name="patient", max_stalls=9)(lambda: None)
        for task, limits in {"bare": Limits(max_failures=4), "patient": Limits(max_failures=4, max_stalls=9)}.items():
            planned = plan(app, Lease("default", "a", write_envelope(task), 1, limits=Limits(max_failures=4)))
            assert isinstance(planned, Plan)
            assert planned.limits == limits
