"""Seals: payloads that are signed or encrypted, so that who can write into the server can still forge no job.

A seal binds a payload to what it is for and to its place: the purpose, the queue, and the id of the job (or the name of
the schedule). A payload that was altered, or laid under another id, on another queue or where another kind is
expected, does not open. The task is named in the payload, so it is bound as well. What the server itself
changes cannot be bound: run times (retries and updates move them), priorities, counters, progress, messages.

    both        magic · version · kind · purpose · length of the key's id · the key's id · then
    signed      tag (32 bytes) · the payload as it was given
    encrypted   salt (16) · nonce (12) · ciphertext and its tag
    neither     magic · a zero · the payload: one that was not sealed, and begins with the magic by itself

The tag is HMAC-SHA256, the cipher is AES-256-GCM. Each payload is encrypted under a key of its own, derived from the
ring's key and a random salt: one key with random nonces would be worn out after some billions of jobs.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from windlass.errors import InvalidOption, Undecodable

SEALED = b"\x89WLSEAL"  # how sealed payloads begin, and no JSON does
VERSION = 1
NOT_SEALED = b"\0"  # in the place of the version: what follows was not sealed, and only begins as if it were
KEY_SIZE = 32
LONGEST_KEY = 1024
SIGNING_VARIABLE, ENCRYPTION_VARIABLE = "WINDLASS_SIGNING_KEYS", "WINDLASS_ENCRYPTION_KEYS"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD = len(SEALED) + 4  # with version, kind, purpose and the length of the key's id
_TAG, _SALT, _NONCE = 32, 16, 12
_LENGTHS = struct.Struct(">III")
_CIPHER_KEY = b"windlass cipher key"
_NEW_KEY = "`openssl rand -base64 32`"


class Purpose(Enum):
    """What a sealed payload is. The jobs of a schedule's ticks share one payload, so that is bound to the schedule."""

    JOB = b"j"
    TICK = b"t"
    RESULT = b"r"
    SCHEDULE = b"s"


class _Kind(Enum):
    SIGNED = b"s"
    ENCRYPTED = b"e"

    @property
    def verb(self) -> str:
        return "signing" if self is _Kind.SIGNED else "encryption"

    @property
    def option(self) -> str:
        return f"{self.verb}_keys"


