"""The rows of Processor Job Queue, message by message, with a real service on its own layout."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis

from tests.stdio.conftest import Service, Start, moment
from tests.support.layouts import pass_time
from tests.support.waiting import wait_until
from windlass import Windlass


@pytest.fixture
def later(client: redis.Redis, request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Let time pass for the queue of the test."""
    name = "ffmpeg" if "start" in request.fixturenames else request.getfixturevalue("service").queue
    return lambda seconds: pass_time(client, "processor", name, seconds)


@pytest.mark.speaks("processor", "P1", "P2")
def test_the_life_of_a_job(service: Service, client: redis.Redis) -> None:
    service.add("a", args=["-i", "größer.mp4"], nested={"n": [1, 2.5, None]})
    assert service.listed("job") == {"queue_name": service.queue, "total": 1, "jobs": [{"uuid": "a", "priority": 5}]}
    service.idle("w")
    message = service.hear()
    assert message["topic"] == "default/job_queue/workers/w/job_assignment"
    dispatched_at = message["payload"].pop("dispatched_at")
    assert message["payload"] == {
        "uuid": "a",
        "queue_name": service.queue,
        "args": ["-i", "größer.mp4"],
        "nested": {"n": [1, 2.5, None]},
        "priority": 5,
    }
    (dispatched,) = service.listed("leased")["jobs"]
    assert dispatched == {"uuid": "a", "worker_uuid": "w", "dispatched_at": dispatched_at}
    service.job("job_accepted", "w", "a", started_at="2026-01-02T03:04:05.678901Z")
    assert service.listed("leased")["jobs"] == []
    (processing,) = service.listed("progress")["jobs"]
    assert processing["progress"] == 0
    service.job("worker_progress", "w", "a", progress=0.75)
    assert service.listed("progress")["jobs"][0]["progress"] == 0.75
    assert service.listed("worker")["workers"][0]["state"] == "busy"
    service.job("job_finished", "w", "a", exit_code=0)
    assert service.listed("progress")["jobs"] == []
    assert service.listed("worker")["workers"][0]["state"] == "idle"
    assert client.hget("a", "started_at") == b"2026-01-02T03:04:05.678Z"
    end = json.loads(client.hget("a", "json") or "")
    assert end == {"uuid": "a", "queue_name": service.queue, "exit_code": 0}


@pytest.mark.speaks("processor", "P2")
def test_worker_busy_is_a_sign_of_life_with_and_without_a_job(service: Service, later: Callable[[float], None]) -> None:
    service.add("a")
    service.idle("w")
    assert service.assigned() == ("w", "a")
    service.job("job_accepted", "w", "a")
    for payload in ({"uuid": "a", "status": {"progress": 0.25}}, {"status": {"progress": 0.5}}, {}):
        assert service.is_silent()
        later(6)
        service.send("worker_busy", "w", queue_name=service.queue, **payload)
        service.send("tick")
        progress = payload["status"]["progress"] if "status" in payload else 0.5  # type: ignore[index]
        assert [job["progress"] for job in service.listed("progress")["jobs"]] == [progress]


@pytest.mark.speaks("processor", "P3")
def test_a_job_waits_for_an_idle_worker_and_a_worker_for_a_job(service: Service) -> None:
    service.idle("w1")
    service.idle("w2")
    service.add("a")
    assert service.assigned() == ("w1", "a")
    service.add("b")
    assert service.assigned() == ("w2", "b")
    service.add("c")
    service.idle("w2")  # it crossed its assignment
    assert service.is_silent()
    service.job("job_accepted", "w2", "b")
    service.job("job_finished", "w2", "b")
    assert service.assigned() == ("w2", "c")


def test_a_worker_idle_older_than_one_tick_gets_no_job(service: Service) -> None:
    service.add("a")
    service.idle("w", ago=3.5)
    line = service.log()
    assert line["log_level"] == "warning"
    assert "gets no job: its idle message is" in line["log_message"]
    assert service.is_silent()
    service.idle("w", ago=1)
    assert service.assigned() == ("w", "a")


@pytest.mark.speaks("processor", "P4")
def test_a_job_that_is_not_accepted_is_assigned_again_before_others(
    service: Service, later: Callable[[float], None]
) -> None:
    service.add("a")
    service.add("b")
    service.idle("w1")
    assert service.assigned() == ("w1", "a")
    later(9.1)
    service.send("tick")
    assert service.log()["log_message"] == f"queue {service.queue}: lost jobs queued again: 1"
    service.idle("w2")
    assert service.assigned() == ("w2", "a")
    service.job("job_accepted", "w1", "a")
    assert "does not belong to this worker" in service.complaint()


@pytest.mark.speaks("processor", "P6")
def test_the_jobs_of_a_lost_worker_are_given_to_another_by_the_tick(
    service: Service, later: Callable[[float], None]
) -> None:
    for uuid in "abc":
        service.add(uuid)
    service.idle("lost")
    assert service.assigned() == ("lost", "a")
    service.job("job_accepted", "lost", "a")
    assert service.is_silent()
    later(9.1)
    service.idle("w1")
    assert service.assigned() == ("w1", "b")
    service.job("job_accepted", "w1", "b")
    service.send("tick")
    service.idle("w2")
    assert service.assigned() == ("w2", "a")
    assert {worker["uuid"] for worker in service.listed("worker")["workers"]} == {"w1", "w2"}
    assert "lost jobs queued again: 1" in service.log()["log_message"]
    service.job("job_finished", "lost", "a")
    assert "does not belong to this worker" in service.complaint()


