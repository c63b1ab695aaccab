"""Real servers for every test, and a check under every test that it leaves no key behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import redis

from tests.support.faces import FACES, Face
from tests.support.proxy import FaultProxy
from tests.support.queue_clock import pass_time
from tests.support.seats import (
    TOPOLOGIES,
    ClusterSeat,
    EmbeddedSeat,
    PrimarySeat,
    cluster_seat,
    embedded_seat,
    sentinel_seat,
)
from tests.support.server import Server, redis_binary, valkey_binary
from windlass import Queue, Windlass
from windlass.storage.capabilities import CAPABILITIES
from windlass.storage.native.keys import queue_key
from windlass.storage.port import Capability

# A shell starts background jobs with SIGINT ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--on cluster` runs the tests that stand on a server on that kind of server."""
    parser.addoption("--on", choices=TOPOLOGIES, help="what the server of the tests is (by default valkey)")


LONGEST = {"test_contract_elsewhere.py", "test_model.py", "test_run.py", "test_hostile.py", "test_stopping.py"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that a layout declares it cannot pass. A refusal that it did not declare is a failure.

    With `--on`, tests that do not use the shared server are deselected too: they would be the same tests again. The
    longest files come first: several processes share the files, and one must not wait for the others in the end.
    """
    items.sort(key=lambda item: item.path.name not in LONGEST)
    on = config.getoption("--on")
    chosen = [item for item in items if _is_able(item) and (not on or "server" in getattr(item, "fixturenames", ()))]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


@pytest.fixture(scope="module")
def valkey() -> Iterator[Server]:
    """The bundled Valkey, without persistence, for the tests of one file: tests about durability start their own."""
    with Server(valkey_binary(), config={"appendonly": "no"}) as server:
        yield server


@pytest.fixture(scope="module")
def redis7() -> Iterator[Server]:
    """The oldest server that is supported, where one is installed."""
    binary = redis_binary()
    if binary is None:
        pytest.skip("redis-server is not installed")
    with Server(binary, config={"appendonly": "no"}) as server:
        yield server


@pytest.fixture(scope="session")
def embedded() -> Iterator[EmbeddedSeat]:
    """The embedded server of a home of its own."""
    with embedded_seat() as seat:
        yield seat


@pytest.fixture(scope="session")
def sentinel() -> Iterator[PrimarySeat]:
    """A primary and two replicas, watched by three sentinels."""
    with sentinel_seat() as seat:
        yield seat


@pytest.fixture(scope="session")
def cluster_of_six() -> Iterator[ClusterSeat]:
    """Three primaries, each with a replica."""
    with cluster_seat() as seat:
        yield seat


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """The server that a test runs on: the bundled Valkey, or what `--on` names."""
    chosen = request.config.getoption("--on")
    seat = request.getfixturevalue({None: "valkey", "cluster": "cluster_of_six"}.get(chosen, chosen))
    if chosen:
        request.node.user_properties.append(("server", seat.version))
    return cast(Server, seat)


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client, to look behind the curtain; under it the check that every key is gone in the end, or will be."""
    with server.client() as client:
        before = set(client.keys("*"))
        yield client
        new = set(client.keys("*")) - before
        # -2: it has just gone by itself.
        left = {key for key in new if (ends := client.pttl(key)) == -1 or ends > 86_400_000}
        for key in new:
            client.delete(key)
        assert not left, f"keys left behind: {sorted(left)}"


@pytest.fixture
def proxy(server: Server, client: redis.Redis) -> Iterator[FaultProxy]:
    """What stands between a program and that server, and loses what it is told to lose."""
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def app(server: Server, client: redis.Redis) -> Iterator[Windlass]:
    """An app on that server, closed before the check."""
    with Windlass(server.url, retry_for=5) as app:
        yield app


@pytest.fixture
def raw_queue(app: Windlass, client: redis.Redis, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """A queue named after the test; what a test leaves on it is purged, schedules included."""
    queue = app.queue(_name(request))
    yield queue
    client.delete(queue_key(queue.name, "schedules"), queue_key(queue.name, "ticks"))
    queue.purge()


@pytest.fixture(params=FACES)
def queue(raw_queue: Queue, request: pytest.FixtureRequest) -> Iterator[Queue]:
    """The same queue seen through its blocking and through its awaitable verbs."""
    face: Face = request.param(raw_queue)
    yield cast(Queue, face)
    face.close()


@pytest.fixture
def later(client: redis.Redis, raw_queue: Queue) -> Callable[[float], None]:
    """Let time pass for a queue, without waiting for it."""

    return lambda seconds: pass_time(client, raw_queue.name, seconds)


# -- the contract on other layouts: tests are chosen by the capabilities that each layout declares ----------


def _is_able(item: pytest.Item) -> bool:
    """Whether the layout of a test can do all that the test needs. A test without a layout runs on the native one."""
    layout = item.get_closest_marker("layout")
    needed = {Capability[name] for mark in item.iter_markers("needs") for name in mark.args}
    return layout is None or needed <= CAPABILITIES[layout.args[0]]


def _name(request: pytest.FixtureRequest) -> str:
    name: Any = request.node.originalname or request.node.name
    return str(name)[:100]
