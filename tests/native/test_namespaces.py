"""Namespaces: two apps on one server with the same queue names, jobs and workers never meet."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import redis

from tests.support.conditions import until
from tests.support.server import Server
from windlass import Job, Queue, RawJob, Windlass, current
from windlass.errors import AccessDenied, InvalidName, UnsupportedByLayout
from windlass.storage.native import keys

KEY = {"k": bytes(range(32))}


@pytest.fixture
def shop(server: Server) -> Iterator[Windlass]:
    with Windlass(server.url, namespace="shop", retry_for=5) as app:
        yield app


@pytest.fixture
def blog(server: Server) -> Iterator[Windlass]:
    with Windlass(server.url, namespace="blog", retry_for=5) as app:
        yield app


def ids(queue: Queue) -> list[str]:
    return [job.id for job in queue.all_jobs("ready")]


def test_the_keys_of_a_queue_without_a_namespace_are_as_ever() -> None:
    assert keys.queue_key("q", "state") == "windlass:{q}:state"
    assert keys.queue_key("q", "state", "shop") == "windlass/shop:{q}:state"
    assert keys.presence_keys()[0] == "windlass:{.workers}:seen"
    channels = (
        keys.wake_channel("w"),
        keys.cancel_channel("h"),
        keys.event_channel("q", "a"),
        keys.parked_channel("q"),
    )
    assert channels == ("windlass:wake:w", "windlass:cancel:h", "windlass:event:q:a", "windlass:parked:q")
    assert keys.event_channel("q", "a", "shop") == "windlass/shop:event:q:a"


def test_a_job_in_a_pipeline_of_the_program_stays_in_its_namespace(
    app: Windlass, shop: Windlass, client: redis.Redis
) -> None:
    with client.pipeline() as pipeline:
        shop.queue("mails").enqueue_in(pipeline, b"paid")
        pipeline.execute()
    assert app.queue("mails").lease() is None
    lease = shop.queue("mails").lease()
    assert lease is not None
    assert lease.data == b"paid"
    assert shop.queue("mails").complete(lease)


def test_queues_of_the_same_name_do_not_touch(
    app: Windlass, shop: Windlass, blog: Windlass, client: redis.Redis
) -> None:
    queues = [each.queue("mails") for each in (app, shop, blog)]
    for number, queue in enumerate(queues):
        queue.enqueue(str(number).encode(), id="same")
        queue.enqueue(b"", id=f"own-{number}", delay=3600)
    for number, queue in enumerate(queues):
        assert [job.data for job in queue.all_jobs("ready")] == [str(number).encode()]
        assert [job.id for job in queue.all_jobs("scheduled")] == [f"own-{number}"]
    lease = queues[1].lease(60)
    assert lease is not None
    assert (lease.queue, lease.data) == ("mails", b"1")
    assert not queues[2].complete(lease), "another namespace does not know the lease"
    assert queues[1].fail(lease, "no")
    queues[2].pause()
    assert [queue.counts().dead for queue in queues] == [0, 1, 0]
    assert [queue.counts().paused for queue in queues] == [False, False, True]
    queues[2].resume()
    begins = {key.decode().partition(":")[0] for key in cast(list[bytes], client.keys("*"))}
    assert begins == {"windlass", "windlass/shop", "windlass/blog"}
    queues[0].purge()
    assert [queue.counts().waiting for queue in queues] == [0, 1, 2]
    for queue in queues[1:]:
        queue.purge()


def test_queues_and_workers_are_listed_by_namespace(app: Windlass, shop: Windlass, blog: Windlass) -> None:
    for each, name in ((app, "plain"), (shop, "orders"), (blog, "posts")):
        each.queue(name).enqueue(b"")
    assert (app.queues(), shop.queues(), blog.queues()) == (["plain"], ["orders"], ["posts"])
    for each in (app, shop, blog):
        for name in each.queues():
            each.queue(name).purge()


def test_an_enqueue_wakes_a_waiter_of_its_namespace(client: redis.Redis, shop: Windlass, blog: Windlass) -> None:
    async def wait_for_a_job() -> bytes:
        leasing = asyncio.create_task(shop.queue("q").alease(60, wait=30))
        await until(lambda: client.zcard(keys.queue_key("q", "idle", "shop")))
        await blog.queue("q").aenqueue(b"for blog")
        await shop.queue("q").aenqueue(b"for shop")
        lease = await leasing
        assert lease is not None
        await shop.queue("q").acomplete(lease)
        await shop.aclose()
        return lease.data

    assert asyncio.run(wait_for_a_job()) == b"for shop"
    blog.queue("q").purge()


async def test_workers_with_schedules_results_cancellation_and_hand_over(server: Server) -> None:
    """All that goes over channels, and from queue to queue, stays in the namespace."""
    ran: list[tuple[str, str]] = []
    apps = [Windlass(server.url, namespace=name, retry_for=5) for name in ("shop", "blog")]

    def declare(app: Windlass) -> Any:
        @app.task(queue="follow")
        async def follow(of: str) -> None:
            ran.append((app.namespace, of))

        @app.task(queue="jobs", keep_result="1h")
        async def double(n: int, job: Job = current()) -> int:
            job.enqueue(follow.call(f"double {n}"))
            return 2 * n

        @app.task(queue="jobs")
        async def stay() -> None:
            ran.append((app.namespace, "stay"))
            await asyncio.sleep(3600)

        app.schedule("often", follow.call("tick"), every="1s")
        return double, stay

    tasks = [declare(app) for app in apps]
    workers = [app.worker(name="same") for app in apps]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    handles = [await double.using(id="same").aenqueue(n) for n, (double, _) in enumerate(tasks)]
    assert [await handle.aresult(timeout=60) for handle in handles] == [0, 2]
    assert [await handle.aresult(timeout=60) for handle in handles] == [0, 2], "they are kept apart"
    await until(lambda: {("shop", "double 0"), ("blog", "double 1"), ("shop", "tick"), ("blog", "tick")} <= set(ran))
    stays = [await stay.using(id="same").aenqueue() for _, stay in tasks]
    await until(lambda: {("shop", "stay"), ("blog", "stay")} <= set(ran))
    assert await stays[0].acancel(running=True)
    await until(lambda: apps[0].queue("jobs").counts().running == 0)
    assert apps[1].queue("jobs").counts().running == 1
    assert [[worker.name.rpartition("-")[0] for worker in await app.aworkers()] for app in apps] == [["same"]] * 2
    assert not {("shop", "double 1"), ("blog", "double 0")} & set(ran)
    for worker, run, app in zip(workers, running, apps, strict=True):
        await worker.stop(grace=0)
        await run
        await app.schedules.adelete("often", "follow")
        for name in ("jobs", "follow"):
            await app.queue(name).apurge()
        await app.aclose()


def test_a_sealed_payload_of_another_namespace_is_refused(server: Server, client: redis.Redis) -> None:
    apps = [Windlass(server.url, namespace=name, signing_keys=KEY, retry_for=5) for name in ("shop", "blog")]
    for app in apps:
        app.queue("q").enqueue(b"order of " + app.namespace.encode(), id="a")
    stored = [keys.queue_key("q", "data", app.namespace) for app in apps]
    data = client.hget(stored[0], "a")
    assert data is not None
    client.hset(stored[1], "a", data)
    assert apps[0].queue("q").lease() is not None
    assert apps[1].queue("q").lease() is None, "it was moved from another place"
    for app in apps:
        client.delete(*client.keys(f"windlass/{app.namespace}:*"))
        app.close()


def test_the_variable_sets_the_default(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_NAMESPACE", "shop")
    assert Windlass(server.url).namespace == Windlass(server.url).given.namespace == "shop"
    assert Windlass(server.url, namespace="blog").namespace == "blog"
    assert Windlass(server.url, namespace="").namespace == "", "explicitly none"
    assert "namespace 'shop'" in repr(Windlass(server.url))
    monkeypatch.setenv("WINDLASS_NAMESPACE", "")
    assert Windlass(server.url).namespace == ""


@pytest.mark.parametrize("name", ["a b", "{q}", "a/b", "a:b", ".a", "x" * 129, 7])
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises(InvalidName, match="is not a namespace name"):
        Windlass("redis://localhost:1", namespace=name)


@pytest.mark.parametrize("layout", ["worqr", "workqueue", "queasy", "hworker", "processor"])
def test_other_systems_have_no_namespaces(layout: str) -> None:
    told = f"layout '{layout}', whose peers know no namespaces.*without the namespace 'shop'"
    with pytest.raises(UnsupportedByLayout, match=told):
        Windlass("redis://localhost:1", namespace="shop", layouts={"thumbs": layout})
    with pytest.raises(UnsupportedByLayout, match=told):
        Windlass("redis://localhost:1", namespace="shop").queue("thumbs", layout=layout)


def test_the_commands_use_the_namespace_that_they_are_given(server: Server, shop: Windlass, app: Windlass) -> None:
    shop.queue("orders").enqueue_many([RawJob(b"") for _ in range(3)])
    app.queue("plain").enqueue(b"")

    def run(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "windlass", *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == code, ran.stderr
        return ran.stdout + " ".join(ran.stderr.replace("│", " ").split())

    here = ("--url", server.url)
    found = json.loads(run("status", *here, "--namespace", "shop", "--json"))
    assert (found["namespace"], [(each["queue"], each["ready"]) for each in found["queues"]]) == (
        "shop",
        [("orders", 3)],
    )
    assert run("status", *here, "--namespace", "shop").startswith("namespace shop\n")
    assert json.loads(run("status", *here, "--json"))["namespace"] is None
    assert "orders" not in run("queues", *here)
    run("enqueue", "--raw", "orders", "x", *here, "--namespace", "shop")
    assert shop.queue("orders").counts().ready == 4
    assert "is not a namespace name" in run("status", *here, "--namespace", "a b", code=2)
    assert "worker has no --namespace: it uses the namespace of its app" in run(
        "worker", "x:app", "--namespace", "a", code=2
    )
    assert json.loads(run("doctor", *here, "--namespace", "shop", "--json"))["worst"] != "danger"
    for each, name in ((shop, "orders"), (app, "plain")):
        each.queue(name).purge()
        each.close()


def test_a_command_for_an_app_of_another_namespace_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        f"import windlass\nurl = {server.url!r}\nown = windlass.Windlass(url, namespace='blog')\n"
        "open = windlass.Windlass(url)\n"
    )

    def run(app: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "windlass", "status", "--app", f"jobs:{app}", "--namespace", "shop"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    refused = run("own")
    assert refused.returncode == 2
    assert "has namespace 'blog', so --namespace shop cannot be used" in " ".join(refused.stderr.split())
    assert run("open").stdout.startswith("namespace shop\n")


def test_a_user_of_one_namespace_cannot_touch_another(server: Server) -> None:
    rules = Path("docs/acl/worker.acl").read_text().replace("windlass:*", "windlass/shop:*").split()[2:]
    server.command("ACL", "SETUSER", "of-shop", *rules)
    assert server.socket_path is not None
    url = f"unix://of-shop:change-me@{server.socket_path}"
    with Windlass(url, namespace="shop", retry_for=0) as own:
        queue = own.queue("q")
        queue.enqueue(b"")
        lease = queue.lease(60)
        assert lease is not None
        assert queue.complete(lease)
        assert own.queues() == ["q"]
        assert own.workers() == []
    for other in ("", "blog"):
        with Windlass(url, namespace=other, retry_for=0) as app, pytest.raises(AccessDenied):
            app.queue("q").enqueue(b"")
    server.command("ACL", "DELUSER", "of-shop")
