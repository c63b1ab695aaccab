"""What lies in a queue is data: nothing of it is executed, imported or opened, not by what it says nor by its name."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass
from tests.security.conftest import ROOT, Probe
from tests.support.waiting import wait_until
from windlass.errors import JobFailed
from windlass.storage.native.keys import queue_keys
from windlass.tasks.envelope import write_envelope

SOURCE = Path(windlass.__file__).parent

# -- the text of the program -----------------------------------------------------------------------

NEVER_IMPORTED = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "multiprocessing", "yaml", "code"}
NEVER_CALLED = {"eval", "exec", "compile", "__import__", "execfile", "input", "breakpoint"}
NEVER_ASKED_FOR = {("os", "system"), ("os", "popen"), ("yaml", "load"), ("pickle", "loads"), ("marshal", "loads")}
# Who may import by a name, and whose name that is. None of them is handed anything that came from a server.
IMPORTERS = {
    "cli/__init__.py",  # a command, by the name in its own table
    "storage/layouts.py",  # a layout, by the name in the table of layouts
    "worker/app_loading.py",  # the app, as it was named to the worker
    "worker/executors/child.py",  # a function of Windlass, as the supervisor names it to the forkserver
}


def findings(text: str) -> Iterator[str]:
    """What a module does that could make code of data."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in NEVER_IMPORTED)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in NEVER_IMPORTED:
            yield str(node.module)
        elif isinstance(node, ast.Name) and node.id in NEVER_CALLED:
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in NEVER_ASKED_FOR:
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            yield "shell="


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "x = eval(y)", "f = exec", "import os\nos.system(x)",
     "import subprocess\nsubprocess.run(x, shell=True)", "def f():\n    import shelve"],
)  # fmt: skip
def test_the_gate_sees(text: str) -> None:
    assert list(findings(text))


def test_nothing_in_the_program_makes_code_of_data() -> None:
    found = {str(path.relative_to(SOURCE)): list(findings(path.read_text())) for path in SOURCE.rglob("*.py")}
    assert len(found) > 100
    assert {name: what for name, what in found.items() if what} == {}


def test_few_import_by_name_and_none_of_them_a_name_from_a_server() -> None:
    importers = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "import_module(" in path.read_text()}
    assert importers == IMPORTERS


# -- reading, under an audit hook ------------------------------------------------------------------

AUDITED = """
import random, sys
from chaos.fuzz import Findings, is_bad_line, read_names, read_payloads
from tests.security import hostile

chance, findings = random.Random(int(sys.argv[1])), Findings()
payloads = [hostile.payload(chance) for _ in range(int(sys.argv[2]))]
names = [hostile.name(chance) for _ in range(int(sys.argv[2]))]
lines = [hostile.line(chance) for _ in range(int(sys.argv[2]))]

def read_everything(share):
    read_payloads(payloads[:share], findings)
    read_names(names[:share], findings)
    for line in lines[:share]:
        is_bad_line(line, findings)

read_everything(300)  # what the interpreter itself imports at first use is not what this is about

WATCHED = ("exec", "compile", "import", "open", "subprocess", "os.", "pickle", "marshal", "ctypes", "socket", "code.")
seen, watching = [], False

def hook(event, arguments):
    if watching and event.startswith(WATCHED):
        seen.append(event)

sys.addaudithook(hook)
watching = True
read_everything(None)
watching = False
print("crashes", findings.crashes.total())
print("events", sorted(set(seen)))

seen.clear()
watching = True  # the hook is one that would have seen it
eval("1 + 1")
watching = False
print("control", sorted(set(seen)))
"""


def test_reading_hostile_payloads_names_and_lines_executes_imports_and_opens_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, "20261116", "3000"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["crashes 0", "events []", "control ['compile', 'exec']"]


# -- names -----------------------------------------------------------------------------------------

CODE = (
    "os.system", "builtins.eval", "builtins:eval", "subprocess.Popen", "eval", "exec", "__import__", "__class__",
    "__init__", "__globals__", "tests.security.trap.spring", "tests.security.trap:spring", "tests.security.trap",
    "probing_app.swallow", "tests.security.probing_app:swallow", "swallow.__globals__", "app.tasks",
    "swallow ", "Swallow", "\0swallow", "antigravity", "this", "windlass.worker.executors.child:find_function",
)  # fmt: skip


def test_a_job_named_after_code_is_put_aside_and_nothing_is_imported(probe: Probe) -> None:
    before = probe.ask("modules_of_the_runner"), probe.ask("modules_of_a_child")
    assert not {"antigravity", "this", "tests.security.trap"} & set(before[0])
    args = [b'["touch /tmp/never"]', b"{}", b'{"__class__":"os","__reduce__":["os.system",["id"]]}']
    sent = [
        probe.queue.enqueue(json.dumps({"task": name, "args": json.loads(args[n % 3])}).encode()).id
        for n, name in enumerate(CODE)
    ]
    for id, name in zip(sent, CODE, strict=True):
        record = probe.shop.wait_state(probe.queue.name, id, "scheduled")
        assert (record.failures, record.stalls) == (0, 0)
        assert record.message == f"a worker did not know the task {name}; the job waits for one that does"
    assert probe.queue.counts().parked == len(CODE)
    assert (probe.ask("modules_of_the_runner"), probe.ask("modules_of_a_child")) == before
    assert probe.worker.log.count("Runner ") == 0
    probe.queue.purge("scheduled")


def test_an_error_is_stored_as_text_and_never_made_anew(probe: Probe) -> None:
    id = probe.queue.enqueue(write_envelope("fall"), id="unkind").id
    record = probe.shop.wait_state(probe.queue.name, id, "dead")
    assert (record.message or "").startswith("tests.security.probing_app.Unkind: it cannot be\n")
    assert type(record.error()) is JobFailed
    with probe.shop.server.client() as client:
        key = queue_keys(probe.queue.name)[13]
        grave = client.hget(key, id)
        assert isinstance(grave, bytes)
        assert key.endswith(":dead_records")
        assert b"touch" not in grave
        assert b"\x80\x04" not in grave, "a pickle"
        # Somebody who can write there names whatever class he likes: it stays what was said.
        client.hset(key, id, grave.replace(b"tests.security.probing_app.Unkind", b"builtins.SystemExit(1); os.system"))
    forged = wait_until(lambda: probe.queue.get(id), "the forged record")
    assert type(forged.error()) is JobFailed
    assert "builtins.SystemExit(1); os.system: it cannot be" in str(forged.error())
    probe.queue.purge("dead")
