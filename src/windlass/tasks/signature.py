"""Reads a task function's signature: which parameters are job arguments, and their types.

It builds a struct that binds arguments like a call, and decodes them by type. A type that JSON cannot carry is refused
here, when the function is declared.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from windlass.errors import InvalidTask
from windlass.tasks.codec import Codec
from windlass.tasks.context import Job

# Raised for a type that is defined later in the module, or in a module that is only half imported.
UNRESOLVED = (NameError, AttributeError)
_CONTAINERS = (
    msgspec.inspect.CollectionType,
    msgspec.inspect.TupleType,
    msgspec.inspect.DictType,
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
)


class _Current:
    """The placeholder for the running job in a signature."""

    def __repr__(self) -> str:
        return "current()"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no running job, so {name!r} is unknown: in a direct call, pass a Job")


_CURRENT = _Current()


def current() -> Job:
    """Mark the parameter that gets the running job: `async def welcome(user_id: int, job: Job = current())`."""
    return cast(Job, _CURRENT)


def takes_current(parameter: inspect.Parameter) -> bool:
    """Whether this parameter gets the running job."""
    return parameter.default is _CURRENT


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a task or handler function."""
    if not inspect.isroutine(function):
        raise InvalidTask(f"{function!r} is not a function: write a def that does the work, and declare that")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask("a generator function does nothing when it is called: use return instead of yield")
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        raise InvalidTask("its signature cannot be read: wrap it in a def") from None


class Shapes(Struct, frozen=True):
    """A struct that binds like a call, and decoders for arguments by name (object) and by position (array)."""

    types: dict[str, msgspec.inspect.Type]
    bind: Callable[..., Struct]
    by_name: msgspec.json.Decoder[Any]
    by_place: msgspec.json.Decoder[Any]


class Signature:
    """The parameters of a task: its arguments, and those that get the running job."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = parameters_of(function)
        for number, parameter in enumerate(parameters):
            _check_parameter(parameter, number)
        self.function = function
        self.job_names = tuple(each.name for each in parameters if takes_current(each))
        self.arguments = [each for each in parameters if not takes_current(each)]
        self.names = tuple(each.name for each in self.arguments)
        in_line = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        self.places = [each.name for each in in_line if not takes_current(each)]
        # Parameters after the job's can only be passed by name, just as in a direct call.
        self.job_place = next((place for place, each in enumerate(in_line) if takes_current(each)), None)
        self.passable = self.places[: self.job_place]
        self.required = [each.name for each in self.arguments if each.default is each.empty]

    def shapes(self, codec: Codec) -> Shapes:
        """Build the struct and its decoders. Raises one of `UNRESOLVED` while a type cannot be found."""
        types = self._types()
        # Done here only: it evaluates annotations, and a payload must never be able to cause that.
        inspected = {name: check_type(kind, name, codec) for name, kind in types.items()}
        passable = [each for each in self.arguments if each.name in self.passable]
        others = [each for each in self.arguments if each.name not in self.passable]
        by_name = _struct(passable, types, bases=(_struct(others, types, kw_only=True),), forbid_unknown_fields=True)
        in_line = [each for each in self.arguments if each.name in self.places]
        by_place = _struct(in_line, types, array_like=True, forbid_unknown_fields=True)
        return Shapes(
            types=inspected,
            bind=by_name,
            by_name=codec.decoder(by_name),
            by_place=codec.decoder(by_place),
        )

    def _types(self) -> dict[str, Any]:
        """The type of each argument. The return type and the job's type are left out: they may be unresolvable."""
        annotations = {each.name: each.annotation for each in self.arguments if each.annotation is not each.empty}
        names = getattr(inspect.unwrap(self.function), "__globals__", {})
        try:
            hints = get_type_hints(SimpleNamespace(__annotations__=annotations), names, include_extras=True)
        except UNRESOLVED:
            raise
        except Exception as error:
            raise InvalidTask(f"the types in its signature cannot be read ({error})") from None
        return {name: hints.get(name, Any) for name in self.names}


def check_type(kind: Any, name: str, codec: Codec) -> msgspec.inspect.Type:
    """Inspect a type. Refuses one that does not survive a round trip through JSON."""
    try:
        msgspec.json.Decoder(kind)
        found = msgspec.inspect.type_info(kind)
    except UNRESOLVED:
        raise
    except Exception as error:
        raise InvalidTask(f"parameter {name!r} has a type that JSON cannot carry ({error})") from None
    for part in _parts(found):
        if isinstance(part, msgspec.inspect.CustomType) and part.cls is Job:
            raise InvalidTask(f"parameter {name!r} is the running job: write {name}: Job = current()")
        if isinstance(part, msgspec.inspect.CustomType) and (_is_object(part) or codec.knows(part.cls)):
            continue
        if isinstance(part, msgspec.inspect.CustomType | msgspec.inspect.ExtType):
            shown = getattr(part, "cls", msgspec.msgpack.Ext).__qualname__
            raise InvalidTask(
                f"parameter {name!r} has a type that JSON cannot carry ({shown}): use plain values, a dataclass, a "
                "msgspec.Struct or a pydantic model, give Windlass(encode=…, decode=…), or pass an id or a path"
            )
        if isinstance(part, msgspec.inspect.DictType) and isinstance(part.key_type, _CONTAINERS):
            raise InvalidTask(f"parameter {name!r} has a dict with keys that JSON cannot carry: use text or numbers")
    return found