@pytest.mark.speaks("processor", "P2", "P6")
def test_ticks_come_by_its_own_clock(start: Start, later: Callable[[float], None]) -> None:
    service = start("--tick", "100ms")
    service.add("a")
    service.idle("w1")
    assert service.assigned() == ("w1", "a")
    later(9.1)
    assert "lost jobs queued again: 1" in service.log()["log_message"]
    service.idle("w2")
    assert service.assigned() == ("w2", "a")


@pytest.mark.speaks("processor", "P4", "P6")
def test_a_service_finds_the_queues_of_one_that_died(
    start: Start, client: redis.Redis, later: Callable[[float], None]
) -> None:
    """Nobody names the queue to the new service: no job comes, and no worker."""
    dead = start("--tick", "off")
    for uuid in "ab":
        dead.add(uuid)
        dead.idle(f"worker-of-{uuid}")
        dead.assigned()
    dead.job("job_accepted", "worker-of-a", "a")
    assert dead.is_silent()
    dead.kill()
    later(9.1)
    client.hset("jobs_processing:of another program", "field", "x")
    client.hset("jobs_processing:other", "field", "x")
    service = start("--tick", "off")
    service.send("tick")
    assert service.log()["log_message"] == "queue ffmpeg: lost jobs queued again: 2"
    assert sorted(client.lrange("jobs_queued:ffmpeg", 0, -1)) == [b"a", b"b"]
    assert client.exists("workers_busy:ffmpeg", "workers_last_seen:ffmpeg") == 0
    assert "jobs_processing:other" in service.complaint(), "this is told once, not at each tick"
    service.send("tick")
    assert service.is_silent()
    client.delete("jobs_processing:of another program", "jobs_processing:other")


@pytest.mark.speaks("processor", "P5")
def test_progress_is_from_0_to_1_and_can_be_read(service: Service) -> None:
    service.add("a")
    service.idle("w")
    service.assigned()
    service.job("worker_progress", "w", "a", progress=1 / 3)  # who works on it has accepted it
    (job,) = service.listed("progress")["jobs"]
    assert (job["worker_uuid"], job["progress"]) == ("w", pytest.approx(1 / 3))
    assert moment(5) < job["last_seen"] <= moment()


@pytest.mark.speaks("processor", "P7")
def test_queues_are_made_on_the_fly_and_have_workers_of_their_own(service: Service) -> None:
    service.idle("w1")
    service.idle("w2", on="thumbs")
    service.add("t", queue_name="thumbs")
    assert service.assigned() == ("w2", "t")
    service.add("f")
    assert service.assigned() == ("w1", "f")
    assert [len(service.listed("leased", on)["jobs"]) for on in (service.queue, "thumbs", "other")] == [1, 1, 0]
    service.job("job_finished", "w2", "t", queue_name="thumbs")


@pytest.mark.speaks("processor", "P8")
def test_priorities_come_in_their_order_and_equals_as_they_were_added(service: Service) -> None:
    for n, priority in enumerate((9, 5, 0, 5, 0, 9)):
        service.add(f"{priority}-{n}", priority=priority)
    order = ["0-2", "0-4", "5-1", "5-3", "9-0", "9-5"]
    assert [job["uuid"] for job in service.listed("job")["jobs"]] == order
    service.idle("w")
    for uuid in order:
        assert service.assigned() == ("w", uuid)
        service.job("job_finished", "w", uuid)


@pytest.mark.speaks("processor", "P9")
def test_jobs_that_others_queue_are_heard_of_at_once(service: Service, app: Windlass, client: redis.Redis) -> None:
    service.idle("w")
    wait_until(client.pubsub_channels, "the service to listen")
    app.queue(service.queue, layout="processor").enqueue_json({"args": []}, id="a")
    assert service.assigned() == ("w", "a")


def test_many_requests_are_answered_in_their_order(service: Service) -> None:
    for n in range(50):
        service.add(str(n))
        service.idle(f"w{n}")
    assert [service.assigned() for _ in range(50)] == [(f"w{n}", str(n)) for n in range(50)]


def test_a_job_that_is_there_is_kept_as_it_is(service: Service) -> None:
    service.add("a", n=1)
    service.add("a", n=2)
    assert service.log()["log_message"] == f"job a exists already on queue {service.queue}: it is not changed"
    service.idle("w")
    assert service.hear()["payload"]["n"] == 1


@pytest.mark.speaks("processor", "P9")
def test_two_services_give_each_job_to_one_worker_of_their_own(start: Start) -> None:
    one, other = start("--tick", "100ms"), start("--tick", "100ms")
    for n in range(40):
        (one if n % 2 else other).add(str(n))
    for n in range(20):
        one.idle(f"one-{n}")
        other.idle(f"other-{n}")
    given = [(service.assigned(), name) for service, name in ((one, "one"), (other, "other")) for _ in range(20)]
    assert all(worker.startswith(f"{name}-") for (worker, _), name in given)
    assert sorted(int(uuid) for (_, uuid), _ in given) == list(range(40))
    assert one.is_silent()
    assert other.is_silent()


def test_a_worker_may_go_on_through_another_service(start: Start) -> None:
    one, other = start("--tick", "off"), start("--tick", "off")
    one.add("a")
    one.idle("w")
    assert one.assigned() == ("w", "a")
    other.job("job_accepted", "w", "a")
    other.job("job_finished", "w", "a")
    assert other.is_silent()
