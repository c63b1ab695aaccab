"""Structs whose repr hides some fields: a payload may be long, or secret."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, structs


class Redacted(Struct, frozen=True):
    """A struct that omits its `hidden` fields from its repr, and from Rich's output.

    Without `__rich_repr__`, Rich shows all fields of a struct whatever its repr says; its tracebacks show local
    variables.
    """

    hidden: ClassVar[tuple[str, ...]] = ("data",)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in structs.asdict(self).items() if name not in self.hidden]
