"""The result as tables for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers import WINDLASS

# figure, number of it, heading, how it is written
_COLUMNS = (
    ("enqueue_one", "rate", "enqueue/s\none by one", "{:,.0f}"),
    ("enqueue_concurrent", "rate", "100 awaits", "{:,.0f}"),
    ("enqueue_bulk", "rate", "bulk", "{:,.0f}"),
    ("drain", "rate", "drain/s", "{:,.0f}"),
    ("drain", "client_us", "worker\nµs/job", "{:,.0f}"),
    ("drain", "server_us", "server\nµs/job", "{:,.0f}"),
    ("drain", "commands", "commands\n/job", "{:,.1f}"),
    ("naps_100", "rate", "10 ms\njobs/s", "{:,.0f}"),
    ("naps_1000", "rate", "1,000 at\na time", "{:,.0f}"),
    ("latency", "p50", "pick-up\np50 ms", "{:.1f}"),
    ("latency", "p99", "p99 ms", "{:.1f}"),
    ("memory", "bytes", "bytes\n/job", "{:,.0f}"),
    ("idle_1", "commands_per_second", "idle\ncmds/s", "{:,.1f}"),
)
_ALONE = (
    ("naps_1000", "10 ms jobs, 1,000 at a time", "rate", "jobs/s", "of_ideal", "of ideal"),
    ("threaded", "no-op jobs in threads", "rate", "jobs/s", None, ""),
    ("forked", "no-op jobs in processes", "rate", "jobs/s", None, ""),
    ("deep", "drain with many more queued", "rate", "jobs/s", "of_shallow", "of the same with few"),
    ("far", "drain, 2 ms to the server and back", "rate", "jobs/s", "of_near", "of the same without"),
    ("fsync_bulk", "bulk enqueue, fsync", "rate", "jobs/s", "of_none", "of the same without"),
    ("fsync_drain", "drain, fsync", "rate", "jobs/s", "of_none", "of the same without"),
    ("idle_1", "one idle worker", "commands_per_second", "commands/s", "core_percent", "% of a core"),
    (
        "idle_200",
        "200 idle workers, in one process",
        "commands_per_second",
        "commands/s",
        "core_percent",
        "% of a core",
    ),
)
NO_ORIGINAL = "Worqr, Queasy, hworker and the Processor Job Queue: no Python original to stand beside their layouts."


def show(result: dict[str, Any], command: str, console: Console) -> None:
    """Print the tables, then what is missing, how noisy it was, by which rules, and how to repeat it."""
    figures = result["figures"]
    console.print(_peers(result))
    if result["ratios"]:
        console.print(_ratios(result))
    alone = _alone({key: of_all[WINDLASS] for key, of_all in figures.items() if WINDLASS in of_all})
    if alone.row_count:
        console.print(alone)
    if "layout_workqueue" in figures:
        console.print(NO_ORIGINAL)
    for name, why in result["skipped"].items():
        console.print(f"Not there: {result['peers'][name]['title']}. {why}.")
    for failure in result["failed"]:
        title = result["peers"][failure["peer"]]["title"]
        console.print(f"No figure: {title}, {failure['workload']}: {failure['why']}", markup=False)
    console.print("How: " + " ".join(result["rules"]), style="dim")
    console.print(_noise(result), style="dim")
    console.print(_versions(result), style="dim")
    console.print(f"To repeat it: {command}", style="dim")


def _versions(result: dict[str, Any]) -> str:
    versions, machine = result["versions"], result["machine"]
    ours = f"windlass {versions['windlass']}, python {versions['python']}"
    return f"{ours}, {versions['server']}, {machine['system']} with {machine['cores']} cores"


def with_one_by_one(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures, and among them the faster of blocking and awaited for each peer."""
    faster: dict[str, Any] = {}
    for key in ("enqueue_blocking", "enqueue_awaited"):
        for name, figure in figures.get(key, {}).items():
            if name not in faster or figure["rate"] > faster[name]["rate"]:
                faster[name] = figure
    return {**figures, "enqueue_one": faster}


def _peers(result: dict[str, Any]) -> Table:
    figures = with_one_by_one(result["figures"])
    alone = len(result["peers"]) == 1  # else what only one has is in another table
    columns = [column for column in _COLUMNS if len(figures.get(column[0], ())) > (0 if alone else 1)]
    table = Table(title="Side by side", title_justify="left", title_style="bold")
    table.add_column("")
    for _, _, heading, _ in columns:
        table.add_column(heading, justify="right")
    table.add_column("does not promise", overflow="fold")
    for name, peer in result["peers"].items():
        cells = [_cell(figures[key].get(name), number, form) for key, number, _, form in columns]
        if name in result["skipped"]:
            cells = ["skipped"] + [""] * (len(columns) - 1) if columns else []
        table.add_row(peer["title"], *cells, peer["gap"], style="bold" if name == WINDLASS else "")
    return table


def _cell(figure: dict[str, Any] | None, number: str, form: str) -> str:
    if figure is None or number not in figure:
        return "–"
    return ("" if figure["is_quiet"] else "~") + form.format(figure[number])


def _ratios(result: dict[str, Any]) -> Table:
    table = Table(title="Windlass over the best of the others", title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("Windlass", "best other", "", "times as good"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in result["ratios"].values():
        best = result["peers"][row["best_peer"]]["title"]
        table.add_row(row["title"], _short(row["windlass"]), _short(row["best"]), best, f"{row['ratio']:.2f} ×")
    return table


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def _alone(figures: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Windlass alone", title_justify="left", title_style="bold")
    for heading, justify in (("", "left"), ("", "right"), ("", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for key, title, number, unit, second, meaning in _ALONE:
        if key in figures:
            figure = figures[key]
            more = ""
            if second:
                more = f"{figure[second]:.2f} {meaning}" if "%" in meaning else f"{figure[second]:.0%} {meaning}"
            table.add_row(title, f"{_cell(figure, number, '{:,.1f}' if key == 'idle_1' else '{:,.0f}')} {unit}", more)
    return table


def _noise(result: dict[str, Any]) -> str:
    noise = result["noise"]
    text = f"{noise['noisy_samples']} of {noise['samples']} samples were taken while the machine was busy."
    if result["runs"] < 3:
        text += f" Rough: {result['runs']} round{'s' if result['runs'] > 1 else ''} instead of 3."
    return text
