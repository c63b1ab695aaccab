"""The arguments of a task as JSON: encoded when it is enqueued, decoded when it runs.

To check arguments, `write` decodes them again with the worker's own decoder. An argument that is not passed is not
written, so the function's own default applies, as in any call.
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
from windlass.tasks.codec import Codec
from windlass.tasks.context import Job
from windlass.tasks.signature import UNRESOLVED, Shapes, Signature, allowed_values, in_python, wanted_at
from windlass.values.options import JobOptions
from windlass.values.redacted import Redacted

OPTIONS = frozenset(JobOptions.__annotations__) | {"queue", "keep_result"}  # the options of `task.using`

# The decoder's error messages. An unknown one is passed on as it is.
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TOO_FEW = re.compile(r"Expected `array` of at least length \d+, got (\d+)")
_TOO_MANY = re.compile(r"Expected `array` of at most length (\d+).*")
_VALUE = re.compile(r"(Invalid (?:enum )?value) .*", re.DOTALL)
_MISMATCH = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_INVALID = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_AT = re.compile(r" - at `(?:key in )?\$(?:\.(?P<name>\w+)|\[(?P<place>\d+)\])(?P<rest>.*)`$", re.DOTALL)


class Bound(Redacted, frozen=True):
    """A function with the arguments of one job, and the names of the parameters that get the job."""

    hidden: ClassVar[tuple[str, ...]] = ("arguments",)

    function: Callable[..., Any]
    arguments: dict[str, Any]
    job_names: tuple[str, ...] = ()

    def __repr__(self) -> str:  # without the arguments, which may be secret
        return f"<Bound {self.function!r} with {', '.join(self.arguments) or 'nothing'}>"

    def call(self, job: Job) -> Any:
        """Call the function. Returns its value, or the coroutine of an `async def`."""
        if not self.job_names:
            return self.function(**self.arguments)
        return self.function(**self.arguments, **dict.fromkeys(self.job_names, job))


class Arguments:
    """Encodes and decodes the arguments of one function. `title` names the function in errors."""

    def __init__(self, signature: Signature, title: str, codec: Codec) -> None:
        self._signature = signature
        self._codec = codec
        self._encode = codec.write
        self._title = title
        self._optional = len(signature.required) < len(signature.names)
        self._mutable = {
            each.name: each.default
            for each in signature.arguments
            if isinstance(each.default, list | dict | set | bytearray)
        }
        try:
            self._shapes: Shapes | None = signature.shapes(codec)
        except UNRESOLVED:
            self._shapes = None  # resolved at first use

    def _resolve(self) -> Shapes:
        try:
            self._shapes = self._signature.shapes(self._codec)
        except UNRESOLVED as error:
            raise InvalidTask(
                f"{self._title}: a type in its signature cannot be resolved ({error}): "
                "import or define it in the module, not under TYPE_CHECKING and not inside a function"
            ) from None
        return self._shapes

    # -- writing ---------------------------------------------------------------------------------

    def write(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Encode the arguments of a call as JSON, and check that a worker can decode it. Raises `InvalidArguments`."""
        shapes = self._shapes or self._resolve()
        try:
            given = shapes.bind(*args, **kwargs)
        except TypeError:
            raise self._refused(self._mismatch(args, kwargs)) from None
        try:
            text = self._encode(given)
        except Exception:
            raise self._refused(self._unwritable(given)) from None
        if b"null" in text:
            self._refuse_nan(given)
        try:
            read = shapes.by_name.decode(text)
        except Exception as error:
            raise self._refused(self._explain(error, given)) from None
        for name in self._signature.names:
            sent, arrives = getattr(given, name), getattr(read, name)
            if (type(sent) in _PLAIN and type(arrives) is type(sent)) or sent is UNSET:
                continue
            if (changed := _changed(sent, arrives)) is not None:
                raise self._refused(f"argument {name!r} {changed}")
        return text

    def _refused(self, why: str) -> InvalidArguments:
        return InvalidArguments(f"{self._title}: {why}")

    def _unwritable(self, given: Struct) -> str:
        """Say which argument could not be encoded, and why."""
        for name, value in _passed(given):
            try:
                self._encode(value)
            except RecursionError:
                return f"argument {name!r} is nested too deeply, or contains itself"
            except Exception as error:
                return f"argument {name!r} cannot be written as JSON ({error}): pass plain values"
        return "the arguments are nested too deeply"

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
                return f"argument {name!r} is given twice, by position and by name"
        if len(args) > len(by_place) and signature.job_place is not None:
            return _filled_in(signature.job_names[0])
        if len(args) > len(by_place):
            return f"it takes at most {len(by_place)} positional arguments, and {len(args)} were given"
        missing = [name for name in signature.required if name not in by_place and name not in kwargs]
        return f"argument {missing[0]!r} is missing"

    def _no_such(self, name: str) -> str:
        return f"there is no argument {name!r}: it takes {', '.join(self._signature.names) or 'none'}"

    def _refuse_nan(self, given: Struct) -> None:
        """Refuse NaN and infinity: JSON has neither, and they would arrive as null."""
        for name, value in _passed(given):
            if value is not None and holds_nan(value, self._codec):
                raise self._refused(f"argument {name!r} contains NaN or infinity, which JSON lacks: use None or text")

    # -- reading ---------------------------------------------------------------------------------

    def read(self, args: Raw) -> Bound:
        """Decode arguments, from an object (by name) or an array (by position). Raises `Undecodable`."""
        shapes = self._shapes or self._resolve()
        by_place = bytes(memoryview(args)[:1]) == b"["
        try:
            given = (shapes.by_place if by_place else shapes.by_name).decode(args)
        except MemoryError:
            raise  # not the payload's fault
        except Exception as error:  # a __post_init__ of the user's types may raise anything
            raise Undecodable(f"{self._title}: {self._explain(error)}", worker_specific=True) from None
        arguments = structs.asdict(given)
        if self._optional or by_place:
            arguments = {name: value for name, value in arguments.items() if value is not UNSET}
            for name, default in self._mutable.items():
                if name not in arguments:
                    arguments[name] = deepcopy(default)  # or a job would see an earlier job's changes
        if by_place:
            self._check_all_there(arguments)
        return Bound(self._signature.function, arguments, self._signature.job_names)

    def defaults(self) -> dict[str, Any]:
        """The optional arguments with their defaults."""
        return {each.name: each.default for each in self._signature.arguments if each.default is not each.empty}

    def _check_all_there(self, arguments: Mapping[str, Any]) -> None:
        for name in self._signature.required:
            if name not in arguments:
                raise Undecodable(
                    f"{self._title}: argument {name!r} is keyword-only: write args as an object", worker_specific=True
                )

    # -- error messages --------------------------------------------------------------------------

    def _explain(self, error: Exception, given: Struct | None = None) -> str:
        """Describe a decoder's error in terms of arguments."""
        if isinstance(error, RecursionError):
            return "the arguments are nested too deeply"
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
            return f"it takes at most {too_many[1]} positional arguments"
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
    """A decoder's message without the value: no log may show a job's data."""
    return _VALUE.sub(r"\1", problem)


