"""`python -m chaos.fuzz`: random hostile payloads, names and lines, fed to the real code.

    envelopes  through the payload reader, the task readers and the command line's view of a job; some also through a
               queue and a real worker, which must survive and still run a good job at the end
    names      through the validation; then as queues, ids, holders, schedules and tasks on a server; MONITOR shows
               every key touched: each key must carry the tag of its own queue
    lines      through the protocol reader; then through `windlass stdio`, on both of its layouts: each bad line is
               one line in its log, and the service still answers

It prints the counts, the crashes and the keys outside the tag, and returns 1 if there were any. `--seed` repeats a
run. `tests/security/test_fuzz.py` runs the short form.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from tests.security import hostile
from tests.security.fuzzed_app import app as fuzzed_app
from tests.security.watching import KeyWatch, native_key
from tests.support.internals import handle_on, perform, perform_call, settle
from tests.support.server import Server, valkey_binary
from tests.support.waiting import wait_until
from tests.support.workers import Worker, Workshop

from windlass import Queue, RawJob, Windlass, errors
from windlass.cli.job_list import job_facts
from windlass.stdio.messages import BadMessage, read_message
from windlass.storage.port import Call, Layout
from windlass.tasks.envelope import write_envelope
from windlass.tasks.names import check_task_name
from windlass.transport import presence
from windlass.values.job import FAILURE_JOB, JobRecord, Lease, State
from windlass.values.outcome import Broken, Failed, UnknownTask
from windlass.values.validation import check_id, check_name
from windlass.values.worker_record import WorkerRecord
from windlass.worker import attempt
from windlass.worker.settings import Settings

T = TypeVar("T")
BATCH = 500
WORKER_TIMEOUT_S = 60.0
QUEUE = "default"


class Findings:
    """Problems found, counted by kind, with one example each."""

    def __init__(self) -> None:
        self.crashes: Counter[str] = Counter()
        self.outside: list[str] = []
        self._examples: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.crashes or self.outside)

    def crash(self, what: str, example: object) -> None:
        """Count a crash or a wrong result for this input."""
        self.crashes[what] += 1
        self._examples.setdefault(what, repr(example)[:300])

    def lines(self) -> Iterator[str]:
        """All findings as text lines."""
        for what, count in self.crashes.most_common():
            yield f"  crash, {count} ×: {what}\n    such as {self._examples[what]}"
        for key in self.outside[:20]:
            yield f"  outside: {key}"


def _described(error: BaseException) -> str:
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {str(error)[:100]} ({Path(last.filename).name}:{last.lineno})"


def _chunks(things: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(things)
    while chunk := list(islice(iterator, size)):
        yield chunk


# -- readers, without a server: also run under an audit hook ---------------------------------------


def read_payloads(payloads: Iterable[bytes], findings: Findings) -> None:
    """Any payload reads as planned, broken, or of an unknown task; and it can be displayed."""
    for data in payloads:
        try:
            planned = attempt.plan(fuzzed_app, Lease(QUEUE, "a", data, 1))
            if not isinstance(planned, attempt.Plan | Broken | UnknownTask):
                findings.crash(f"a payload was planned as {type(planned).__name__}", data)
            text = msgspec.json.encode(job_facts(JobRecord(QUEUE, "a", State.READY, data), True))
            msgspec.json.decode(text)
        except Exception as error:
            findings.crash(f"a payload: {_described(error)}", data)


def read_failures(payloads: Iterable[bytes], findings: Findings) -> None:
    """The same for failure records, which only a client with access to the server can write."""
    for data in payloads:
        try:
            attempt.plan(fuzzed_app, Lease(QUEUE, "a", data, 1, marks=FAILURE_JOB))
        except Exception as error:
            findings.crash(f"the record of a failure: {_described(error)}", data)


_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")


def is_legal_name(name: object) -> bool:
    """Whether this is a legal name of a queue, holder or schedule: the documented rule, implemented a second time."""
    return (
        isinstance(name, str)
        and 1 <= len(name) <= 128
        and name[0] in _ALPHABET
        and all(letter in _ALPHABET or letter in "._-" for letter in name)
    )


def is_legal_id(id: object) -> bool:
    """Whether this is a legal job id."""
    if not isinstance(id, str) or any(0xD800 <= ord(letter) <= 0xDFFF for letter in id):
        return False
    return 1 <= len(id.encode()) <= 512


def read_names(names: Iterable[Any], findings: Findings) -> None:
    """The validation accepts legal names and rejects all others with a Windlass error."""
    for name in names:
        _agree(check_name, name, is_legal_name(name), errors.InvalidName, findings)
        _agree(check_id, name, is_legal_id(name), errors.InvalidId, findings)
        try:
            check_task_name(name)
        except errors.InvalidTask:
            pass
        except Exception as error:
            findings.crash(f"a task's name: {_described(error)}", name)


def _agree(
    check: Callable[[Any], object], name: Any, legal: bool, refusal: type[Exception], findings: Findings
) -> None:
    try:
        check(name)
    except refusal:
        taken = False
    except Exception as error:
        return findings.crash(f"a name: {_described(error)}", name)
    else:
        taken = True
    if taken != legal:
        findings.crash("a name was " + ("taken" if taken else "refused") + f" ({refusal.__name__})", name)
    return None


def is_bad_line(line: bytes, findings: Findings) -> bool:
    """Whether the reader rejects this line."""
    try:
        read_message(line, "default")
    except BadMessage:
        return True
    except Exception as error:
        findings.crash(f"a line: {_described(error)}", line)
    return False


# -- envelopes, through a worker -------------------------------------------------------------------


def fuzz_envelopes(count: int, through_worker: int, chance: random.Random) -> Findings:
    """Feed all payloads to the readers, and `through_worker` of them to a worker."""
    findings = Findings()
    read_payloads((hostile.payload(chance) for _ in range(count)), findings)
    read_failures((hostile.payload(chance) for _ in range(count // 10)), findings)
    if through_worker:
        with tempfile.TemporaryDirectory(prefix="wl-") as folder, _server() as server:
            _feed_worker(server, Path(folder), [hostile.payload(chance) for _ in range(through_worker)], findings)
    return findings


def _feed_worker(server: Server, folder: Path, payloads: list[bytes], findings: Findings) -> None:
    with Workshop(server, folder) as shop:
        settings = Settings(name="fuzzed", queues={QUEUE: 1}, lease=5.0, grace=5.0, threads=2, processes=1)
        environment = {"WINDLASS_URL": server.url}
        worker = Worker("tests.security.fuzzed_app:app", settings, environment, folder / "worker.log", folder=_root())
        shop.workers.append(worker)
        shop.wait_ready(worker)
        queue = shop.queue(QUEUE)
        receipts = queue.enqueue_many(payloads)
        wait_until(lambda: not _under_way(queue), "the worker to be done", timeout=WORKER_TIMEOUT_S)
        counts = queue.counts()
        if counts.scheduled != counts.parked:
            failed = [job for job in queue.all_jobs(State.SCHEDULED) if job.failures or job.stalls]
            findings.crash("a payload made a worker fail", [(job.data[:100], job.message) for job in failed[:3]])
        for job in queue.all_jobs(State.DEAD):
            if job.reason != "failed" or not (job.message or "").startswith("keep_result:"):
                findings.crash(f"a payload's job is dead: {job.reason} {job.message}", job.data)
        alive = queue.enqueue(write_envelope("kept", b'["still here"]', 60), id="last")
        if handle_on(queue, alive.id).result(timeout=WORKER_TIMEOUT_S) != "still here":
            findings.crash("the good job at the end did not run", alive)
        for words in ("Runner ", "Traceback"):
            if words in worker.log:
                findings.crash(f"the worker logged {words!r}", worker.log[-500:])
        print(
            f"  through a worker: {len(receipts):,} payloads, {counts.broken:,} broken, {counts.parked:,} of unknown "
            f"tasks, {counts.dead:,} whose results could not be kept, the others run"
        )


def _under_way(queue: Queue) -> bool:
    counts = queue.counts()
    return bool(counts.ready or counts.running or counts.inbox)


# -- names, on a server ----------------------------------------------------------------------------


def fuzz_names(count: int, chance: random.Random) -> Findings:
    """Validate all names, and use the legal ones on a server while MONITOR shows every command."""
    findings = Findings()
    names = [hostile.name(chance) for _ in range(count)]
    read_names(names, findings)
    with _server() as server, Windlass(server.url, retry_for=5) as app, KeyWatch(server) as watch:
        _refuse(app, [name for name in names[:: max(1, count // 2000)] if not is_legal_id(name)], findings)
        ids = dict.fromkeys(name for name in names if is_legal_id(name))
        watch.expect("ids")
        for chunk in _chunks(ids, BATCH):
            _use_ids(app.queue("ids"), chunk, chance)
        queues = dict.fromkeys(name for name in names if is_legal_name(name))
        all_ids = list(ids)
        for name in queues:
            watch.expect(name)
            _use_queue(app, name, chance.choice(all_ids), chance)
        watch.expect(".workers")
        for name in islice(queues, 500):
            _tell_fleet(app, name)
        app.workers()
        watch.expect(None)
        app.queues()
        app.close()  # its deregistration touches every queue, and is checked as well
        findings.outside += watch.finish()
        print(f"  on a server: {len(ids):,} ids, {len(queues):,} queues, {watch.commands:,} commands checked")
    return findings


def _tell_fleet(app: Windlass, name: str) -> None:
    told = presence.beat(WorkerRecord(name=name, host="\0\n"))
    perform_call(app, told)


def _refuse(app: Windlass, names: list[Any], findings: Findings) -> None:
    """Every method rejects an illegal name, and sends nothing."""
    queue = app.queue("ids")
    for name in names:
        for verb in (
            lambda name=name: app.queue(name),
            lambda name=name: queue.get(name),
            lambda name=name: queue.cancel(name),
            lambda name=name: queue.revive([name]),
            lambda name=name: queue.beat(name),
            lambda name=name: app.schedules.add(name, ("ids", b""), every="1h"),
        ):
            try:
                verb()
            except errors.InvalidInput:
                continue
            except Exception as error:
                findings.crash(f"a method: {_described(error)}", name)
            else:
                findings.crash("a method accepted an illegal name", name)


def _use_ids(queue: Queue, ids: list[str], chance: random.Random) -> None:
    """Call every operation that puts an id into a key, a member or a record."""
    for id in chance.sample(ids, min(5, len(ids))):
        queue.enqueue(b"", id=id, delay=60)
        queue.update(id, priority=1, delay=0)
        perform(queue, partial(_watch, id))
        queue.get(id)
    queue.enqueue_many(RawJob(b"", id=id) for id in ids)
    leases = queue.lease_many(BATCH, holder=f"holder-{chance.randrange(3)}")
    for lease in leases[:3]:
        queue.progress(lease, 0.5)
        queue.enqueue(b"behind", id=lease.id)
        queue.cancel(lease.id, running=True)
    if leases:
        settle(queue, UnknownTask(leases[-1], chance.choice(ids)), Failed(leases[-2 % len(leases)], leases[0].id, 1))
        perform(queue, lambda layout: layout.unpark([leases[-1].id]))
    queue.complete_many(leases)
    queue.purge()


def _watch(id: str, layout: Layout) -> Call[Any]:
    return layout.watch(id, 1)


def _use_queue(app: Windlass, name: str, id: str, chance: random.Random) -> None:
    queue = app.queue(name)
    queue.enqueue(b"", id=id)
    lease = queue.lease(holder=name)
    assert lease is not None
    if chance.random() < 0.05:
        app.schedules.add(name, (name, b""), every="1h")
        app.schedules.run_now(name, name)
        app.schedules.list(name)
        app.schedules.delete(name, name)
    assert lease.id == id
    queue.complete(lease)
    queue.purge()


# -- lines, through `windlass stdio` ---------------------------------------------------------------


class _Said(msgspec.Struct):
    topic: str
    payload: msgspec.Raw


class StdioService:
    """`windlass stdio`, with its log in a file: an unread pipe would block it."""

    def __init__(self, url: str, layout: str, folder: Path) -> None:
        self.log = folder / f"{layout}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "windlass", "stdio", "--layout", layout, "--tick", "1s", "--url", url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(_root())},
            )
        self._answers: set[str] = set()
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._asked = 0
        self.unreadable: list[bytes] = []

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            try:
                message = msgspec.json.decode(line, type=_Said)
                if message.topic.endswith("/answer"):
                    with self._came:
                        self._answers.add(msgspec.json.decode(message.payload)["queue_name"])
                        self._came.notify_all()
            except (msgspec.DecodeError, ValueError):
                self.unreadable.append(line)
        with self._came:
            self._came.notify_all()

    def handle(self, lines: list[bytes]) -> bool:
        """Handle these lines; returns whether the service still answers."""
        assert self._process.stdin
        self._asked += 1
        name = f"asked-{self._asked}"
        question = b'{"topic":"default/job_queue/list_job_queue","payload":{"queue_name":"%b"}}' % name.encode()
        try:
            self._process.stdin.write(b"".join(line + b"\n" for line in (*lines, question)))
            self._process.stdin.flush()
        except OSError:
            return False
        with self._came:
            self._came.wait_for(lambda: name in self._answers or self._process.poll() is not None, WORKER_TIMEOUT_S)
            return name in self._answers

    def logged(self) -> list[bytes]:
        """The log lines."""
        return self.log.read_bytes().splitlines()

    def end(self) -> int:
        """Close its input; returns its exit code."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            return self._process.wait(WORKER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            self._reader.join(10)


