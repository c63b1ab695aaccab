"""What was measured, as tables for people and as one JSON value."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.calm import Calm

PLAIN, FSYNC = "no_persistence", "fsync_always"


def build(
    figures: dict[str, Any], memory: dict[str, float], server: dict[str, str], fsync_seconds: float, calm: Calm
) -> dict[str, Any]:
    """Everything in one value, with what can only be said of both servers together."""
    cases = [case for of_server in figures.values() for case in of_server.values()]
    return {
        "versions": {
            "windlass": version("windlass"),
            "python": platform.python_version(),
            "redis-py": version("redis"),
            "hiredis": version("hiredis"),
            **server,
        },
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "figures": figures,
        "fsync_ratio": {key: case["of_first"] for key, case in figures[FSYNC].items()},
        "fsync_us": 1e6 * fsync_seconds,
        "memory": memory,
        "noise": {
            "calibration_spread": calm.spread,
            "noisy_rounds": sum(case["noisy_rounds"] for case in cases),
            "cases_without_quiet_rounds": sum(not case["is_quiet"] for case in cases),
        },
    }


def show(result: dict[str, Any], command: str, console: Console) -> None:
    """Print the tables, then how noisy it was, which versions these were, and how to repeat it."""
    figures, memory = result["figures"], result["memory"]
    console.print(_table("Without persistence", figures[PLAIN], None))
    console.print(_table("With appendonly yes and appendfsync always", figures[FSYNC], result["fsync_ratio"]))
    console.print(
        f"Memory: {memory['bytes_per_job']:.0f} bytes of the server for one queued job, "
        f"{memory['bare_bytes_per_job']:.0f} for one element of a bare list ({memory['jobs']:,.0f} of each)."
    )
    console.print(f"Disk: a write of 4 kB and its fsync take {result['fsync_us']:.0f} µs where the log is.")
    console.print(_noise(result["noise"]), style="dim")
    console.print(", ".join(f"{name} {text}" for name, text in _spoken(result).items()), style="dim")
    console.print(f"To repeat it: {command}", style="dim")


def _table(title: str, cases: dict[str, Any], fsync_ratio: dict[str, float] | None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    table.add_column("")
    headings = [
        "jobs/s",
        "bare/s",
        "of bare",
        "client µs",
        "server µs",
        "bare server µs",
        "client CPU",
        "commands/call",
    ]
    for heading in headings + (["of no fsync"] if fsync_ratio else []):
        table.add_column(heading, justify="right")
    for key, case in cases.items():
        ours, bare = case["ours"], case["bare"]
        row = [
            case["title"],
            f"{ours['jobs_per_second']:,.0f}",
            f"{bare['jobs_per_second']:,.0f}",
            ("" if case["is_quiet"] else "~ ") + f"{case['ratio']:.0%}",
            f"{ours['client_cpu_us_per_job']:.1f}",
            f"{ours['server_cpu_us_per_job']:.1f}",
            f"{bare['server_cpu_us_per_job']:.1f}",
            f"{ours['client_share_of_cpu']:.0%}",
            f"{ours['commands_per_call']:.1f}",
        ]
        table.add_row(*row, *([f"{fsync_ratio[key]:.0%}"] if fsync_ratio else []))
    return table


def _noise(noise: dict[str, Any]) -> str:
    if not noise["noisy_rounds"]:
        return "The machine was quiet."
    text = f"The machine was noisy in {noise['noisy_rounds']} rounds"
    if noise["cases_without_quiet_rounds"]:
        return text + ", and rows marked ~ are made of such: trust their ratios a little, their rates not at all."
    return text + "; they were discarded and taken anew."


def _spoken(result: dict[str, Any]) -> dict[str, Any]:
    versions = dict(result["versions"])
    server, allocator = versions.pop("server"), versions.pop("allocator")
    name, _, number = server.partition(" ")
    machine = result["machine"]
    return {**versions, name: f"{number} ({allocator})", machine["system"]: f"with {machine['cores']} cores"}
