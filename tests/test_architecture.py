"""The import rule of ARCHITECTURE.md: groups import only from groups above them, and keys are spelled in one place.

One more rule is about the tests themselves: only one module of theirs uses private names of the product.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import windlass

ROOT = Path(windlass.__file__).parent

# Each group may import from those before it, and from itself. A group is a folder, or some modules at the top.
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("errors", ("errors",)),
    ("values", ("values",)),
    ("storage", ("storage",)),
    ("tasks", ("tasks",)),
    ("transport", ("transport",)),
    ("embedded", ("embedded",)),
    ("doctor", ("doctor",)),
    ("the public face", ("queue", "handle", "task", "schedules", "app")),
    ("worker", ("worker",)),
    ("stdio", ("stdio",)),
    ("ops", ("ops",)),
    ("cli", ("cli",)),
)

# The same inside a group: each part imports only from those before it.
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "storage": (("storage.port",), ("storage.capabilities", "storage.formats"), ("storage.lua",),
                ("storage.native", "storage.compat"), ("storage.layouts",)),
    "worker": (
        ("worker.process_info", "worker.output", "worker.app_loading", "worker.server_check", "worker.presence",
         "worker.tracebacks"),
        ("worker.app_facts", "worker.logs", "worker.settings", "worker.reclaim", "worker.attempt"),
        ("worker.heartbeat", "worker.cancellations", "worker.ipc"),
        ("worker.executors",),
        ("worker.runner",),
        ("worker.in_process", "worker.supervisor"),
    ),
    "worker.runner": (
        ("worker.runner.concurrency", "worker.runner.outbox", "worker.runner.schedule_ticks",
         "worker.runner.job_services", "worker.runner.outcome_log"),
        ("worker.runner.pending_outcomes", "worker.runner.poll_timer", "worker.runner.held_leases",
         "worker.runner.schedule_timer", "worker.runner.parked_tasks"),
        ("worker.runner.queue_consumer",),
        ("worker.runner.wakeups", "worker.runner.upkeep"),
        ("worker.runner.runner",),
        ("worker.runner.main",),
    ),
}  # fmt: skip

# Modules that have to know each other. Each has its reason; there are to be no more.
EXCEPTIONS = {
    ("errors", "values.job"): "the annotation of an error's receipt",
    ("app", "worker.in_process"): "app.worker() makes the worker inside another program; imported when it is called",
    ("app", "worker.settings"): "the same",
    ("worker.app_loading", "app"): "only to check what was loaded; imported when it is called",
}


def module_of(path: Path) -> str:
    """`worker.runner.runner` for worker/runner/runner.py; a package is called after its folder."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name[0] != "_"}


