"""`make chaos`: runs that inject faults into real processes and check that no promise was broken.

    python -m chaos                 the main chaos run: real processes, killed repeatedly
    python -m chaos smoke | long    the same run, shorter or longer
    python -m chaos NAME …          one of the other runs listed below; NAME --help describes it

Options go to the chosen run: `python -m chaos smoke --seed 7`; from make: `make chaos ARGS="smoke --seed 7"`.
Each run prints its seed, and exits with 1 if it found a problem.
"""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

from chaos import run

FOLDER = Path(__file__).parent
SIZES = {"smoke": run.SMOKE, "long": run.LONG}


def other_runs() -> dict[str, str]:
    """The other runs and their descriptions: modules here with a `main` function, packages with a `__main__`."""
    modules = [*FOLDER.glob("*.py"), *FOLDER.glob("*/__main__.py")]
    found = {}
    for path in sorted(modules):
        tree = ast.parse(path.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        name = path.parent.name if path.parent != FOLDER else path.stem
        if "main" in names and name not in ("__main__", "run"):
            found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def _help(others: dict[str, str]) -> str:
    listed = "\n".join(f"    {name:12}  {about}" for name, about in others.items())
    return f"{__doc__}\nOther runs:\n{listed}\n"


def main(arguments: list[str]) -> int:
    """Start the chosen run and return its exit code."""
    name, rest = (arguments[0], arguments[1:]) if arguments and arguments[0][:1] != "-" else ("", arguments)
    others = other_runs()
    if not name and rest in (["-h"], ["--help"]):
        print(_help(others))
        return run.main(rest)
    if not name or name in SIZES:
        return run.main(rest, SIZES.get(name, run.DEFAULT), f"python -m chaos {name}".strip())
    if name not in others:
        print(f"unknown run {name!r}\n{_help(others)}", file=sys.stderr)
        return 2
    sys.argv = [f"python -m chaos {name}", *rest]
    runpy.run_module(f"chaos.{name}", run_name="__main__", alter_sys=True)
    return 0  # such a module calls sys.exit with its own code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
