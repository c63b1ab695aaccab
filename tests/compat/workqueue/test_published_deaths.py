"""The published client dies between any two of its commands: the item is worked off, once, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis_work_queue import Item, WorkQueue  # type: ignore[import-untyped]

from tests.compat.workqueue.conftest import Look, lease_keys
from tests.support.server import Server
from windlass import Queue

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")  # of the published client


class Died(Exception):
    """The published client is not there any more."""


class Dying(redis.Redis):
    """A client that dies before it sends its nth command; a pipeline is one."""

    steps = 1_000_000

    def _step(self) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise Died

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self._step()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, *args: Any, **options: Any) -> Any:
        self._step()
        return super().pipeline(*args, **options)


@pytest.fixture
def dying(server: Server) -> Iterator[Dying]:
    with Dying.from_url(server.url) as db:
        yield db


def lease_and_die(theirs: WorkQueue, client: redis.Redis, dying: Dying) -> None:
    theirs.lease(dying, 60, block=False)


def complete_and_die(theirs: WorkQueue, client: redis.Redis, dying: Dying) -> None:
    theirs.complete(dying, theirs.lease(client, 60))


def clean_and_die(theirs: WorkQueue, client: redis.Redis, dying: Dying) -> None:
    theirs.lease(client, 60)
    client.delete(lease_keys("a")[1])
    theirs.light_clean(dying)


@pytest.mark.speaks("workqueue", "R5", "R8")
@pytest.mark.parametrize(
    ("act", "commands"),
    [(lease_and_die, n) for n in (1, 2)]
    + [(complete_and_die, n) for n in (0, 1)]
    + [(clean_and_die, n) for n in range(6)],
)
def test_at_whatever_command_they_die_the_item_is_worked_off(
    queue: Queue,
    client: redis.Redis,
    look: Look,
    theirs: WorkQueue,
    dying: Dying,
    act: Callable[[WorkQueue, redis.Redis, Dying], None],
    commands: int,
) -> None:
    theirs.add_item(client, Item(b"x", id="a"))
    dying.steps = commands
    with pytest.raises(Died):
        act(theirs, client, dying)
    client.delete(lease_keys("a")[1])  # time passes
    queue.audit(repair=True)
    lease = queue.lease(wait=5)
    assert lease is not None, look()
    assert (lease.id, lease.data) == ("a", b"x")
    assert queue.complete(lease)
    queue.clean()
    theirs.light_clean(client)
    assert look() == {}, "nor does their next cleaner bring it back"
