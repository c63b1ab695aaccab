"""A worker with thousands of queues starts and runs jobs; what it sends and opens does not grow with their square."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.support.server import Server
from tests.support.waiting import FOREVER_S
from tests.support.workers import Workshop
from tests.worker.apps.many_queues import QUEUES
from windlass import Windlass
from windlass.worker.app_facts import AppFacts, describe
from windlass.worker.runner.runner import MANY_QUEUES

CLIENTS = 600  # fewer than the queues, and far more than a worker needs


@pytest.fixture
def few_clients(server: Server) -> Iterator[None]:
    with server.client() as client:
        before = client.config_get("maxclients")["maxclients"]
        client.config_set("maxclients", CLIENTS)
        yield
        client.config_set("maxclients", before)


def facts(queues: int) -> bytes:
    with Windlass("redis://nobody") as app:
        for number in range(queues):

            @app.task(name=f"task-{number}", queue=f"own-{number}")
            async def work() -> None: ...

        return msgspec.json.encode(describe(app)["windlass"])


def test_the_facts_of_an_app_grow_with_its_queues_not_with_their_square() -> None:
    assert len(facts(400)) < 2.5 * len(facts(200))


def test_every_queue_has_the_tasks_of_the_app_and_a_handler_has_none() -> None:
    with Windlass("redis://nobody") as app:

        @app.task(queue="tasks", max_stalls=7)
        async def work() -> None: ...

        @work.on_failure(max_failures=9)
        async def clean(error: Exception) -> None: ...

        @app.handler("raw")
        async def handle(data: bytes) -> None: ...

        told = msgspec.convert(describe(app)["windlass"], AppFacts)
    for queue in ("tasks", "anywhere"):
        assert "work" in told.of(queue).tasks
        assert told.of(queue).failure_handler is not None
    assert told.of("raw").tasks == ()
    assert told.of("raw").failure_handler is None
    assert told.queues == ("raw", "tasks")


@pytest.mark.usefixtures("few_clients")
def test_a_worker_with_thousands_of_queues_starts_and_runs_their_jobs(shop: Workshop) -> None:
    assert QUEUES > MANY_QUEUES
    assert QUEUES > CLIENTS
    worker = shop.start("many_queues", lease=FOREVER_S)
    ids = {shop.send(f"task-{number}", queue=f"own-{number}") for number in (0, QUEUES // 2, QUEUES - 1)}
    shop.journal.wait(len(ids), "done")
    assert set(shop.journal.ids("done")) == ids
    worker.stop()


def test_a_pattern_chooses_queues_of_the_app_and_a_typo_is_told(shop: Workshop) -> None:
    worker = shop.start("many_queues", queues={"own-19*": 2, "own-199": 5, "onw-1": 1}, lease=FOREVER_S)
    expected = {f"own-{number}": 2 for number in range(QUEUES) if str(number).startswith("19")}
    shop.wait(lambda: bool(shop.app.workers()), "the worker's record")
    assert shop.app.workers()[0].queues == expected | {"own-199": 5, "onw-1": 1}
    assert "Queue onw-1 has no task, handler or schedule" in worker.log
    assert "Did you mean 'own-1'" in worker.log