class _Cipher(Protocol):
    """What we use of AES-GCM."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class NoSuchKey(Undecodable):
    """It is sealed with a key that is not here; another worker may have it."""


class Seal:
    """Seals and opens payloads. The first key of a ring writes, all of them read: that is how keys are changed.

    With encryption keys all is encrypted, which guards it against changes too; signing keys then only read. Without any
    keys nothing is sealed, and what is sealed is refused.
    """

    def __init__(
        self, signing_keys: Mapping[str, bytes] | None = None, encryption_keys: Mapping[str, bytes] | None = None
    ) -> None:
        signing = check_keys(signing_keys, "signing_keys", longest=LONGEST_KEY)
        encryption = check_keys(encryption_keys, "encryption_keys", longest=KEY_SIZE)
        self._rings = {_Kind.SIGNED: _ring(signing), _Kind.ENCRYPTED: _ring(encryption)}
        self._kind = _Kind.ENCRYPTED if encryption else _Kind.SIGNED
        self._id, self._key = next(iter(self._rings[self._kind].items()), (b"", b""))
        self._heads = {purpose: _head(self._kind, purpose, self._id) for purpose in Purpose}
        self._cipher: Callable[[bytes], _Cipher] | None = None
        self._bad_tag: type[Exception] = Exception
        if encryption:
            self._cipher, self._bad_tag = _load_cipher()
        self.is_on = bool(self._key)  # there are keys: all is sealed, and only what is sealed is taken

    def __repr__(self) -> str:
        return f"<Seal {self._kind.verb if self.is_on else 'without keys'}>"

    def changes(self, *payloads: bytes) -> bool:
        """Whether `close` does anything to one of them: what is not sealed must not look as if it were."""
        return self.is_on or any(data.startswith(SEALED) for data in payloads)

    def close(self, purpose: Purpose, queue: str, name: str, data: bytes) -> bytes:
        """The payload, sealed for this place; as it is where there are no keys."""
        if not self.is_on:
            return SEALED + NOT_SEALED + data if data.startswith(SEALED) else data
        head = self._heads[purpose]
        bound = _bound(head, queue, name)
        if self._cipher is None:
            return b"".join((head, _sign(self._key, bound, data), data))
        fresh = os.urandom(_SALT + _NONCE)
        cipher = self._cipher_for(self._key, fresh[:_SALT])
        return b"".join((head, fresh, cipher.encrypt(fresh[_SALT:], data, bound)))

    def open(self, purpose: Purpose, queue: str, name: str, sealed: bytes) -> bytes:
        """The payload that was sealed for this place; `Undecodable` says why it is refused, and nothing of it."""
        bare = sealed.startswith(SEALED + NOT_SEALED)
        if bare or not sealed.startswith(SEALED):
            if self.is_on:
                raise Undecodable(
                    "refused: it is unsigned, and this app takes only what is sealed with its keys",
                    worker_specific=True,
                )
            return sealed[len(SEALED) + len(NOT_SEALED) :] if bare else sealed
        kind, id, end = _read_head(sealed)
        key = self._rings[kind].get(id)
        if key is None:
            raise NoSuchKey(self._why_no_key(kind, id))
        head, body = sealed[:end], sealed[end:]
        read = self._verify if kind is _Kind.SIGNED else self._decrypt
        opened = read(key, _bound(head, queue, name), body) if purpose_of(head) is purpose else None
        if opened is None:
            raise Undecodable(
                f"refused: it was altered, or moved here from another place: its seal (key {_shown(id)}) does not fit",
                worker_specific=True,
            )
        return opened

    def is_current(self, sealed: bytes) -> bool:
        """Whether it is sealed with the key that writes today."""
        return _read_head(sealed)[:2] == (self._kind, self._id)

    def _why_no_key(self, kind: _Kind, id: bytes) -> str:
        told = f"refused: it is {kind.name.lower()} with key {_shown(id)}"
        if not self.is_on:
            return f"{told}, and this app has no keys: set {kind.option}"
        return f"{told}, which is not among the {kind.option} of this app: add that key if it is one of yours"

    def _verify(self, key: bytes, bound: bytes, body: bytes) -> bytes | None:
        tag, data = body[:_TAG], body[_TAG:]
        return data if hmac.compare_digest(tag, _sign(key, bound, data)) else None

    def _decrypt(self, key: bytes, bound: bytes, body: bytes) -> bytes | None:
        salt, nonce, text = body[:_SALT], body[_SALT : _SALT + _NONCE], body[_SALT + _NONCE :]
        if len(nonce) < _NONCE:
            return None
        try:
            return self._cipher_for(key, salt).decrypt(nonce, text, bound)
        except self._bad_tag:
            return None

    def _cipher_for(self, key: bytes, salt: bytes) -> _Cipher:
        """The cipher of one payload: its key is HKDF-Expand (RFC 5869) of the ring's key, with the salt in the info."""
        assert self._cipher is not None, "there is an encryption key"
        return self._cipher(hmac.digest(key, _CIPHER_KEY + salt + b"\x01", "sha256"))


# -- the format --------------------------------------------------------------------------------------

_KINDS = {kind.value: kind for kind in _Kind}
_PURPOSES = {purpose.value: purpose for purpose in Purpose}


def _head(kind: _Kind, purpose: Purpose, id: bytes) -> bytes:
    return b"".join((SEALED, bytes((VERSION,)), kind.value, purpose.value, bytes((len(id),)), id))


