"""The result as tables: on a terminal, and (see markdown.py) in the docs."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers import WINDLASS

Rows = list[list[str]]

# figure, its number, heading, format
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
    ("naps_100", "10 ms jobs, 100 at a time", "rate", "jobs/s", "of_ideal", "of ideal"),
    ("sleeps_100", "10 ms sleeps, 100 at a time, and no queue", "rate", "jobs/s", "of_ideal", "of ideal"),
    ("naps_1000", "10 ms jobs, 1,000 at a time", "rate", "jobs/s", "of_ideal", "of ideal"),
    ("sleeps_1000", "10 ms sleeps, 1,000 at a time, and no queue", "rate", "jobs/s", "of_ideal", "of ideal"),
    ("prototype", "a drain that promises next to nothing", "rate", "jobs/s", None, ""),
    ("beside_prototype", "drain", "rate", "jobs/s", "of_prototype", "of that"),
    ("threaded", "no-op jobs in threads", "rate", "jobs/s", None, ""),
    ("forked", "no-op jobs in processes", "rate", "jobs/s", None, ""),
    ("deep", "drain with many more queued", "rate", "jobs/s", "of_shallow", "of the same with few"),
    ("far", "drain, 2 ms to the server and back", "rate", "jobs/s", "of_near", "of the same without"),
    ("fsync_bulk", "bulk enqueue, fsync", "rate", "jobs/s", "of_none", "of the same without"),
    ("fsync_drain", "drain, fsync", "rate", "jobs/s", "of_none", "of the same without"),
    ("with_results", "drain, results kept", "rate", "jobs/s", "of_plain", "of the same without"),
    ("with_progress", "drain, each job reports progress", "rate", "jobs/s", "of_plain", "of the same without"),
    ("with_signing", "drain, signed", "rate", "jobs/s", "of_plain", "of the same without"),
    ("with_encryption", "drain, encrypted", "rate", "jobs/s", "of_plain", "of the same without"),
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
    """Print the tables, then gaps, noise, versions, and how to repeat the run."""
    for title, rows in all_rows(result).items():
        console.print(_table(title, rows))
    for line in remarks(result):
        console.print(line, markup=False)
    console.print("How: " + " ".join(result["rules"]), style="dim")
    for line in (noise(result), versions(result), f"To repeat it: {command}"):
        console.print(line, style="dim")


def all_rows(result: dict[str, Any]) -> dict[str, Rows]:
    """The tables with content, by title: headings first."""
    ours = {key: of_all[WINDLASS] for key, of_all in result["figures"].items() if WINDLASS in of_all}
    found = {"Side by side": peer_rows(result), "Windlass over the best of the others": ratio_rows(result)}
    found["Windlass alone"] = alone_rows(ours)
    return {title: rows for title, rows in found.items() if len(rows) > 1}


def remarks(result: dict[str, Any]) -> list[str]:
    """Missing figures, and why."""
    lines = [NO_ORIGINAL] if "layout_workqueue" in result["figures"] else []
    lines += [f"Not there: {result['peers'][name]['title']}. {why}." for name, why in result["skipped"].items()]
    for failure in result["failed"]:
        title = result["peers"][failure["peer"]]["title"]
        lines.append(f"No figure: {title}, {failure['workload']}: {failure['why']}")
    return lines


def _table(title: str, rows: Rows) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in rows[0]:
        words = heading in ("", "does not promise")
        table.add_column(heading, justify="left" if words else "right", overflow="fold" if words else "ellipsis")
    for row in rows[1:]:
        table.add_row(*row, style="bold" if row[0] == "Windlass" else "")
    return table


def versions(result: dict[str, Any]) -> str:
    """The versions and the machine of the run."""
    used, machine = result["versions"], result["machine"]
    ours = f"windlass {used['windlass']}, python {used['python']}"
    return f"{ours}, {used['server']}, {machine['system']} with {machine['cores']} cores"


def with_one_by_one(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures, plus each peer's faster one of blocking and awaited."""
    faster: dict[str, Any] = {}
    for key in ("enqueue_blocking", "enqueue_awaited"):
        for name, figure in figures.get(key, {}).items():
            if name not in faster or figure["rate"] > faster[name]["rate"]:
                faster[name] = figure
    return {**figures, "enqueue_one": faster}


def peer_rows(result: dict[str, Any]) -> Rows:
    """All peers with their figures."""
    figures = with_one_by_one(result["figures"])
    alone = len(result["peers"]) == 1  # else what only one has is in another table
    columns = [column for column in _COLUMNS if len(figures.get(column[0], ())) > (0 if alone else 1)]
    rows = [["", *(heading for _, _, heading, _ in columns), "does not promise"]]
    for name, peer in result["peers"].items():
        cells = [_cell(figures[key].get(name), number, form) for key, number, _, form in columns]
        if name in result["skipped"]:
            cells = ["skipped"] + [""] * (len(columns) - 1) if columns else []
        rows.append([peer["title"], *cells, peer["gap"]])
    return rows


def _cell(figure: dict[str, Any] | None, number: str, form: str) -> str:
    if figure is None or number not in figure:
        return "–"
    return _mark(figure["is_quiet"]) + form.format(figure[number])


def _mark(is_quiet: bool) -> str:
    """Marks a figure that was measured while the machine was busy."""
    return "" if is_quiet else "~"


def ratio_rows(result: dict[str, Any]) -> Rows:
    """Figures of both: Windlass, the best other peer, and the ratio."""
    rows = [["", "Windlass", "best other", "", "times as good"]]
    for row in result["ratios"].values():
        best = result["peers"][row["best_peer"]]["title"]
        ours, theirs = (_mark(row[f"{whose}_is_quiet"]) + _short(row[whose]) for whose in ("windlass", "best"))
        both = _mark(row["windlass_is_quiet"] and row["best_is_quiet"])
        rows.append([row["title"], ours, theirs, best, f"{both}{row['ratio']:.2f} ×"])
    return rows


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def alone_rows(figures: dict[str, dict[str, Any]]) -> Rows:
    """Figures that only Windlass has."""
    rows = [["", "jobs/s", "of what"]]
    for key, title, number, unit, second, meaning in _ALONE:
        if key in figures:
            figure = figures[key]
            more = ""
            if second:
                more = f"{figure[second]:.2f} {meaning}" if "%" in meaning else f"{figure[second]:.0%} {meaning}"
            cell = _cell(figure, number, "{:,.1f}" if key == "idle_1" else "{:,.0f}")
            rows.append([title, cell if unit == "jobs/s" else f"{cell} {unit}", more])
    return rows


def noise(result: dict[str, Any]) -> str:
    """How noisy the run was."""
    told = result["noise"]
    text = f"{told['noisy_samples']} of {told['samples']} samples were taken while the machine was busy."
    if result["runs"] < 3:
        text += f" Rough: {result['runs']} round{'s' if result['runs'] > 1 else ''} instead of 3."
    return text
