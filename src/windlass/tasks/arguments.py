"""The arguments of a task as JSON: written when it is enqueued, read when it runs.

What is checked is what will run: arguments that were just written are read again by the reader that the worker uses.
An argument that is not passed is not written, so the function's own default holds, as in any call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from enum import Enum
from types import NoneType
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from windlass.errors import InvalidArguments, InvalidTask, Undecodable
from windlass.tasks.context import Job
from windlass.tasks.signature import UNRESOLVED, Shapes, Signature, allowed_values, in_python, wanted_at
from windlass.values.options import JobOptions
from windlass.values.redacted import Redacted

_encode = msgspec.json.Encoder().encode

OPTIONS = frozenset(JobOptions.__annotations__) | {"queue", "keep_result"}  # what can be said of a call

# How the reader words its errors. What is not recognised is told in its own words.
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TOO_FEW = re.compile(r"Expected `array` of at least length \d+, got (\d+)")
_TOO_MANY = re.compile(r"Expected `array` of at most length (\d+).*")
_VALUE = re.compile(r"(Invalid (?:enum )?value) .*", re.DOTALL)
_MISMATCH = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_INVALID = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_AT = re.compile(r" - at `(?:key in )?\$(?:\.(?P<name>\w+)|\[(?P<place>\d+)\])(?P<rest>.*)`$", re.DOTALL)


class Bound(Redacted, frozen=True):
    """A function with the arguments of one job, and the names under which it wants the job itself."""

    hidden: ClassVar[tuple[str, ...]] = ("arguments",)

    function: Callable[..., Any]
    arguments: dict[str, Any]
    job_names: tuple[str, ...] = ()

    def __repr__(self) -> str:  # without the arguments, which may be secret
        return f"<Bound {self.function!r} with {', '.join(self.arguments) or 'nothing'}>"

    def call(self, job: Job) -> Any:
        """Run it: gives the return value, or the coroutine of an `async def`."""
        if not self.job_names:
            return self.function(**self.arguments)
        return self.function(**self.arguments, **dict.fromkeys(self.job_names, job))


class Arguments:
    """Writes and reads the arguments of one function; `title` is how errors call it."""

    def __init__(self, signature: Signature, title: str) -> None:
        self._signature = signature
        self._title = title
        self._optional = len(signature.required) < len(signature.names)
        self._mutable = {
            each.name: each.default
            for each in signature.arguments
            if isinstance(each.default, list | dict | set | bytearray)
        }
        try:
            self._shapes: Shapes | None = signature.shapes()
        except UNRESOLVED:
            self._shapes = None  # looked for again at first use

    def _resolve(self) -> Shapes:
        try:
            self._shapes = self._signature.shapes()
        except UNRESOLVED as error:
            raise InvalidTask(
                f"{self._title}: a type in its signature cannot be found ({error}): "
                "import or define it in the module, not under TYPE_CHECKING and not inside a function"
            ) from None
        return self._shapes

    # -- writing ---------------------------------------------------------------------------------

    def write(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON that is known to be readable."""
        shapes = self._shapes or self._resolve()
        try:
            given = shapes.bind(*args, **kwargs)
        except TypeError:
            raise self._refused(self._mismatch(args, kwargs)) from None
        try:
            text = _encode(given)
        except Exception:
            raise self._refused(_unwritable(given)) from None
        if b"null" in text:
            self._refuse_nan(given)
        try:
            read = shapes.by_name.decode(text)
        except Exception as error:
            raise self._refused(self._told(error, given)) from None
        for name in self._signature.names:
            sent, arrives = getattr(given, name), getattr(read, name)
            if (type(sent) in _PLAIN and type(arrives) is type(sent)) or sent is UNSET:
                continue
            if (changed := _changed(sent, arrives)) is not None:
                raise self._refused(f"argument {name!r} {changed}")
        return text

    def _refused(self, why: str) -> InvalidArguments:
        return InvalidArguments(f"{self._title}: {why}")

    def _mismatch(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Why a call does not fit the signature."""
        signature = self._signature
        by_place = signature.passable[: len(args)]
        for name in kwargs:
            if name in signature.job_names:
                return _filled_in(name)
            if name not in signature.names:
                return self._no_such(name) + (_meant_option(name) if name in OPTIONS else "")
            if name in by_place:
                return f"argument {name!r} is given twice, by place and by name"
        if len(args) > len(by_place) and signature.job_place is not None:
            return _filled_in(signature.job_names[0])
        if len(args) > len(by_place):
            return f"it takes at most {len(by_place)} arguments by place, and {len(args)} were given"
        missing = [name for name in signature.required if name not in by_place and name not in kwargs]
        return f"argument {missing[0]!r} is missing"

    def _no_such(self, name: str) -> str:
        return f"there is no argument {name!r}: it takes {', '.join(self._signature.names) or 'none'}"

    def _refuse_nan(self, given: Struct) -> None:
        """JSON has no word for NaN and infinity: written as null, they would arrive as something else."""
        for name, value in _passed(given):
            if value is not None and holds_nan(value):
                raise self._refused(f"argument {name!r} holds NaN or infinity, which JSON cannot say: use None or text")

    # -- reading ---------------------------------------------------------------------------------

    def read(self, args: Raw) -> Bound:
        """The arguments that a payload carries, an object by name or an array by place."""
        shapes = self._shapes or self._resolve()
        by_place = bytes(memoryview(args)[:1]) == b"["
        try:
            given = (shapes.by_place if by_place else shapes.by_name).decode(args)
        except MemoryError:
            raise  # says nothing about the payload
        except Exception as error:  # also what a __post_init__ of the user's own types raises
            raise Undecodable(f"{self._title}: {self._told(error)}", worker_specific=True) from None
        arguments = structs.asdict(given)
        if self._optional or by_place:
            arguments = {name: value for name, value in arguments.items() if value is not UNSET}
            for name, default in self._mutable.items():
                if name not in arguments:
                    arguments[name] = deepcopy(default)  # a job must not see what an earlier one put into it
        if by_place:
            self._check_all_there(arguments)
        return Bound(self._signature.function, arguments, self._signature.job_names)

    def defaults(self) -> dict[str, Any]:
        """The arguments that need not be passed, with what they are then."""
        return {each.name: each.default for each in self._signature.arguments if each.default is not each.empty}

    def _check_all_there(self, arguments: Mapping[str, Any]) -> None:
        for name in self._signature.required:
            if name not in arguments:
                raise Undecodable(
                    f"{self._title}: argument {name!r} is keyword-only: write args as an object", worker_specific=True
                )

    # -- telling ---------------------------------------------------------------------------------

    def _told(self, error: Exception, given: Struct | None = None) -> str:
        """A reader's error in terms of arguments."""
        if isinstance(error, RecursionError):
            return "the arguments are nested too deep"
        if not isinstance(error, msgspec.ValidationError):
            return f"the arguments cannot be read ({type(error).__name__}: {error})"
        text, places = str(error), self._signature.places
        if missing := _MISSING.fullmatch(text):
            return f"argument {missing[1]!r} is missing"
        if unknown := _UNKNOWN.fullmatch(text):
            return self._no_such(unknown[1])
        if too_few := _TOO_FEW.fullmatch(text):
            return f"argument {places[int(too_few[1])]!r} is missing"
        if too_many := _TOO_MANY.fullmatch(text):
            return f"it takes at most {too_many[1]} arguments by place"
        at = _AT.search(text)
        if at is None:
            return f"the arguments cannot be read ({without_values(text)})"
        name = at["name"] or places[int(at["place"])]
        shown = repr(name + at["rest"])
        problem = text[: at.start()]
        shapes = self._shapes or self._resolve()
        wanted = wanted_at(shapes.types[name], at["rest"])
        if _INVALID.fullmatch(problem) and (allowed := allowed_values(wanted)):
            return f"argument {shown} must be one of {', '.join(map(repr, allowed))}"
        mismatch = _MISMATCH.fullmatch(problem)
        if mismatch is None:
            return f"argument {shown} does not fit: {without_values(problem)}"
        got = type(getattr(given, name)).__name__ if given is not None and not at["rest"] else mismatch[2]
        return f"argument {shown} must be {in_python(mismatch[1], wanted)}, not {got}"


def without_values(problem: str) -> str:
    """What a reader complains of, without the value: no log, here or there, must show what a job carries."""
    return _VALUE.sub(r"\1", problem)


def _passed(given: Struct) -> list[tuple[str, Any]]:
    """The arguments that were really passed."""
    return [(name, value) for name in given.__struct_fields__ if (value := getattr(given, name)) is not UNSET]


def _filled_in(name: str) -> str:
    return f"argument {name!r} is filled in when the task runs: leave it away, and pass what follows it by name"


def _meant_option(name: str) -> str:
    return f". Options of a call go through using: .using({name}=…).enqueue(…)"


_PLAIN = frozenset({str, int, float, bool, NoneType})


def _changed(sent: Any, read: Any) -> str | None:
    """What is wrong with a value that would arrive as something else: bytes and dates turn into text by themselves."""
    if type(sent) in _PLAIN and type(read) is type(sent):
        return None
    if isinstance(read, str) and not isinstance(sent, str):
        return None if isinstance(sent, Enum) else f"must be str, not {type(sent).__name__}"
    if isinstance(sent, str) and isinstance(read, bytes):
        return "must be bytes, not str"
    if isinstance(sent, dict) and isinstance(read, dict):
        if any(isinstance(key, str) for key in read) and not all(isinstance(key, str | Enum) for key in sent):
            return "has keys that are not text, and would arrive as text: name their type in the signature"
        return _first(map(_changed, sent.values(), read.values()))
    if isinstance(sent, list | tuple) and isinstance(read, list | tuple):
        return _first(map(_changed, sent, read))
    return None


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _unwritable(given: Struct) -> str:
    """Which of the arguments could not be written, and why."""
    for name, value in _passed(given):
        try:
            _encode(value)
        except RecursionError:
            return f"argument {name!r} is nested too deep, or holds itself"
        except Exception as error:
            return f"argument {name!r} cannot be written as JSON ({error}): pass plain values"
    return "the arguments are nested too deep"


def holds_nan(value: Any) -> bool:
    """Whether NaN or infinity is anywhere in a value."""
    left = [msgspec.to_builtins(value, enc_hook=lambda _: None)]
    while left:
        part = left.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return True
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            left += part
    return False
