"""Text that cannot control a terminal: on one line, on several, and in JSON."""

from __future__ import annotations

import json
import sys
import unicodedata

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from windlass.values.printable import in_json, in_lines, in_one_line

# Categories that move the cursor, break a line, change a direction, or cannot be written: all but letters and the like.
UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def harmless(text: str, breaks: str = "") -> bool:
    return not any(unicodedata.category(char) in UNSAFE for char in text if char not in breaks)


def test_every_character_that_controls_something_is_escaped() -> None:
    unsafe = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in UNSAFE]
    assert {"\x1b", "\x07", "\x9b", "\x7f", "\r", "\u2028", "\u202e", "\u2066", "\udc80"} <= set(unsafe)
    assert all(in_one_line(char).isprintable() for char in unsafe)
    assert in_one_line("plain é 漢 ✗") == "plain é 漢 ✗"
    assert in_one_line("a\nb\x1b") == "a\\nb\\x1b"


@given(st.text())
def test_lines_below_the_first_are_indented(text: str) -> None:
    shown = in_lines(text)
    assert harmless(shown, "\n")
    assert all(not line or line.startswith("    ") for line in shown.split("\n")[1:])


def test_a_traceback_stays_readable() -> None:
    assert in_lines("ValueError: no\nTraceback:\n\n  File x\n") == "ValueError: no\n    Traceback:\n\n      File x"


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_a_json_document_means_the_same_and_is_harmless(value: dict[str, str | int]) -> None:
    for text in (msgspec.json.encode(value).decode(), json.dumps(value, ensure_ascii=False, indent=1)):
        shown = in_json(text)
        assert harmless(shown, "\n")
        assert json.loads(shown) == value


def test_characters_beyond_the_basic_plane_are_escaped_as_two() -> None:
    assert in_json('"\U000e0001"') == '"\\udb40\\udc01"'
