"""How values become JSON and come back: plain types by msgspec, pydantic models by themselves, all others by the app's
hooks.

pydantic is never imported here: a model is known by its methods. Without a model or a hook nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from windlass.errors import InvalidOption

Encode = Callable[[Any], Any]
Decode = Callable[[type[Any], Any], Any]

MAX_TOLD_ERRORS = 3  # of one model: enough to find the cause, and a message stays short


class Codec:
    """The encoders and decoders of one app. `encode` and `decode` are its hooks for types unknown to msgspec."""

    def __init__(self, encode: Encode | None = None, decode: Decode | None = None) -> None:
        for name, hook in (("encode", encode), ("decode", decode)):
            if hook is not None and not callable(hook):
                raise InvalidOption(f"{name} must be a function, not {type(hook).__name__}")
        if (encode is None) != (decode is None):
            raise InvalidOption("encode and decode belong together: pass both, or neither")
        self._encode = encode
        self._decode = decode
        self.write = msgspec.json.Encoder(enc_hook=self.to_plain).encode

    def decoder(self, kind: Any) -> msgspec.json.Decoder[Any]:
        """A decoder of JSON to a type."""
        return msgspec.json.Decoder(kind, dec_hook=self.from_plain)

    def knows(self, kind: type[Any]) -> bool:
        """Whether values of a type that msgspec does not know can be carried. A hook may refuse it at the first use."""
        return self._decode is not None or _is_model(kind)

    def to_plain(self, value: Any) -> Any:
        """Turn a value that msgspec does not know into one that it knows."""
        if _is_model(type(value)):
            return value.model_dump(mode="json", by_alias=True, round_trip=True)
        if self._encode is None:
            raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")
        return self._encode(value)

    def from_plain(self, kind: type[Any], plain: Any) -> Any:
        """Turn a plain value into one of a type that msgspec does not know. A `ValueError` gets the argument's name."""
        if kind is object:  # the same as Any
            return plain
        if _is_model(kind):
            return _validate(kind, plain)
        if self._decode is None:
            raise ValueError(f"{kind.__qualname__} is a type that JSON cannot carry")
        try:
            return self._decode(kind, plain)
        except (ValueError, TypeError, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"decode raised {type(error).__name__}: {error}") from error


def _is_model(kind: type[Any]) -> bool:
    """Whether it is a class of pydantic models."""
    return hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _validate(kind: type[Any], plain: Any) -> Any:
    """Make a model. Its error is told without the values, because no log may show a job's data."""
    try:
        return kind.model_validate(plain)
    except ValueError as error:
        errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
        if errors is None:
            raise
        found = errors(include_url=False, include_context=False, include_input=False)
        raise ValueError("; ".join(map(_in_words, found[:MAX_TOLD_ERRORS]))) from None


def _in_words(error: dict[str, Any]) -> str:
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])


PLAIN = Codec()
