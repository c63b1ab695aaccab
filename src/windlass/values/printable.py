"""Text from a queue, made safe to show: it cannot move the cursor, change a colour, or pass for another line.

Whatever Python calls unprintable is escaped: control characters (C0, DEL and C1), marks that change the direction of
text, separators of lines, and surrogates.
"""

from __future__ import annotations

INDENT = "    "  # of all lines of a log message but the first, so that none passes for a message of its own


def in_one_line(text: str) -> str:
    """Escape text for one line: a line break becomes `\\n`."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def in_lines(text: str) -> str:
    """Escape text line by line, and indent all lines but the first. Tabs become spaces."""
    if text.isprintable():
        return text
    first, *more = map(in_one_line, text.expandtabs(4).rstrip("\n").split("\n"))
    return "\n".join([first, *(INDENT + line if line else "" for line in more)])


def in_json(text: str) -> str:
    """Escape what an encoder of JSON leaves as it is, such as C1 controls. The document means the same as before."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else _json_escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()


def _json_escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