_OBJECTS = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.NamedTupleType,
)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def wanted_at(kind: msgspec.inspect.Type, path: str) -> list[msgspec.inspect.Type]:
    """The types allowed at a path inside a value: `.address.lines[0]`."""
    there = _choices(kind)
    for field, place in _STEP.findall(path):
        there = [inner for part in there for inner in _step(part, field, place)]
    return there


def _choices(part: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    return list(part.types) if isinstance(part, msgspec.inspect.UnionType) else [part]


def _step(part: msgspec.inspect.Type, field: str, place: str) -> list[msgspec.inspect.Type]:
    if field:
        fields = part.fields if isinstance(part, _OBJECTS) else ()
        return [inner for each in fields if each.encode_name == field for inner in _choices(each.type)]
    if isinstance(part, msgspec.inspect.DictType):
        return _choices(part.value_type)
    if isinstance(part, msgspec.inspect.TupleType) and place.isdecimal() and int(place) < len(part.item_types):
        return _choices(part.item_types[int(place)])
    item = getattr(part, "item_type", None)  # of lists, sets and the like
    return [] if item is None else _choices(item)


def allowed_values(wanted: Sequence[msgspec.inspect.Type]) -> list[Any]:
    """The values of all enums and literals among these types."""
    found: list[Any] = []
    for part in wanted:
        if isinstance(part, msgspec.inspect.EnumType):
            found += [each.value for each in part.cls]
        elif isinstance(part, msgspec.inspect.LiteralType):
            found += part.values
    return found


def in_python(words: str, wanted: Sequence[msgspec.inspect.Type]) -> str:
    """Translate the decoder's JSON type names to the names in the signature."""
    names = {"null": ["None"], "object": [], "array": []}
    for part in wanted:
        name = getattr(part, "cls", None)
        in_line = getattr(part, "array_like", False) or isinstance(part, msgspec.inspect.NamedTupleType)
        if isinstance(part, _OBJECTS) and name is not None:
            names["array" if in_line else "object"].append(name.__name__)
        elif isinstance(part, msgspec.inspect.CollectionType):
            names["array"].append(type(part).__name__.removesuffix("Type").removeprefix("Var").lower())
    plain = {"object": ["dict"], "array": ["list"]}
    return " or ".join(name for word in words.split(" | ") for name in names.get(word, [word]) or plain[word])


def _is_object(part: msgspec.inspect.Type) -> bool:
    """Whether the annotation is `object`, which means the same as `Any` here."""
    return isinstance(part, msgspec.inspect.CustomType) and part.cls is object


def _parts(kind: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """A type and all types inside it. A recursive type comes once."""
    seen: set[int] = set()
    left: list[Any] = [kind]
    while left:
        part = left.pop()
        if isinstance(part, tuple):
            left += part
        elif isinstance(part, msgspec.inspect.Field):
            left.append(part.type)
        elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            left += [getattr(part, field) for field in part.__struct_fields__]


def _check_parameter(parameter: inspect.Parameter, number: int) -> None:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        remedy = f"{name}: list[…]" if star == "*" else f"{name}: dict[str, …]"
        raise InvalidTask(f"parameter {star}{name} cannot be checked: name each argument, or use one {remedy}")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidTask(f"parameter {name!r} is positional-only, but arguments are sent by name: remove the /")
    if number == 0 and name in ("self", "cls"):
        raise InvalidTask(f"parameter {name!r} looks like a method's: declare a function outside the class")
    if name.startswith("__"):
        raise InvalidTask(f"parameter {name!r} begins with two underscores: give it a plain name")


def _struct(parameters: Sequence[inspect.Parameter], types: dict[str, Any], **options: Any) -> type[Struct]:
    """A struct with these fields. A field with a default is optional: the function's own default applies."""
    required = [(each.name, types[each.name]) for each in parameters if each.default is each.empty]
    optional = [(each.name, types[each.name], UNSET) for each in parameters if each.default is not each.empty]
    return msgspec.defstruct("Arguments", [*required, *optional], **options)
