"""The documents are true: every snippet runs, every link leads somewhere, every row names a test that serves it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner

from tests.support.server import Server
from windlass import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/*.md"), *ROOT.glob("src/**/*.md")])
CONFORMANCE = ROOT / "docs" / "conformance.md"
DOCUMENTS = {"W": "worqr", "R": "workqueue", "Q": "queasy", "H": "hworker", "P": "processor"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def marked_tests(mark: str) -> dict[str, set[str]]:
    """Row id → the tests that carry it in a mark, as `path::name`; of layouts, only rows of their own document."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.glob("tests/**/test_*.py"):
        tree = ast.parse(path.read_text())
        of_all = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for decorator in (*of_all, *node.decorator_list):
                    for row in rows_of(decorator, mark):
                        found[row].add(f"{path.relative_to(ROOT)}::{node.name}")
    return found


def _is_pytestmark(node: ast.Assign) -> bool:
    return [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def rows_of(decorator: ast.expr, mark: str) -> list[str]:
    """The rows of a `@pytest.mark.serves(…)` or `@pytest.mark.speaks(layout, …)`."""
    if not (isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{mark}"):
        return []
    words = [ast.literal_eval(argument) for argument in decorator.args]
    if mark == "serves":
        return words
    layout, *rows = words
    assert layout in DOCUMENTS.values(), f"there is no layout {layout}"
    return [row for row in rows if DOCUMENTS[row[0]] == layout]


def conformance_rows() -> dict[str, tuple[str, str]]:
    """Row id → its last two cells: natively, and in the layout of its own document."""
    rows = re.findall(r"^\| ([WRQHP]\d+) \|.*?\| ([^|]*?) \| ([^|]*?) \|$", CONFORMANCE.read_text(), re.MULTILINE)
    return {row: (native, layout) for row, native, layout in rows}


def test_the_conformance_table_has_every_row_once() -> None:
    sizes = {"W": 14, "R": 9, "Q": 15, "H": 8, "P": 9}
    expected = [f"{letter}{n}" for letter, count in sizes.items() for n in range(1, count + 1)]
    listed = re.findall(r"^\| ([WRQHP]\d+) \|", CONFORMANCE.read_text(), re.MULTILINE)
    assert listed == expected


@pytest.mark.parametrize(("mark", "column"), [("serves", 0), ("speaks", 1)])
def test_every_row_names_the_tests_that_prove_it_or_is_open(mark: str, column: int) -> None:
    proving = marked_tests(mark)
    for row, cells in conformance_rows().items():
        cell = cells[column]
        named = set(re.findall(r"`(tests/\S+?::\w+)`", cell))
        if not named:
            assert cell.startswith(("open", "in its layout only")), f"{row} names no test and is not shown as open"
            assert not proving[row], f"{row} is shown as open, but {proving[row]} prove it"
        assert named <= proving[row], f"{row} names tests that do not prove it: {named - proving[row]}"


def test_no_test_proves_a_row_that_does_not_exist() -> None:
    assert set(marked_tests("serves")) | set(marked_tests("speaks")) <= set(conformance_rows())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "name", ["README.md", "docs/tasks.md", "docs/worker.md", "docs/layouts.md", "docs/security.md"]
)
def test_python_snippets_run(server: Server, client: redis.Redis, name: str) -> None:
    snippets = [code for language, code in FENCE.findall((ROOT / name).read_text()) if language == "python"]
    assert snippets
    for code in snippets:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"WINDLASS_URL": server.url},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize(("name", "begins"), [("first_job.py", "import asyncio"), ("raw_queue.py", "from windlass")])
def test_what_the_readme_shows_is_the_example(name: str, begins: str) -> None:
    example = (ROOT / "examples" / name).read_text()
    assert example[example.index(begins) :].strip() in (ROOT / "README.md").read_text()


def test_the_shop_in_the_readme_is_the_one_that_the_demo_runs() -> None:
    shop = (ROOT / "examples" / "shop" / "shop.py").read_text()
    (shown,) = re.findall(r"^```python skip\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert shown.strip() in shop


def test_commands_in_the_documents_exist() -> None:
    """`make x` is a target, `windlass x y` is a command with a help page."""
    makefile = (ROOT / "Makefile").read_text()
    commands: set[tuple[str, ...]] = set()
    for page in PAGES:
        text = page.read_text()
        for language, code in FENCE.findall(text):
            if language in ("", "sh", "console"):
                for target in re.findall(r"^\s*make (\w+)", code, re.MULTILINE):
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
                for words in re.findall(r"^\s*windlass ([a-z ]+)", code, re.MULTILINE):
                    commands.add(tuple(words.split()))
    for words in commands:
        done = CliRunner().invoke(cli.main, [*words, "--help"])
        assert done.exit_code == 0, f"windlass {' '.join(words)}: {done.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_lines_of_prose_are_at_most_120_characters_long(page: Path) -> None:
    """Tables, code and what `make bench` writes may be longer."""
    other = r"^ *```.*?^ *```|^<!-- bench: in .*?^<!-- bench: end -->"
    prose = re.sub(other, lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = enumerate(prose.split("\n"), 1)
    assert [number for number, line in lines if len(line) > 120 and not re.match(r" *\||    ", line)] == []


def test_no_page_has_a_hole() -> None:
    for page in PAGES:
        assert not re.search(r"^(FIGURES|TODO|TBD|FIXME)\b", page.read_text(), re.MULTILINE), f"{page.name} has a hole"


def test_every_make_target_explains_itself() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for target in ("demo", "test", "lint", "types", "bench", "chaos", "docs"):
        assert f"make {target}" in shown


def test_the_repo_is_about_the_project_alone() -> None:
    """No machine paths, no registry addresses."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".md", ".py", ".toml", ".txt", ".lua", "") and path.is_file():
            text = path.read_text(errors="replace")
            for stray in ("/" + "root/", "index" + "-url", '"resolved"' + ": "):
                assert stray not in text, f"{name} has {stray!r}"
