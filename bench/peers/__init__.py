"""The peers: pinned packages, capabilities, and missing guarantees of each.

The drivers import this in each peer's environment, so it uses only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCKING = ("blocking",)
ASYNC = ("awaited", "concurrent")
WINDLASS = "windlass"


@dataclass(frozen=True, slots=True)
class Peer:
    """`pace` is a rough rate of one worker in jobs per second: it sizes the samples, and does not affect figures."""

    name: str
    title: str
    packages: tuple[str, ...]
    modes: tuple[str, ...]
    pace: int
    settings: str
    gap: str
    python: tuple[int, int] = (3, 11)
    node: bool = False

    @property
    def module(self) -> str:
        return f"bench.peers.{self.name.replace('-', '_')}_driver"


_REDIS = ("redis==8.1.0", "hiredis==3.5.0")
_OLDER_REDIS = ("redis==7.4.1", "hiredis==3.5.0")
_UVLOOP = "uvloop==0.23.0"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            WINDLASS,
            "Windlass",
            (_UVLOOP,),
            ("blocking", *ASYNC, "bulk"),
            60_000,
            "windlass worker --concurrency 100",
            "–",
        ),
        Peer(
            "bullmq",
            "BullMQ (Node)",
            ("bullmq@6.7.0", "ioredis@6.0.0"),
            (*ASYNC, "bulk"),
            12_000,
            "concurrency 100, removeOnComplete",
            "a job that stalls twice is failed",
            node=True,
        ),
        Peer(
            "ardiq",
            "ArdiQ (Rust core)",
            ("ardiq==1.2.0", _UVLOOP),
            (*ASYNC, "bulk"),
            10_000,
            "concurrency 100, prefetch 200, result_ttl 0",
            "at least once, by idle time",
            python=(3, 12),
        ),
        Peer(
            "dramatiq",
            "Dramatiq",
            ("dramatiq==2.2.1", *_REDIS),
            BLOCKING,
            3_000,
            "8 threads (as many as jobs for 10 ms jobs)",
            "no fence; a crashed job is back after 60 s",
        ),
        Peer(
            "taskiq",
            "taskiq (stream)",
            ("taskiq==0.13.0", "taskiq-redis==1.2.4", "orjson==3.13.0", _UVLOOP, *_REDIS),
            ASYNC,
            2_500,
            "RedisStreamBroker, 100 async tasks, prefetch 100",
            "no fence; the stream is never trimmed",
        ),
        Peer(
            "huey",
            "Huey",
            ("huey==3.5.4", *_REDIS),
            BLOCKING,
            2_300,
            "2 threads (as many as jobs for 10 ms jobs), blocking pop",
            "loses what runs on a crash",
        ),
        Peer(
            "saq",
            "SAQ",
            ("saq[redis]==0.26.4", *_OLDER_REDIS, "orjson==3.13.0", "typing_extensions==4.16.0", _UVLOOP),
            ASYNC,
            2_000,
            "concurrency 100, ttl -1",
            "a crashed job waits for its timeout and a sweep",
        ),
        Peer(
            "docket",
            "docket",
            ("pydocket==0.27.0", _UVLOOP, *_REDIS),
            (*ASYNC, "bulk"),
            1_900,
            "concurrency 100, check interval 5 ms, execution_ttl 0",
            "no fence; a crashed job is back after 5 min",
        ),
        Peer(
            "redis-work-queue",
            "redis-work-queue",
            ("redis-work-queue==0.1.5", *_REDIS),
            ("blocking", "bulk"),
            1_600,
            "1 thread (as many as jobs for 10 ms jobs)",
            "no retries; needs a cleaner of its own",
        ),
        Peer(
            "arq",
            "arq",
            ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", _UVLOOP),
            ASYNC,
            1_600,
            "max_jobs 100, poll_delay 10 ms, keep_result 0",
            "no fence; a crashed job is back after 5 min",
        ),
        Peer(
            "streaq",
            "streaQ",
            ("streaq==7.2.0", "hiredis==3.5.0", _UVLOOP),
            (*ASYNC, "bulk"),
            1_000,
            "concurrency 100, ttl 0, silent",
            "no fence; a crashed job is back after 60 s",
        ),
        Peer(
            "celery",
            "Celery",
            ("celery[redis]==5.7.0", *_REDIS),
            BLOCKING,
            850,
            "pool solo (threads for 10 ms jobs), no gossip/mingle",
            "loses what runs on a crash (acks early)",
        ),
        Peer(
            "rq",
            "RQ",
            ("rq==2.12.0", *_REDIS),
            ("blocking", "bulk"),
            160,
            "SimpleWorker, one job at a time, result_ttl 0",
            "a crashed job is failed, not run again",
        ),
    )
}
