"""Random hostile input: payloads, names and lines with every kind of error.

All comes from the generator that is passed, so a seed repeats a run. About half of what is made is nearly right: noise
is refused at its first byte, and what lies behind that is never reached by it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

from tests.security.fuzzed_app import TASKS

Make = Callable[[Random], Any]

# Texts with a meaning for a shell, a key, a path, a format, a terminal, a decoder or an importer.
WORDS = (
    "", " ", "\0", "\n", "\r\n", "\t", "{", "}", "{}", "{a}", "}{", ":", "a:b", "*", "?", "[a-z]", "\\", "'", '"', "`",
    "../../etc/passwd", "/dev/zero", "$(id)", "; rm -rf /", "%s%n", "{0.__class__}", "__class__", "__import__",
    "os.system", "builtins.eval", "subprocess.Popen", "pickle.loads", "windlass:{q}:data", "windlass:wake:x",
    "jobs_queued:x", "worqr:x", "\x1b[2J", "\x7f", "\u202e", "\ufeff", "\ufffe", "é", "日本", "🚢", "ß" * 200,
    "x" * 129, "x" * 513, "-1", "0", "NaN", "null", "true", "1e999", "failure-1", "from:q", "caller:a", "default",
    ".workers", "constructor", "a.b_c-d", "A" * 128, "ready", "\u2028", "a\0b", "a\nb",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -0.0, 1, -1, 0.5, 1.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**40, 1e308, 5e-324, -1e308, 99999,
)  # fmt: skip
MOMENTS = (
    "2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "0000-00-00T00:00:00Z",
    "2026-02-30T00:00:00Z", "1969-12-31T23:59:59Z", "2026-01-01T00:00:00", "2026-01-01", "P1D", "PT-1S", "12:00",
    "2026-01-01T24:00:00Z", "2026-01-01T23:59:60Z", "9999-12-31T23:59:59.999999999Z",
)  # fmt: skip


def text(chance: Random) -> str:
    """A text, sometimes with lone surrogates in it."""
    kind = chance.randrange(6)
    if kind < 3:
        return chance.choice(WORDS)
    if kind == 3:
        return chance.choice(MOMENTS)
    length = chance.choice((1, 3, 8, 40, 600))
    top = 0x7F if kind == 4 else 0x10FFFF
    return "".join(chr(chance.randrange(top)) for _ in range(length))


def value(chance: Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kind = chance.randrange(8 if depth else 5)
    if kind < 2:
        return text(chance)
    if kind == 2:
        return chance.choice(NUMBERS)
    if kind < 5:
        return chance.choice((None, True, False))
    size = chance.randrange(4)
    if kind == 5:
        return [value(chance, depth - 1) for _ in range(size)]
    return {text(chance): value(chance, depth - 1) for _ in range(size)}


def written(given: Any, chance: Random) -> bytes:
    """The value as JSON, in one of the styles that programs write."""
    ascii_only = chance.random() < 0.5
    out = json.dumps(given, ensure_ascii=ascii_only, separators=chance.choice(((",", ":"), (", ", ": "))))
    return out.encode("utf-8", "surrogatepass")


def damaged(data: bytes, chance: Random) -> bytes:
    """Damage in one to three places: change, insert, cut, repeat or move bytes, or drop the end."""
    for _ in range(chance.randrange(1, 4)):
        at, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
        piece = data[at:end]
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + chance.randbytes(chance.randrange(1, 5)) + data[at:]
        elif kind == 2:
            data = data[:at] + data[end:]
        elif kind == 3:
            data = data[:at]
        elif kind == 4:
            data = data[:end] + piece + data[end:]
        else:
            data = piece + data[:at] + data[end:]
    return data


def bomb(chance: Random) -> bytes:
    """A JSON value that is small to write and expensive to read: deep, long, or with many digits."""
    kind = chance.randrange(5)
    if kind == 0:
        depth = chance.choice((60, 500, 960, 980, 990, 994, 995, 996, 997, 998, 999, 1000, 3000, 50_000))
        opens, closes = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]")))
        return opens * depth + chance.choice((b"1", b"", b"[]")) + closes * chance.choice((depth, depth - 1, 0))
    if kind == 1:
        return chance.choice((b"", b"-", b"1.", b"1e")) + b"9" * chance.choice((20, 400, 4301, 20_000))
    if kind == 2:
        return b"[" + b"0," * chance.choice((10, 1000, 20_000)) + b"0]"
    if kind == 3:
        return b'"' + chance.choice((b"\\ud800", b"\\udfff", b"\\u0000", b"\xff", b"\xed\xa0\x80")) * 9 + b'"'
    return b"{" + b",".join(b'"%d":%d' % (n % 7, n) for n in range(chance.choice((10, 500)))) + b"}"


# -- payloads --------------------------------------------------------------------------------------


_TAKES = {
    "plain": ("number", "text"),
    "moments": ("at", "span", "day", "id", "price", "raw"),
    "nested": ("address", "shape", "options", "table"),
    "chosen": ("colour", "size", "name"),
    "anything": ("value", "more"),
    "kept": ("value",),
}


def _envelope(chance: Random) -> bytes:
    """A valid payload, with arguments of all kinds."""
    task = chance.choice(TASKS)
    fields: dict[str, Any] = {"task": task, "args": _arguments(task, chance)}
    if chance.random() < 0.1:
        fields[chance.choice(("task", "args"))] = value(chance)
    if chance.random() < 0.2:
        fields["keep"] = chance.choice((60, 0.5, value(chance, 0)))
    if chance.random() < 0.1:
        fields[text(chance)] = value(chance)
    return written(fields, chance)


def _arguments(task: str, chance: Random) -> Any:
    """Arguments by name or position: valid, or one of them wrong."""
    good: dict[str, Any] = {
        "number": chance.choice((1, -1, chance.choice(NUMBERS))), "text": text(chance), "at": MOMENTS[0],
        "span": "PT1S", "day": "2026-01-01", "id": "7b0e2a54-0000-4000-8000-000000000000", "price": "1.5",
        "raw": "AA==",
        "address": {"street": text(chance), "lines": [text(chance)], "born": "2026-01-01"},
        "shape": {"type": chance.choice(("Circle", "Square")), "radius": 1, "side": 2},
        "options": {"loud": True, "size": 3}, "table": {"1": [chance.choice(NUMBERS)]},
        "colour": "red", "size": "s", "name": "abc", "value": value(chance), "more": {text(chance): value(chance)},
    }  # fmt: skip
    wanted = {name: good[name] for name in _TAKES[task]}
    if chance.random() < 0.4:
        spoilt = chance.choice(list(wanted))
        wanted[spoilt] = chance.choice((value(chance), chance.choice(MOMENTS), {"type": text(chance)}))
    return list(wanted.values()) if chance.random() < 0.2 else wanted


def _with_bomb(chance: Random) -> bytes:
    args = chance.choice((b"%b", b"[%b]", b'{"value":%b}', b'{"number":%b}', b'{"table":%b}')) % bomb(chance)
    task = chance.choice(TASKS).encode()
    return chance.choice((b'{"task":"%b","args":%b}', b'{"task":"%b","x":%b,"args":{}}')) % (task, args)


def payload(chance: Random) -> bytes:
    """Any payload that a queue may contain."""
    kind = chance.randrange(10)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return written(value(chance), chance)
    if kind == 2:
        return _with_bomb(chance)
    if kind < 6:
        return damaged(_envelope(chance), chance)
    return _envelope(chance)


# -- names -----------------------------------------------------------------------------------------

_LETTERS = "abcXYZ019._-"


def name(chance: Random) -> Any:
    """Any value passed as the name of a queue, holder, schedule or task, or as an id: usually a text."""
    kind = chance.randrange(8)
    if kind < 3:
        return "".join(chance.choice(_LETTERS) for _ in range(chance.choice((1, 2, 8, 20, 128, 129))))
    if kind == 3:
        return text(chance)
    if kind == 4:
        good = "".join(chance.choice(_LETTERS) for _ in range(6))
        at = chance.randrange(7)
        return good[:at] + chance.choice(WORDS)[:50] + good[at:]
    if kind == 5:
        return "".join(chance.choice("{}:*?[]\\\0\n. a") for _ in range(chance.randrange(9)))
    if kind == 6:
        return "a" + chr(chance.randrange(0x110000))
    return chance.choice((text(chance), None, 7, b"bytes", ["a"], 1.5, True, {"a": 1}))


# -- lines -----------------------------------------------------------------------------------------

_TOPICS = (
    "add_job", "worker_idle", "job_accepted", "worker_progress", "worker_busy", "job_finished", "list_job_queue",
    "list_leased_queue", "list_progress_queue", "list_worker_queue",
)  # fmt: skip
QUEUES = ("ffmpeg", "thumbs", "a.b_c-d")


def _moment(chance: Random) -> Any:
    if chance.random() < 0.6:
        return datetime.now(UTC).isoformat()
    return chance.choice(MOMENTS) if chance.random() < 0.8 else value(chance, 0)


def _message(chance: Random) -> dict[str, Any]:
    """A protocol message with one odd field in five."""

    def odd(usual: Any) -> Any:
        return value(chance, 1) if chance.random() < 0.05 else usual

    topic = f"job_queue/{chance.choice(_TOPICS)}"
    worker = f"w{chance.randrange(5)}"
    if chance.random() < 0.3:
        topic = topic.replace("job_queue/", f"job_queue/workers/{odd(worker)}/")
    uuid = f"job-{chance.randrange(50)}" if chance.random() < 0.8 else text(chance)
    inner: dict[str, Any] = {"uuid": odd(uuid), "queue_name": odd(chance.choice(QUEUES))}
    if chance.random() < 0.5:
        inner |= {"progress": odd(chance.random()), "status": odd({"progress": odd(chance.random())})}
    if chance.random() < 0.3:
        inner |= {"started_at": _moment(chance), "finished_at": _moment(chance)}
    if chance.random() < 0.3:
        inner |= {"priority": odd(chance.randrange(10)), text(chance): value(chance)}
    message = {"topic": odd(f"default/{topic}"), "payload": odd(inner)}
    if chance.random() < 0.8:
        message |= {"service_uuid": odd(worker), "created_at": odd(_moment(chance))}
    return message


def line(chance: Random) -> bytes:
    """A line for the stdio service, without a line end inside, which would make two lines."""
    kind = chance.randrange(10)
    if kind == 0:
        made = chance.randbytes(chance.randrange(100))
    elif kind == 1:
        made = written(value(chance), chance)
    elif kind == 2:
        inner = b'{"uuid":"job-%d","queue_name":"ffmpeg","x":%b}' % (chance.randrange(50), bomb(chance))
        made = b'{"topic":"default/job_queue/add_job","payload":%b}' % inner
    elif kind < 5:
        made = damaged(written(_message(chance), chance), chance)
    else:
        made = written(_message(chance), chance)
    return made.replace(b"\n", b" ")
