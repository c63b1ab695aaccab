"""The import rule of ARCHITECTURE.md: groups import only from groups above them, and keys are spelled in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import windlass

ROOT = Path(windlass.__file__).parent
GROUPS = (
    (
        "plain values",
        {
            "errors",
            "job",
            "outcome",
            "retry",
            "times",
            "limits",
            "ids",
            "machine",
            "verdict",
            "envelope",
            "schedule",
            "sealing",
            "options",
            "discreet",
            "durability",
            "audit",
            "decode_guard",
        },
    ),
    ("the port", {"layout"}),
    ("behind the port", {"layouts", "transport", "embedded"}),
    (
        "what runs",
        {
            "gathering",
            "queue",
            "handle",
            "app",
            "task",
            "declaration",
            "signature",
            "arguments",
            "registry",
            "running",
            "scheduler",
            "handover",
            "fleet",
            "doctor",
            "worker",
        },
    ),
    ("the outside", {"benching", "cli", "demo", "stdio"}),
)
RANK = {name: rank for rank, (_, names) in enumerate(GROUPS) for name in names}


def imports(path: Path) -> set[str]:
    """The groups' modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {module.split(".")[1] for module in modules if module.startswith("windlass.")}
    return found


def test_every_module_has_a_place_in_the_table() -> None:
    modules = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {name for name in modules if not name.startswith("_")} == set(RANK)


def test_groups_import_only_from_groups_above() -> None:
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for other in imports(path) if not own.startswith("_") else ():
            assert RANK[other] <= RANK[own], f"{path.relative_to(ROOT)} imports {other}, which lies below it"


def test_the_architecture_page_has_the_same_groups() -> None:
    page = (ROOT.parent.parent / "ARCHITECTURE.md").read_text()
    for group, names in GROUPS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {group} |")]
        assert {name for name in names if re.search(rf"\b{name}\b", row)} == names


def test_keys_are_spelled_in_one_place() -> None:
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).as_posix() != "layouts/native/keys.py":
            assert "windlass:{" not in path.read_text(), f"{path} spells a key"


def test_no_file_is_called_after_nothing() -> None:
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "common", "helpers", "base", "types", "constants"}
