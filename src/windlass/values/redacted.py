"""Values that do not show what they carry: a payload may be long, and may be secret."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct, structs


class Redacted(Struct, frozen=True):
    """A struct that leaves out what `hidden` names: in its repr, and in what it tells Rich.

    By itself a struct tells Rich all that it has, whatever its repr says, and Rich's tracebacks show local variables.
    """

    hidden: ClassVar[tuple[str, ...]] = ("data",)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in structs.asdict(self).items() if name not in self.hidden]
