"""A peer of another make: what the published package sends, command by command, so that Windlass can be seen beside it.

It is no client: what it does not do atomically can be stopped halfway (`about_to_fail`), as a crash or a race would.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import redis


class Peer:
    """One worker of the published package."""

    def __init__(self, client: redis.Redis, name: str | None = None) -> None:
        self._client: Any = client
        self.name = name or str(uuid4())

    # -- tasks -----------------------------------------------------------------------------------

    def enqueue(self, queue: str, *tasks: bytes) -> None:
        with self._client.pipeline() as pipe:
            pipe.lpush(f"worqr:queues:{queue}", *tasks)
            pipe.publish(f"worqr_{queue}_work", len(tasks))
            pipe.execute()

    def enqueue_unique(self, queue: str, task: bytes) -> bool:
        """Enqueue a unique task; returns whether it was the only one."""
        mark = f"worqr:uniqueTasks:{hashlib.md5(task).hexdigest()}"
        if self._client.get(mark):
            return False
        self._client.set(mark, " ")
        self.enqueue(queue, task)
        return True

    def dequeue(self, queue: str) -> tuple[str, bytes] | None:
        """A process and its task."""
        assert self._client.sismember(f"worqr:workingQueues:{self.name}", queue), "it does not work on that queue"
        process = f"{queue}_{uuid4()}"
        with self._client.pipeline() as pipe:
            pipe.rpoplpush(f"worqr:queues:{queue}", f"worqr:processes:{process}")
            pipe.sadd(f"worqr:workingProcesses:{queue}", process)
            task = pipe.execute()[0]
        if task:
            return process, task
        self._client.srem(f"worqr:workingProcesses:{queue}", process)
        return None

    def finish(self, process: str) -> None:
        queue = process.rpartition("_")[0]
        (task,) = self._client.lrange(f"worqr:processes:{process}", 0, -1) or [b""]
        with self._client.pipeline() as pipe:
            pipe.delete(f"worqr:uniqueTasks:{hashlib.md5(task).hexdigest()}", f"worqr:processes:{process}")
            pipe.srem(f"worqr:workingProcesses:{queue}", process)
            pipe.execute()
        done = {"workerId": self.name, "task": task.decode(errors="replace")}
        self._client.publish(f"worqr_{queue}_done", json.dumps(done))

    def cancel(self, queue: str, task: bytes) -> None:
        with self._client.pipeline() as pipe:
            pipe.lrem(f"worqr:queues:{queue}", 0, task)
            pipe.publish(f"worqr_{queue}_cancel", task)
            pipe.execute()

    # -- workers ---------------------------------------------------------------------------------

    def start(self, *queues: str, permanent: bool = False, seconds: int = 600) -> Peer:
        """Its time limit is long, so that it does not expire during a slow test: see `die`."""
        with self._client.pipeline() as pipe:
            pipe.sadd("worqr:workers", self.name)
            if permanent:
                pipe.sadd("worqr:permanentWorkers", self.name)
            else:
                pipe.sadd("worqr:expiringWorkers", self.name)
                pipe.set(f"worqr:workerTimers:{self.name}", "RUN", ex=seconds)
            pipe.execute()
        for queue in queues:
            self._client.sadd(f"worqr:workingQueues:{self.name}", queue)
        return self

    def die(self) -> None:
        """Expire: too long without a sign of life."""
        self._client.delete(f"worqr:workerTimers:{self.name}")

    def fail(self, worker: str) -> None:
        """Reclaim all running tasks on the queues of a worker."""
        self.about_to_fail(worker)()

    def about_to_fail(self, worker: str) -> Callable[[], None]:
        """Read its messages and react to them."""
        queues = [queue.decode() for queue in self._client.smembers(f"worqr:workingQueues:{worker}")]
        processes = [
            process.decode() for queue in queues for process in self._client.smembers(f"worqr:workingProcesses:{queue}")
        ]

        def go_on() -> None:
            with self._client.pipeline() as pipe:
                for key in ("workers", "expiringWorkers", "permanentWorkers"):
                    pipe.srem(f"worqr:{key}", worker)
                pipe.delete(f"worqr:workerTimers:{worker}", f"worqr:workingQueues:{worker}")
                for queue in queues:
                    pipe.delete(f"worqr:workingProcesses:{queue}")
                for process in processes:
                    queue = process.rpartition("_")[0]
                    pipe.rpoplpush(f"worqr:processes:{process}", f"worqr:queues:{queue}")
                    pipe.delete(f"worqr:processes:{process}")
                pipe.execute()

        return go_on

    def stop_work(self, queue: str) -> None:
        """Stop work on a queue: returns all its running tasks, whoever runs them, and announces nothing."""
        processes = [process.decode() for process in self._client.smembers(f"worqr:workingProcesses:{queue}")]
        with self._client.pipeline() as pipe:
            pipe.srem(f"worqr:workingQueues:{self.name}", queue)
            pipe.delete(f"worqr:workingProcesses:{queue}")
            for process in processes:
                pipe.rpoplpush(f"worqr:processes:{process}", f"worqr:queues:{queue}")
                pipe.delete(f"worqr:processes:{process}")
            pipe.execute()

    def clean_up(self) -> None:
        """Fail every silent worker."""
        for worker in self._client.smembers("worqr:expiringWorkers"):
            name = worker.decode()
            if name != self.name and not self._client.exists(f"worqr:workerTimers:{name}"):
                self.fail(name)