def imports(path: Path) -> Iterator[str]:
    """The modules of Windlass that a file imports: at its top, in functions, and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("windlass."):
            module = str(node.module).removeprefix("windlass.")
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner in MODULES else module
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("windlass.") for alias in node.names if "windlass." in alias.name)


EDGES = {
    name: {other for other in imports(path) if other != name and (name, other) not in EXCEPTIONS}
    for name, path in MODULES.items()
}


def place(module: str, groups: tuple[tuple[str, ...], ...]) -> int | None:
    """Which of the groups a module is in."""
    for rank, prefixes in enumerate(groups):
        if any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes):
            return rank
    return None


def assert_one_way(groups: tuple[tuple[str, ...], ...], modules: set[str]) -> None:
    for module in modules:
        own = place(module, groups)
        for other in EDGES[module] & modules:
            rank = place(other, groups)
            if own is not None and rank is not None:
                assert rank <= own, f"{module} imports {other}, which lies below it"


def test_every_module_has_a_place_in_the_table() -> None:
    groups = tuple(prefixes for _, prefixes in GROUPS)
    assert {module for module in MODULES if place(module, groups) is None} == set()
    names = {name for prefixes in groups for name in prefixes}
    assert names == {module.partition(".")[0] for module in MODULES}


def test_groups_import_only_from_groups_above() -> None:
    assert_one_way(tuple(prefixes for _, prefixes in GROUPS), set(MODULES))


@pytest.mark.parametrize("group", PARTS)
def test_parts_of_a_group_import_only_from_parts_above(group: str) -> None:
    modules = {module for module in MODULES if module.startswith(group + ".")}
    assert {module for module in modules if place(module, PARTS[group]) is None} == set()
    assert_one_way(PARTS[group], modules)


def test_no_two_modules_import_each_other_not_even_for_types() -> None:
    packages = {name for name, path in MODULES.items() if path.name == "__init__.py"}
    graph = {name: EDGES[name] - packages for name in MODULES if name not in packages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' → '.join(error.args[1])}")


def test_exceptions_are_still_needed() -> None:
    found = {(name, other) for name, path in MODULES.items() for other in imports(path)}
    assert set(EXCEPTIONS) <= found


def test_the_architecture_page_has_the_same_groups() -> None:
    page = (ROOT.parent.parent / "ARCHITECTURE.md").read_text()
    places = [page.find(f"\n| {group} |") for group, _ in GROUPS]
    assert -1 not in places
    assert places == sorted(places), "in this order"


def test_keys_are_spelled_in_one_place() -> None:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).as_posix() != "storage/native/keys.py":
            assert "windlass:{" not in path.read_text(), f"{path} spells a key"


def test_no_file_is_called_after_nothing() -> None:
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "common", "helpers", "types", "constants"}


def test_users_import_from_the_top() -> None:
    """At the top there is only what a user imports."""
    names = {path.stem for path in ROOT.glob("*.py")}
    assert names == {"__init__", "__main__", "app", "queue", "task", "handle", "schedules", "errors"}


def test_only_the_transport_and_the_adapters_know_redis() -> None:
    allowed = re.compile(r"transport/|doctor/facts|ops/benchmark/|embedded/")
    for path in ROOT.rglob("*.py"):
        if not allowed.match(path.relative_to(ROOT).as_posix()):
            assert not re.search(r"^(from|import) redis\b", path.read_text(), re.MULTILINE), path


# -- the tests -------------------------------------------------------------------------------------------------

TESTS = Path(__file__).parent
INTERNALS = "support/internals.py"
PUBLIC_BY_CUSTOM = {"_exit", "_replace", "_asdict", "_fields", "_make"}  # of `os`, and of named tuples


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_BY_CUSTOM


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def defined_in(nodes: Sequence[ast.AST]) -> set[str]:
    """The functions, classes and attributes that a file defines."""
    names = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    stored = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return names | {node.attr for node in stored if is_own(node.value)}


def names_imported(node: ast.AST) -> list[str]:
    """Each part of a name that an import names."""
    match node:
        case ast.ImportFrom(module, names):
            return [*(module or "").split("."), *(alias.name for alias in names)]
        case ast.Import(names):
            return [part for alias in names for part in alias.name.split(".")]
    return []


def names_reached(node: ast.AST) -> list[str]:
    """The attributes of something else that a node names, also as the text in `setattr(x, "name", y)`."""
    match node:
        case ast.Attribute(value, attr) if not is_own(value):
            return [attr]
        case ast.Call(ast.Name(called) | ast.Attribute(_, called), args) if called in ("getattr", "setattr", "delattr"):
            texts = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            return [part for text in texts for part in text.split(".")]
    return []


def private_uses(source: str) -> list[tuple[int, str]]:
    """Line and name of each private name that a file imports, or reaches without defining it."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr | ast.stmt)]
    imported = [(node.lineno, name) for node in nodes for name in names_imported(node) if is_private(name)]
    reached = [(node.lineno, name) for node in nodes for name in names_reached(node) if is_private(name)]
    own = defined_in(nodes) if reached else set()
    return imported + [(line, name) for line, name in reached if name not in own]


def test_only_one_module_of_the_tests_uses_private_names() -> None:
    paths = [path for path in TESTS.rglob("*.py") if path.relative_to(TESTS).as_posix() != INTERNALS]
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}: {name}"
        for path in sorted(paths)
        for line, name in private_uses(path.read_text())
    ]
    assert not found, f"private names belong into tests/{INTERNALS}, behind a function:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("queue._layout.can", "_layout"),
        ("queue._layout = 1", "_layout"),
        ("from windlass.worker.attempt import _bounded", "_bounded"),
        ("import windlass._secret", "_secret"),
        ("_secret = 1\nfrom windlass import _secret", "_secret"),
        ("def test() -> None:\n    from windlass import _secret", "_secret"),
        ("class A:\n    def see(self) -> None:\n        self.queue._layout", "_layout"),
        ("monkeypatch.setattr(threads, '_awaited', None)", "_awaited"),
        ("monkeypatch.setattr('windlass.app._apps', None)", "_apps"),
        ("getattr(queue, '_layout')", "_layout"),
    ],
)
def test_a_private_name_is_found(source: str, name: str) -> None:
    assert private_uses(source) == [(source.count("\n") + 1, name)]


@pytest.mark.parametrize(
    "source",
    [
        "os._exit(9)",
        "pair._replace(at=1)",
        "windlass.__version__",
        "class A:\n    def see(self, other: A) -> None:\n        self._seen = other._seen",
        "class A:\n    def _see(self) -> None: ...\n\nA()._see()",
    ],
)
def test_a_name_of_the_same_file_and_a_public_one_may_be_used(source: str) -> None:
    assert private_uses(source) == []
