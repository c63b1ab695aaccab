"""Sending a task: what lands on which queue, whose options win, and many calls that go together or not at all."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, cast

import pytest
import redis

from tests.support.tasks import named
from windlass import Job, Limits, Queue, State, Status, Task, Windlass, current
from windlass.errors import InvalidArguments, InvalidId, InvalidName, InvalidOption, InvalidTime, PayloadTooLarge
from windlass.storage.native.keys import queue_key


def stay() -> None: ...


def test_a_task_lands_on_its_queue_as_a_plain_job(app: Windlass, emails: Queue, client: redis.Redis) -> None:
    @app.task(queue="emails")
    async def welcome(user_id: int, locale: str = "en", job: Job = current()) -> None: ...

    receipt = welcome.enqueue(42, locale="fr")
    record = emails.get(receipt.id)
    assert record is not None
    assert record.data == f'{{"task":"{welcome.name}","args":{{"user_id":42,"locale":"fr"}}}}'.encode()
    assert (record.priority, record.limits, record.state) == (5, Limits(), State.READY)
    assert not client.exists(queue_key("emails", "meta"))
    welcome.using(max_failures=1).enqueue(42)
    assert client.exists(queue_key("emails", "meta"))


async def test_the_awaitable_twins(app: Windlass, emails: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(user_id: int) -> None: ...

    handles = [await welcome.aenqueue(1), await welcome.using(id="two").aenqueue(2)]
    receipts = await app.aenqueue_many(welcome.call(n) for n in (3, 4))
    assert [handle.status for handle in handles] == [Status.ADDED] * 2
    assert [receipt.status for receipt in receipts] == [Status.ADDED] * 2
    leases = await emails.alease_many(10)
    assert [lease.json()["args"]["user_id"] for lease in leases] == [1, 2, 3, 4]


def test_frameworks_can_see_that_the_twins_are_awaitable(here: Windlass, emails: Queue) -> None:
    """One that cannot calls it in a thread, and drops the coroutine that comes back."""

    @here.task
    async def welcome(user_id: int) -> None: ...

    for twin in (welcome.aenqueue, welcome.using(delay=5).aenqueue, emails.aenqueue):
        assert iscoroutinefunction(twin)


def test_options_of_the_task_travel_with_the_job(app: Windlass, emails: Queue) -> None:
    @app.task(queue="emails", max_failures=7, min_backoff="1s", priority=2, keep_result="1m")
    async def welcome(user_id: int) -> None: ...

    record = emails.get(welcome.enqueue(1).id)
    assert record is not None
    assert record.limits == welcome.limits == Limits(max_failures=7, min_backoff=1.0)
    assert (record.priority, record.json()["keep"]) == (2, 60)


def test_options_of_a_call(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails", max_failures=7, keep_result="1m")
    async def welcome(user_id: int) -> None: ...

    twice = welcome.using(id="w", delay="5m", max_failures=1, keep_result=0).using(priority=1)
    assert twice.enqueue(1).status == Status.ADDED
    assert twice.using(if_exists="keep").enqueue(2).status == Status.KEPT
    record = emails.get("w")
    assert record is not None
    assert (record.state, record.priority, record.limits.max_failures) == (State.SCHEDULED, 1, 1)
    assert record.json() == {"task": welcome.name, "args": {"user_id": 1}}

    welcome.using(queue="texts", id="t").enqueue(3)
    assert texts.get("t") is not None
    assert emails.get("t") is None


def test_who_has_the_last_word(server: Any, client: redis.Redis) -> None:
    defaults: Any = {"emails": {"max_failures": 3, "max_stalls": 1, "priority": 8}, "texts": {"priority": 7}}
    with Windlass(server.url, queue_options=defaults) as app:

        @app.task(queue="emails", max_stalls=2)
        async def welcome() -> None: ...

        assert welcome.limits == Limits(max_failures=3, max_stalls=2)
        assert welcome.call().options == {"max_failures": 3, "max_stalls": 2, "priority": 8}
        assert welcome.using(priority=0, max_failures=0).call().options == {
            "max_failures": 0,
            "max_stalls": 2,
            "priority": 0,
        }
        assert welcome.using(queue="texts").call().options == {"max_stalls": 2, "priority": 7}
        record = app.queue("emails").get(welcome.enqueue().id)
        app.queue("emails").purge()
        assert record is not None
        assert (record.limits, record.priority) == (welcome.limits, 8)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"emails": {"retries": 3}}, "queue_options of 'emails': unknown option 'retries'"),
        ({"emails": {"max_failures": -3}}, "queue_options of 'emails': max_failures must be"),
        ({"emails": {"priority": 11}}, "priority must be"),
        ({"emails": 3}, "must map queue"),
        (["emails"], "must map queue"),
        ({"no spaces": {}}, "is not a queue name"),
    ],
    ids=named,
)
def test_queue_options_are_checked_at_once(given: Any, told: str) -> None:
    with pytest.raises(InvalidOption if "name" not in told else InvalidName) as caught:
        Windlass("redis://localhost:1", queue_options=given)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"retries": 3}, InvalidOption, "unknown option 'retries'"),
        ({"timeout": 3}, InvalidOption, "unknown option 'timeout'"),
        ({"queue": "no spaces"}, InvalidName, "is not a queue name"),
        ({"keep_result": -1}, InvalidOption, "keep_result=-1"),
        ({"priority": 11}, InvalidOption, "priority"),
        ({"delay": 1, "run_at": 1}, InvalidTime, "not both"),
        ({"delay": "5 min"}, InvalidTime, "is not a duration"),
        ({"max_failures": -1}, InvalidOption, "max_failures"),
        ({"min_backoff": "soon"}, InvalidOption, "min_backoff"),
        ({"id": ""}, InvalidId, "1 to 512 bytes"),
        ({"if_exists": "ignore"}, InvalidOption, "if_exists"),
    ],
    ids=named,
)
def test_options_of_a_call_that_cannot_be(here: Windlass, options: Any, error: type[Exception], told: str) -> None:
    task = here.task(stay)
    with pytest.raises(error) as caught:
        task.using(**options)  # at once, not when it is enqueued
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("delay", ".enqueue(…)"), ("apply_async", ".using(delay="), ("send_with_options", ".using("), ("s", ".call(…)")],
)
def test_who_comes_from_another_queue_is_told_the_way(here: Windlass, name: str, remedy: str) -> None:
    task = here.task(stay)
    with pytest.raises(AttributeError) as caught:
        getattr(task, name)
    assert remedy in str(caught.value)
    assert not hasattr(task, "no_such_thing")


def test_a_payload_over_the_limit_is_refused() -> None:
    app = Windlass("redis://localhost:1", max_payload=100)

    @app.task
    def store(text: str) -> None: ...

    with pytest.raises(PayloadTooLarge, match=r"Windlass\(max_payload=…\)"):
        store.enqueue("x" * 100)
    with pytest.raises(PayloadTooLarge):
        app.enqueue_many([store.call("x"), store.call("x" * 100)])


def test_many_calls_to_many_queues_in_one_go(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(n: int) -> None: ...

    @app.task(queue="texts", max_failures=1)
    def ping(n: int) -> None: ...

    calls = [task.using(id=f"{task.short_name}-{n}").call(n) for n in range(5) for task in (welcome, ping)]
    receipts = app.enqueue_many(call for call in calls)
    assert [receipt.id for receipt in receipts] == [f"{name}-{n}" for n in range(5) for name in ("welcome", "ping")]
    assert app.enqueue_many([calls[0]])[0].status == Status.UPDATED
    assert app.enqueue_many([]) == []
    assert (emails.counts().ready, texts.counts().ready) == (5, 5)
    record = texts.get("ping-4")
    assert record is not None
    assert (record.limits.max_failures, record.json()["args"]) == (1, {"n": 4})


def test_a_bad_call_among_many_sends_nothing(app: Windlass, emails: Queue, texts: Queue) -> None:
    @app.task(queue="emails")
    async def welcome(n: int) -> None: ...

    with pytest.raises(InvalidOption):
        app.enqueue_many([welcome.call(1), welcome.using(queue="texts", priority=99).call(2)])
    assert emails.counts().waiting == texts.counts().waiting == 0


def test_only_calls_can_be_sent(here: Windlass) -> None:
    task = here.task(stay)
    forgotten = task.aenqueue()
    with pytest.raises(InvalidArguments, match="was an await forgotten"):
        here.enqueue_many([cast(Any, forgotten)])
    forgotten.close()
    with pytest.raises(InvalidArguments, match=r"is not a task call: pass what task.call\(…\) returns"):
        here.enqueue_many([cast(Any, b"x")])


def test_a_call_is_a_value_that_keeps_its_data_to_itself(welcome: Task[..., Any, Any]) -> None:
    call = welcome.using(priority=1).call(42, "secret")
    assert (call.task, call.queue, call.options) == (welcome.name, "default", {"priority": 1})
    assert "secret" not in repr(call)
    with pytest.raises(AttributeError):
        call.task = "x"  # type: ignore[misc]
