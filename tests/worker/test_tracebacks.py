"""Errors as text: within their room, whatever they are, and without values of variables."""

from __future__ import annotations

import linecache
import traceback

import pytest

from windlass.values.validation import MAX_MESSAGE
from windlass.worker.tracebacks import describe, error_in_child, error_text, format_error, user_traceback


def caught(source: str) -> BaseException:
    """The error that some lines raise. Their text is known to tracebacks, as that of a file is."""
    name = f"<{hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        exec(compile(source, name, "exec"), {})
    except BaseException as error:
        return error
    raise AssertionError("it raises nothing")


DEEP = """
def one(n):
    return two(n - 1) if n else int("x")
def two(n):
    return one(n - 1) if n else int("x")
"""
CHAIN = f"""{DEEP}
try:
    one(300)
except ValueError as error:
    try:
        two(300)
    except ValueError:
        raise RuntimeError("the last") from error
"""


def test_an_error_looks_as_python_prints_it() -> None:
    error = caught("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('a')")
    printed = "".join(traceback.format_exception(error)).rstrip()
    assert describe(error) == f"KeyError: 'a'\n{printed}"


def test_a_suppressed_context_is_not_shown() -> None:
    error = caught("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('a') from None")
    assert "ZeroDivisionError" not in describe(error)


def test_an_error_that_was_not_raised_has_no_traceback_but_its_notes() -> None:
    error = ValueError("no\ngood")
    error.add_note("a note")
    assert describe(error) == "ValueError: no\ngood\na note"


def test_of_a_deep_chain_the_middle_of_each_traceback_is_left_out() -> None:
    message = describe(caught(CHAIN))
    assert len(message.encode()) <= MAX_MESSAGE
    assert message.startswith("RuntimeError: the last\nTraceback")
    assert message.endswith("RuntimeError: the last")
    assert message.count("invalid literal for int()") == 1, "the cause is kept"
    assert "frames left out]" in message


@pytest.mark.parametrize("size", [MAX_MESSAGE // 2, MAX_MESSAGE - 600, MAX_MESSAGE - 1, MAX_MESSAGE, 3 * MAX_MESSAGE])
def test_a_long_message_leaves_less_room_for_the_traceback(size: int) -> None:
    message = describe(caught(f"raise ValueError('é' * {size // 2} + 'end')"))
    assert message.startswith("ValueError: ééé")
    if size <= MAX_MESSAGE - 600:
        assert len(message.encode()) <= MAX_MESSAGE
        assert message.endswith("end")


def test_an_error_that_raises_when_it_is_shown_is_named() -> None:
    mute = caught("class Mute(Exception):\n    def __str__(self):\n        raise RuntimeError\nraise Mute")
    assert "Mute" in describe(mute)
    worse = caught("class Worse(Exception):\n    __notes__ = property(lambda self: 1 / 0)\nraise Worse")
    assert "Worse" in describe(worse)
    assert error_text(mute)["type"] == "Mute"


def test_a_syntax_error_begins_with_its_type() -> None:
    assert describe(caught("compile('a b', 'x', 'exec')")).startswith("SyntaxError: invalid syntax\n")


def test_what_stands_for_an_error_of_a_child_has_its_name_and_its_traceback() -> None:
    text = error_text(caught("class Odd(Exception): pass\nraise Odd('so odd') from KeyError('why')"))
    error = error_in_child(text)
    assert (type(error).__name__, type(error).__module__, str(error)) == ("Odd", text["module"], "so odd")
    assert format_error(error, None) == text["traceback"]
    anyone = "".join(traceback.format_exception(error))
    assert "KeyError: 'why'" in anyone
    assert text["traceback"] in anyone


def test_a_traceback_of_windlass_alone_stays_whole() -> None:
    try:
        error_in_child({})  # type: ignore[typeddict-item]
    except KeyError as error:
        inner = error
    assert inner.__traceback__ is not None
    own = KeyError("type").with_traceback(inner.__traceback__.tb_next)
    assert user_traceback(own) is own.__traceback__
