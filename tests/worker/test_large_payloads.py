"""One limit for payloads, whatever runs them: `max_payload`, which is at most what a server can hold."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest

from tests.support.workers import Workshop
from windlass import Windlass
from windlass.storage.native.keys import queue_key
from windlass.values.job import Lease, Limits
from windlass.values.outcome import Broken
from windlass.values.validation import LARGEST_PAYLOAD
from windlass.worker import attempt

SIZE = 65 * 1024 * 1024  # one that a frame between two processes of a worker could not carry once


def _has_ended(shop: Workshop, task: str) -> bool:
    return bool(shop.journal.all("done", task=task) or shop.queue("large").counts().dead)


@pytest.mark.parametrize("way", ["inbox", "enqueue"])
def test_a_large_payload_runs_in_each_kind_of_executor(shop: Workshop, way: str) -> None:
    text = "0123456789abcdef" * (SIZE // 16)
    digest = hashlib.sha256(text.encode()).hexdigest()
    shop.start("large", processes=1)
    for task in ("loop_size", "thread_size", "process_size"):
        payload = b'{"task":"%b","args":["%b"]}' % (task.encode(), text.encode())
        if way == "inbox":
            with shop.server.client() as client:
                client.lpush(queue_key("large", "inbox"), payload)
        else:
            with Windlass(shop.url, max_payload=LARGEST_PAYLOAD) as app:
                app.queue("large").enqueue(payload)
        shop.wait(partial(_has_ended, shop, task), f"{task} to end")
        (entry,) = shop.journal.all("done", task=task)
        assert (entry.more["size"], entry.more["digest"]) == (SIZE, digest)
        assert entry.attempt == 1, "no crash was charged"
        shop.wait_empty("large")
    assert shop.queue("large").counts().dead == 0


def test_a_payload_above_every_limit_is_broken_with_its_size_and_the_remedy(app: Windlass) -> None:
    """A server can be set to hold more than any worker takes. The zeros are never touched, so they cost no memory."""

    @app.task(queue="large")
    async def task(text: str) -> None: ...

    lease = Lease("large", "id", bytes(LARGEST_PAYLOAD + 1), 1, 5, 0, 0, Limits(), "holder")
    outcome = attempt.plan(app, lease)
    assert isinstance(outcome, Broken)
    assert not outcome.worker_specific, "it says nothing about this worker"
    assert "536,870,913 bytes" in outcome.message
    assert "536,870,912" in outcome.message
    assert "store it elsewhere" in outcome.message
