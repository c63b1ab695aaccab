"""The run as a live picture in a terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from windlass.ops.demo import lines
from windlass.ops.demo.frame import WATCHERS, Event, Frame, ProcessView
from windlass.ops.demo.result import Result

MAX_WIDTH = 100
MAX_EVENTS, MIN_EVENTS = 8, 4
OTHER_ROWS = 13  # of the picture, without the processes, the events and the padding
MAX_RUNNING = 20  # jobs in a full bar: more than the coroutines and threads of the runner
SPARKS = "▁▂▃▄▅▆▇█"
DONE, RUNNING, READY, SCHEDULED = "green", "yellow", "bright_blue", "bright_black"
STATES = {
    "starting": ("·", "dim"),
    "working": ("●", "green"),
    "idle": ("○", "dim"),
    "watching": ("◉", "cyan"),
    "ended": ("·", "dim"),
    "killed": ("✖", "bold red"),
}
TOPICS = {"kill -9": "bold red", "recover": "bold green", "stop": "bold red", "poison": "bold red"}


class Screen:
    """A picture that each frame redraws; the last one stays."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._paces: deque[float] = deque(maxlen=24)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, frame: Frame) -> None:
        """Draw this frame."""
        self._live.update(self.draw(frame), refresh=True)

    def draw(self, frame: Frame) -> RenderableType:
        """The picture of this frame, not higher than the terminal."""
        self._events.extend(frame.events)
        self._paces.append(frame.pace)
        width = min(MAX_WIDTH, self._console.width)
        inner = width - 6
        free = self._console.height - OTHER_ROWS - 1  # the cursor needs the last row
        rows = len(frame.processes)
        events = max(MIN_EVENTS, min(MAX_EVENTS, free - rows))
        return Panel(
            Group(
                _all_jobs(frame, inner),
                _legend(frame),
                Text(),
                _processes(frame.processes, inner),
                Text(),
                _two_sides(_parts(frame), self._pace(frame)),
                Text(),
                *self._last_events(events),
            ),
            title="[bold]windlass demo[/]",
            subtitle=f"[dim]{frame.server}[/]" if frame.server else None,
            title_align="left",
            subtitle_align="right",
            box=box.ROUNDED,
            border_style="cyan",
            padding=(1 if free >= rows + events + 2 else 0, 2),
            width=width,
        )

    def _pace(self, frame: Frame) -> RenderableType:
        top = max(*self._paces, 1.0)
        sparks = "".join(SPARKS[round(pace / top * (len(SPARKS) - 1))] for pace in self._paces)
        return Group(
            Text.assemble((f"{frame.pace:,.0f}", "bold"), " jobs/s", justify="right"),
            Text(sparks, style=DONE, justify="right"),
            Text(f"{frame.at:.1f} s", style="dim", justify="right"),
        )

    def _last_events(self, rows: int) -> list[Text]:
        shown = [
            Text.assemble(
                (f"{event.at:5.1f} s  ", "dim"),
                (f"{event.topic:<8} ", TOPICS.get(event.topic, "cyan")),
                event.text,
                overflow="ellipsis",
                no_wrap=True,
            )
            for event in list(self._events)[-rows:]
        ]
        return shown + [Text()] * (rows - len(shown))  # keeps the height of the picture


def _all_jobs(frame: Frame, width: int) -> Text:
    """One bar for all jobs: its parts change, its length does not."""
    parts = [(frame.done, DONE), (frame.running, RUNNING), (frame.ready, READY), (frame.scheduled, SCHEDULED)]
    return _bar(parts, frame.steps, width, ink="█")


def _bar(parts: Iterable[tuple[int, str]], whole: int, width: int, *, ink: str = "━", empty: str = " ") -> Text:
    bar, drawn, total = Text(no_wrap=True), 0, 0
    for amount, style in parts:
        total += amount
        reach = min(width, round(total / whole * width))
        bar.append(ink * (reach - drawn), style)
        drawn = max(drawn, reach)
    return bar.append(empty * (width - drawn), "bright_black")


def _legend(frame: Frame) -> Text:
    legend = Text(no_wrap=True)
    for name, amount, style in (
        ("done", frame.done, DONE),
        ("running", frame.running, RUNNING),
        ("ready", frame.ready, READY),
        ("scheduled", frame.scheduled, SCHEDULED),
        ("dead", frame.dead, "red"),
    ):
        if name != "dead" or amount:
            legend.append("■ ", style).append(f"{name} ", "dim").append(f"{amount:,}".ljust(8))
    return legend


def _processes(processes: Sequence[ProcessView], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    table.add_column("worker", no_wrap=True)
    table.add_column("process", justify="right", style="dim", no_wrap=True)
    table.add_column("", no_wrap=True, width=10)
    table.add_column("runs", justify="right", width=4)
    table.add_column("", ratio=1, no_wrap=True)
    table.add_column("done", justify="right", no_wrap=True)
    table.add_column("killed", justify="right", no_wrap=True)
    for process in processes:
        table.add_row(*_process(process, width - 60))
    return table


def _process(process: ProcessView, room: int) -> list[RenderableType]:
    mark, style = STATES[process.state]
    gone = process.state == "killed"
    works = process.role not in WATCHERS
    return [
        Text(process.role, style="strike dim" if gone else ""),
        str(process.pid) if process.pid else "",
        Text(f"{mark} {process.state}", style=style),
        Text(str(process.running) if works else "", style="bold red" if gone and process.running else ""),
        _bar([(process.running, "red" if gone else RUNNING)], MAX_RUNNING, max(0, room)),
        f"{process.done:,}" if works else "",
        Text(f"×{process.killed}", style="bold red") if process.killed else "",
    ]


def _parts(frame: Frame) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, done, whole in frame.parts:
        table.add_row(
            Text(name, style="dim"),
            _bar([(done, DONE)], max(whole, 1), 20, empty="━"),
            Text(f"{done:,}/{whole:,}", style="green" if done == whole else ""),
        )
    return table


def _two_sides(left: RenderableType, right: RenderableType) -> Table:
    table = Table.grid(expand=True)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    table.add_row(left, right)
    return table


def print_result(console: Console, result: Result) -> None:
    """Print the account, the paths of the files, and a first program."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    styles = {"crashes": "bold red", "kills": "bold red", "lost": "bold red" if result.account.lost else "bold green"}
    for what, amount, meaning in lines.rows(result):
        table.add_row(what, Text(amount, style=styles.get(what, "bold")), meaning)
    mark, style = ("✔", "bold green") if result.ok else ("✖", "bold red")
    width = min(MAX_WIDTH, console.width)
    console.print()
    console.print(Text(f"  {mark} {lines.summary(result)}", style=style))
    console.print()
    console.print(Padding(table, (0, 0, 0, 4)), width=width)
    console.print()
    for line in lines.where_next(result):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    console.print(Rule("your first job", align="left", style="cyan"), width=width)
    console.print(Padding(Syntax(lines.FIRST_JOB, "python", theme="ansi_dark", background_color="default"), (1, 4)))
