"""The result as an SVG chart with two panels of bars."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from bench.peers import WINDLASS

WIDTH, NAMES, VALUES = 760, 150, 80
BAR, GAP, HEAD = 16, 6, 34
_MODES = {"blocking": "one by one", "awaited": "one by one", "concurrent": "100 awaits", "bulk": "bulk"}
_STYLE = """\
<style>
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .head { font-weight: 600; font-size: 14px; }
  .note { font-size: 11px; fill: #6e7781; }
  .bar { fill: #9aa4af; }
  .ours { fill: #1f6feb; }
  @media (prefers-color-scheme: dark) {
    text { fill: #d0d7de; }
    .note { fill: #8b949e; }
    .bar { fill: #57606a; }
    .ours { fill: #58a6ff; }
  }
</style>
"""

Bar = tuple[str, float, str, bool]  # title, rate, note, is it ours


def draw(result: dict[str, Any]) -> str:
    """The chart of a result: the drain, and each one's fastest way to enqueue."""
    panels = [
        ("No-op drain, one worker process: jobs/s", _drain(result)),
        ("Enqueue, the fastest way each has: jobs/s", _enqueue(result)),
    ]
    drawn, y = [], 8
    for title, bars in panels:
        if bars:
            drawn.append(_panel(title, bars, y))
            y += HEAD + len(bars) * (BAR + GAP) + 14
    where = f"{result['versions']['server']}, {result['machine']['cores']} cores"
    note = f"{where}, one run. Rates differ from machine to machine; the ratios are what to compare."
    drawn.append(f'<text class="note" x="0" y="{y + 6}">{escape(note)}</text>\n')
    size = f'width="{WIDTH}" height="{y + 14}" viewBox="0 0 {WIDTH} {y + 14}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n{_STYLE}{"".join(drawn)}</svg>\n'


def _drain(result: dict[str, Any]) -> list[Bar]:
    rates = {name: (figure["rate"], "") for name, figure in result["figures"].get("drain", {}).items()}
    return _sorted(result, rates)


def _enqueue(result: dict[str, Any]) -> list[Bar]:
    rates: dict[str, tuple[float, str]] = {}
    for mode, note in _MODES.items():
        for name, figure in result["figures"].get(f"enqueue_{mode}", {}).items():
            rates[name] = max(rates.get(name, (0.0, "")), (figure["rate"], note))
    return _sorted(result, rates)


def _sorted(result: dict[str, Any], rates: dict[str, tuple[float, str]]) -> list[Bar]:
    bars = [(result["peers"][name]["title"], rate, note, name == WINDLASS) for name, (rate, note) in rates.items()]
    return sorted(bars, key=lambda bar: -bar[1])


def _panel(title: str, bars: list[Bar], y: int) -> str:
    longest, room = max(rate for _, rate, _, _ in bars), WIDTH - NAMES - VALUES - 70
    lines = [f'<text class="head" x="0" y="{y + 14}">{escape(title)}</text>\n']
    for number, (name, rate, note, ours) in enumerate(bars):
        top, length = y + HEAD - 8 + number * (BAR + GAP), max(1.0, room * rate / longest)
        base, end = top + BAR - 4, NAMES + length + 6
        lines.append(f'<text x="{NAMES - 8}" y="{base}" text-anchor="end">{escape(name)}</text>')
        kind, place = "ours" if ours else "bar", f'x="{NAMES}" y="{top}" width="{length:.1f}" height="{BAR}"'
        lines.append(f'<rect class="{kind}" {place} rx="2"/>')
        extra = f' <tspan class="note">{escape(note)}</tspan>' if note else ""
        lines.append(f'<text x="{end:.1f}" y="{base}">{rate:,.0f}{extra}</text>\n')
    return "".join(lines)