def fuzz_lines(count: int, chance: random.Random) -> Findings:
    """Feed all lines to the reader, and half of them to a service on each layout."""
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="wl-") as folder:
        for layout in ("processor", "native"):
            lines = [hostile.line(chance) for _ in range(count // 2)]
            judge = _judge_for(layout, lines)
            with _server() as server, KeyWatch(server, judge, one_slot=layout == "native") as watch:
                service = StdioService(server.url, layout, Path(folder))
                try:
                    _speak(service, layout, lines, findings)
                finally:
                    code = service.end()
                if code != 0:
                    findings.crash(f"stdio on {layout} exited with {code}", service.log.read_text()[-1500:])
                findings.outside += watch.finish()
                _check_log(service, layout, findings)
    return findings


def _speak(service: StdioService, layout: str, lines: list[bytes], findings: Findings) -> None:
    """Send all lines in order; then the bad ones again alone, so that their log lines can be counted."""
    bad = [line for line in lines if is_bad_line(line, findings) and line.strip()]
    for chunk in _chunks(lines, BATCH):
        if not service.handle(chunk):
            return findings.crash(f"stdio on {layout} stopped answering", chunk[-1])
    errors_logged = 0
    for chunk in _chunks(bad, BATCH):
        before = _errors(service)
        if not service.handle(chunk):
            return findings.crash(f"stdio on {layout} stopped answering", chunk[-1])
        errors_logged += _errors(service) - before
    if errors_logged != len(bad):
        findings.crash(f"stdio on {layout} logged {errors_logged:,} errors of {len(bad):,} bad lines", None)
    print(
        f"  stdio on {layout}: {len(lines) + len(bad):,} lines, {2 * len(bad):,} of them bad, {errors_logged:,} logged"
    )
    return None


def _errors(service: StdioService) -> int:
    # Count only complaints about bad lines: the service's own periodic work may log errors at any time.
    return sum(b'"log_level":"error"' in line and _BAD.search(line) is not None for line in service.logged())


_BAD = re.compile(rb"(line|message) skipped: ")


def _check_log(service: StdioService, layout: str, findings: Findings) -> None:
    for line in service.logged():
        try:
            told = json.loads(line)
            if not {"log_level", "created_at", "log_message"} <= told.keys():
                findings.crash(f"stdio on {layout} logged something odd", line)
        except ValueError:
            findings.crash(f"stdio on {layout} logged no JSON", line)
    for line in service.unreadable:
        findings.crash(f"stdio on {layout} wrote no JSON", line)


# Names on the processor layout: anything without spaces, braces and control characters.
_PROCESSOR = re.compile(r"(?:jobs|workers)_[a-z_0-9]+:[^\s{}\x00-\x1f\x7f]{1,128}")
_LEDGER = re.compile(r"windlass:\{[^\s{}\x00-\x1f\x7f]{1,128}\}:processor:[a-z]+")


def _judge_for(layout: str, lines: list[bytes]) -> Callable[[bytes, bytes], bytes | None]:
    """Which keys the service may touch. On the processor layout a job's key is its bare uuid, exactly as sent."""
    if layout == "native":
        return native_key
    uuids = set(_uuids(lines))

    def judge(key: bytes, command: bytes) -> bytes | None:
        text = key.decode(errors="replace")
        ours = _PROCESSOR.fullmatch(text) or _LEDGER.fullmatch(text)
        # A worker's message about a missing job looks up its uuid, and writes nothing.
        looked_up = command in (b"HGET", b"TYPE", b"EXISTS")
        job = key in uuids and (looked_up or not _RESERVED.match(text))
        # This layout does not support clusters: one script call is about one queue, but jobs are at any key.
        return b"" if ours or job else None

    return judge


_RESERVED = re.compile(r"(jobs|workers)_[a-z_0-9]+:|windlass:")


def _uuids(lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        try:
            message = read_message(line, "default")
        except Exception:
            continue
        if uuid := getattr(message.payload, "uuid", None):
            yield uuid.encode()


# -- the command -----------------------------------------------------------------------------------


def _server() -> Server:
    return Server(valkey_binary(), config={"client-output-buffer-limit": "normal 0 0 0"})


def _root() -> Path:
    return Path(__file__).parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Fuzz and print the result; returns 1 if there were findings."""
    parser = argparse.ArgumentParser(prog="python -m chaos.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--envelopes", type=int, default=100_000, help="number of payloads (default %(default)s)")
    parser.add_argument(
        "--through-worker", type=int, default=5_000, help="additional payloads that a worker runs (default %(default)s)"
    )
    parser.add_argument("--names", type=int, default=100_000, help="number of names (default %(default)s)")
    parser.add_argument("--lines", type=int, default=100_000, help="number of stdio lines (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}: repeat with --seed {chosen.seed}", flush=True)
    crashes = outside = 0
    parts: dict[str, tuple[int, Callable[[random.Random], Findings]]] = {
        "envelopes": (
            chosen.envelopes + chosen.through_worker,
            lambda chance: fuzz_envelopes(chosen.envelopes, chosen.through_worker, chance),
        ),
        "names": (chosen.names, lambda chance: fuzz_names(chosen.names, chance)),
        "lines": (chosen.lines, lambda chance: fuzz_lines(chosen.lines, chance)),
    }
    for what, (count, fuzz) in parts.items():
        if not count:
            continue
        findings = fuzz(random.Random(f"{chosen.seed} {what}"))
        crashes += findings.crashes.total()
        outside += len(findings.outside)
        print(
            f"{what}: {count:,}, crashes {findings.crashes.total():,}, keys outside the tag {len(findings.outside):,}",
            *findings.lines(),
            sep="\n",
            flush=True,
        )
    return 1 if crashes or outside else 0


if __name__ == "__main__":
    sys.exit(main())