def _read_head(sealed: bytes) -> tuple[_Kind, bytes, int]:
    """Kind, the key's id, and where the head ends."""
    if len(sealed) > _HEAD:
        version, end = sealed[_HEAD - 4], _HEAD + sealed[_HEAD - 1]
        if version != VERSION:
            raise Undecodable(
                f"refused: it is sealed in format {version}, and this version knows format {VERSION}",
                worker_specific=True,
            )
        kind = _KINDS.get(sealed[_HEAD - 3 : _HEAD - 2])
        if kind is not None and end <= len(sealed):
            return kind, sealed[_HEAD:end], end
    raise Undecodable("refused: its seal was altered")


def purpose_of(data: bytes) -> Purpose | None:
    """What sealed data says that it is; whether that is true only opening it tells. None where it is not sealed."""
    return _PURPOSES.get(data[_HEAD - 2 : _HEAD - 1]) if data.startswith(SEALED) else None


def _bound(head: bytes, queue: str, name: str) -> bytes:
    """What a seal is bound to beside the payload. The head names the kind, the purpose and the key.

    The lengths are part of it, so that no two places read the same.
    """
    where, who = queue.encode(), name.encode()
    return b"".join((_LENGTHS.pack(len(head), len(where), len(who)), head, where, who))


def _sign(key: bytes, bound: bytes, data: bytes) -> bytes:
    return hmac.digest(key, bound + data, "sha256")


def _shown(id: bytes) -> str:
    """The id of a key in a message. One that could be none is not shown: anybody may have written it."""
    text = id.decode("ascii", "replace")
    return repr(text) if _ID.fullmatch(text) else "of no valid id"


def _load_cipher() -> tuple[Callable[[bytes], _Cipher], type[Exception]]:
    """AES-GCM, and what it raises for what does not fit."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidOption(
            "encryption_keys need the package cryptography: pip install 'windlass[crypto]', or use signing_keys, which "
            "need nothing"
        ) from None
    return AESGCM, InvalidTag


# -- keys --------------------------------------------------------------------------------------------
# No message here shows what was given: a key that stands in the wrong place would be shown with it.


def check_keys(given: object, option: str, *, longest: int) -> Mapping[str, bytes]:
    """The keys of a ring by their ids, in their order. An empty ring is a mistake, not a wish to go without."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise InvalidOption(f'{option} must be keys by their ids, like {{"2026-11": b"…"}}, the one that writes first')
    for place, (id, key) in enumerate(given.items(), 1):
        _check_id(id, f"key {place} of {option}")
        if not isinstance(key, bytes):
            raise InvalidOption(
                f"key {id!r} of {option} must be bytes, not {type(key).__name__}: decode it first, for example with "
                "base64.b64decode(…)"
            )
        if not KEY_SIZE <= len(key) <= longest:
            wanted = str(KEY_SIZE) if longest == KEY_SIZE else f"{KEY_SIZE} to {longest:,}"
            raise InvalidOption(
                f"key {id!r} of {option} has {len(key)} bytes and must have {wanted}, as os.urandom({KEY_SIZE}) gives"
            )
    return given


def _ring(keys: Mapping[str, bytes]) -> dict[bytes, bytes]:
    return {id.encode(): key for id, key in keys.items()}


def read_keys(variable: str, text: str) -> dict[str, bytes]:
    """The keys in a variable: `id:base64` with spaces between them, the one that writes first."""
    if not text.strip():  # a secret that was forgotten must not turn seals off
        raise InvalidOption(f"{variable} is empty: write id:base64 into it, or unset it to go without")
    found: dict[str, bytes] = {}
    for place, word in enumerate(text.split(), 1):
        id, colon, written = word.partition(":")
        if not colon:
            raise InvalidOption(
                f"word {place} of {variable} is no key: write id:base64, with the base64 that {_NEW_KEY} prints"
            )
        _check_id(id, f"key {place} in {variable}")
        if id in found:
            raise InvalidOption(f"{variable} has two keys {id!r}: give one of them another id")
        try:
            found[id] = base64.b64decode(written, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidOption(f"key {id!r} in {variable} is no base64: make one with {_NEW_KEY}") from None
    return found


def _check_id(id: object, what: str) -> None:
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidOption(
            f"the id of {what} is none: use 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a "
            "letter or digit, such as a date"
        )


UNSEALED = Seal()