def _passed(given: Struct) -> list[tuple[str, Any]]:
    """The arguments that were passed."""
    return [(name, value) for name in given.__struct_fields__ if (value := getattr(given, name)) is not UNSET]


def _filled_in(name: str) -> str:
    return f"argument {name!r} is filled in when the task runs: omit it, and pass the arguments after it by name"


def _meant_option(name: str) -> str:
    return f". To set the option of this name, write .using({name}=…).enqueue(…)"


_PLAIN = frozenset({str, int, float, bool, NoneType})


def _changed(sent: Any, read: Any) -> str | None:
    """Why a value would arrive as something else, or `None`. Bytes and dates become text, so str could hide them."""
    if type(sent) in _PLAIN and type(read) is type(sent):
        return None
    if isinstance(read, str) and not isinstance(sent, str):
        return None if isinstance(sent, Enum) else f"must be str, not {type(sent).__name__}"
    if isinstance(sent, str) and isinstance(read, bytes):
        return "must be bytes, not str"
    if isinstance(sent, dict) and isinstance(read, dict):
        if any(isinstance(key, str) for key in read) and not all(isinstance(key, str | Enum) for key in sent):
            return "has keys that are not text but would arrive as text: annotate the type of the keys"
        return _first(map(_changed, sent.values(), read.values()))
    if isinstance(sent, list | tuple) and isinstance(read, list | tuple):
        return _first(map(_changed, sent, read))
    return None


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def holds_nan(value: Any, codec: Codec) -> bool:
    """Whether a value contains NaN or infinity."""
    left = [msgspec.to_builtins(value, enc_hook=lambda part: None if isinstance(part, Raw) else codec.to_plain(part))]
    while left:
        part = left.pop()
        if isinstance(part, float) and not math.isfinite(part):
            return True
        if isinstance(part, dict):
            left += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            left += part
    return False
