"""A worker for the tests of this folder; tests that only observe share one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.internals import handle_on
from tests.support.server import Server
from tests.support.workers import Worker, Workshop
from windlass.tasks.envelope import write_envelope
from windlass.worker.settings import Settings

QUEUE = "probed"
ROOT = Path(__file__).parent.parent.parent


def start_worker(shop: Workshop, target: str, folder: Path, queues: tuple[str, ...], **settings: Any) -> Worker:
    """Start a worker for an app of this folder, and wait until it is registered on its queues."""
    chosen = {"name": "probe", "lease": 5.0, "grace": 5.0, "threads": 2, "processes": 2, "kill_grace": 0.3, **settings}
    known = Settings(queues=dict.fromkeys(queues, 1), **chosen)
    worker = Worker(f"tests.security.{target}:app", known, {"WINDLASS_URL": shop.url}, folder / "worker.log")
    shop.workers.append(worker)
    shop.wait_ready(worker)
    return worker


class Probe:
    """A workshop with a worker that runs `probing_app`."""

    def __init__(self, shop: Workshop, worker: Worker) -> None:
        self.shop = shop
        self.worker = worker
        self.queue = shop.queue(QUEUE)

    def ask(self, task: str, *, patience: float = 20.0) -> Any:
        """Run a task of that name there, and return its result."""
        id = self.queue.enqueue(write_envelope(task, keep=60)).id
        return handle_on(self.queue, id).result(timeout=patience)


@pytest.fixture(scope="package")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    """One for all tests."""
    folder = tmp_path_factory.mktemp("probe")
    with Server(config={"requirepass": "broker-password"}) as server, Workshop(server, folder) as shop:
        yield Probe(shop, start_worker(shop, "probing_app", folder, (QUEUE,)))
