"""Seals: signed or encrypted payloads, so that write access to the server is not enough to forge a job.

A seal binds a payload to its purpose and place: the queue, and the id of the job (or the name of the schedule). A
payload that was altered, or moved to another id, queue or purpose, does not open. The payload names the task, so the
task is bound as well. The seal cannot bind what the server itself changes: run times (retries and updates move them),
priorities, counters, progress, messages.

    both        magic · version · kind · purpose · length of the key's id · the key's id · then
    signed      tag (32 bytes) · the payload
    encrypted   salt (16) · nonce (12) · ciphertext and its tag
    neither     magic · a zero · the payload: an unsealed payload that happens to begin with the magic

The tag is HMAC-SHA256, the cipher is AES-256-GCM. Each payload is encrypted with its own key, derived from the ring's
key and a random salt: a single key with random nonces is safe only for some billions of jobs.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import re
import struct
from collections.abc import Callable, Mapping
from copy import copy
from enum import Enum
from typing import Protocol, Self

from windlass.errors import InvalidOption, Undecodable

SEALED = b"\x89WLSEAL"  # the first bytes of a sealed payload; no JSON begins so
VERSION = 1
NOT_SEALED = b"\0"  # in the place of the version: the rest is an unsealed payload that begins with SEALED
KEY_BYTES = 32
MAX_KEY_BYTES = 1024
SIGNING_VARIABLE, ENCRYPTION_VARIABLE = "WINDLASS_SIGNING_KEYS", "WINDLASS_ENCRYPTION_KEYS"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD_BYTES = len(SEALED) + 4  # with version, kind, purpose and the length of the key's id
_TAG_BYTES, _SALT_BYTES, _NONCE_BYTES = 32, 16, 12
_LENGTHS = struct.Struct(">III")
_KEY_LABEL = b"windlass cipher key"
_NEW_KEY = "`openssl rand -base64 32`"


class Purpose(Enum):
    """The kind of a sealed payload. All jobs of a schedule share one payload (TICK), which is bound to the schedule."""

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
    """The part of AES-GCM that is used here."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes: ...


class NoSuchKey(Undecodable):
    """The payload is sealed with a key that this app does not have; another worker may have it."""


class Seal:
    """Seals and opens payloads. The first key of a ring seals, all keys open, so that keys can be rotated.

    With encryption keys every payload is encrypted, which also protects it from changes; signing keys then only open.
    Without keys nothing is sealed, and sealed payloads are refused.
    """

    def __init__(
        self, signing_keys: Mapping[str, bytes] | None = None, encryption_keys: Mapping[str, bytes] | None = None
    ) -> None:
        self._within = ""
        signing = check_keys(signing_keys, "signing_keys", longest=MAX_KEY_BYTES)
        encryption = check_keys(encryption_keys, "encryption_keys", longest=KEY_BYTES)
        self._rings = {_Kind.SIGNED: _ring(signing), _Kind.ENCRYPTED: _ring(encryption)}
        self._kind = _Kind.ENCRYPTED if encryption else _Kind.SIGNED
        self._id, self._key = next(iter(self._rings[self._kind].items()), (b"", b""))
        self._heads = {purpose: _head(self._kind, purpose, self._id) for purpose in Purpose}
        self._cipher: Callable[[bytes], _Cipher] | None = None
        self._bad_tag: type[Exception] = Exception
        if encryption:
            self._cipher, self._bad_tag = _load_cipher()
        self.is_on = bool(self._key)  # with keys everything is sealed, and unsealed payloads are refused

    def __repr__(self) -> str:
        return f"<Seal {self._kind.verb if self.is_on else 'without keys'}>"

    def within(self, namespace: str) -> Self:
        """The same seal for a namespace: a payload of another namespace is from another place."""
        seal = copy(self)
        seal._within = f"{namespace}/" if namespace else ""
        return seal

    def changes(self, *payloads: bytes) -> bool:
        """Whether `close` changes one of them: an unsealed payload that begins with the magic gets a mark."""
        return self.is_on or any(data.startswith(SEALED) for data in payloads)

    def close(self, purpose: Purpose, queue: str, name: str, data: bytes) -> bytes:
        """Seal a payload for this place. Without keys, return it unsealed."""
        if not self.is_on:
            return SEALED + NOT_SEALED + data if data.startswith(SEALED) else data
        head = self._heads[purpose]
        bound = _bound_context(head, self._within + queue, name)
        if self._cipher is None:
            return b"".join((head, _sign(self._key, bound, data), data))
        salt_and_nonce = os.urandom(_SALT_BYTES + _NONCE_BYTES)
        cipher = self._cipher_for(self._key, salt_and_nonce[:_SALT_BYTES])
        return b"".join((head, salt_and_nonce, cipher.encrypt(salt_and_nonce[_SALT_BYTES:], data, bound)))

    def open(self, purpose: Purpose, queue: str, name: str, sealed: bytes) -> bytes:
        """Open a payload that was sealed for this place. Raises `Undecodable`, whose message shows nothing of it."""
        bare = sealed.startswith(SEALED + NOT_SEALED)
        if bare or not sealed.startswith(SEALED):
            if self.is_on:
                raise Undecodable(
                    "refused: it is unsigned, and this app accepts only data sealed with its keys",
                    worker_specific=True,
                )
            return sealed[len(SEALED) + len(NOT_SEALED) :] if bare else sealed
        kind, id, end = _read_head(sealed)
        key = self._rings[kind].get(id)
        if key is None:
            raise NoSuchKey(self._why_no_key(kind, id))
        head, body = sealed[:end], sealed[end:]
        read = self._verify if kind is _Kind.SIGNED else self._decrypt
        opened = (
            read(key, _bound_context(head, self._within + queue, name), body) if purpose_of(head) is purpose else None
        )
        if opened is None:
            raise Undecodable(
                f"refused: it was altered or moved from another place: its seal (key {_shown_id(id)}) is invalid",
                worker_specific=True,
            )
        return opened

    def is_current(self, sealed: bytes) -> bool:
        """Whether a payload is sealed with the key that seals now."""
        return _read_head(sealed)[:2] == (self._kind, self._id)

    def _why_no_key(self, kind: _Kind, id: bytes) -> str:
        message = f"refused: it is {kind.name.lower()} with key {_shown_id(id)}"
        if not self.is_on:
            return f"{message}, and this app has no keys. Set {kind.option}"
        return f"{message}, which is not among the {kind.option} of this app. Add that key if it is one of yours"

    def _verify(self, key: bytes, bound: bytes, body: bytes) -> bytes | None:
        tag, data = body[:_TAG_BYTES], body[_TAG_BYTES:]
        return data if hmac.compare_digest(tag, _sign(key, bound, data)) else None

    def _decrypt(self, key: bytes, bound: bytes, body: bytes) -> bytes | None:
        start = _SALT_BYTES + _NONCE_BYTES
        salt, nonce, text = body[:_SALT_BYTES], body[_SALT_BYTES:start], body[start:]
        if len(nonce) < _NONCE_BYTES:
            return None
        try:
            return self._cipher_for(key, salt).decrypt(nonce, text, bound)
        except self._bad_tag:
            return None

    def _cipher_for(self, key: bytes, salt: bytes) -> _Cipher:
        """The cipher of one payload: its key is HKDF-Expand (RFC 5869) of the ring's key, with the salt in the info."""
        assert self._cipher is not None, "there is an encryption key"
        return self._cipher(hmac.digest(key, _KEY_LABEL + salt + b"\x01", "sha256"))


# -- the format --------------------------------------------------------------------------------------

_KINDS = {kind.value: kind for kind in _Kind}
_PURPOSES = {purpose.value: purpose for purpose in Purpose}


def _head(kind: _Kind, purpose: Purpose, id: bytes) -> bytes:
    return b"".join((SEALED, bytes((VERSION,)), kind.value, purpose.value, bytes((len(id),)), id))


def _read_head(sealed: bytes) -> tuple[_Kind, bytes, int]:
    """Kind, the key's id, and where the head ends."""
    if len(sealed) > _HEAD_BYTES:
        version, end = sealed[_HEAD_BYTES - 4], _HEAD_BYTES + sealed[_HEAD_BYTES - 1]
        if version != VERSION:
            raise Undecodable(
                f"refused: it is sealed in format {version}, and this version knows format {VERSION}",
                worker_specific=True,
            )
        kind = _KINDS.get(sealed[_HEAD_BYTES - 3 : _HEAD_BYTES - 2])
        if kind is not None and end <= len(sealed):
            return kind, sealed[_HEAD_BYTES:end], end
    raise Undecodable("refused: its seal was altered")


def purpose_of(data: bytes) -> Purpose | None:
    """The purpose that sealed data claims, which only opening verifies. None if it is not sealed."""
    return _PURPOSES.get(data[_HEAD_BYTES - 2 : _HEAD_BYTES - 1]) if data.startswith(SEALED) else None


def _bound_context(head: bytes, queue: str, name: str) -> bytes:
    """The context that a seal binds beside the payload. The head names the kind, the purpose and the key.

    The lengths are part of it, so that two different places never give the same bytes.
    """
    where, who = queue.encode(), name.encode()
    return b"".join((_LENGTHS.pack(len(head), len(where), len(who)), head, where, who))


def _sign(key: bytes, bound: bytes, data: bytes) -> bytes:
    return hmac.digest(key, bound + data, "sha256")


def _shown_id(id: bytes) -> str:
    """The id of a key for a message. An invalid id is not shown, because any program may have written it."""
    text = id.decode("ascii", "replace")
    return repr(text) if _ID.fullmatch(text) else "of no valid id"


def _load_cipher() -> tuple[Callable[[bytes], _Cipher], type[Exception]]:
    """AES-GCM, and the error that it raises for an invalid tag."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidOption(
            "encryption_keys need the package cryptography. Run pip install 'windlass[crypto]', or use signing_keys, "
            "which need no package"
        ) from None
    return AESGCM, InvalidTag


# -- keys --------------------------------------------------------------------------------------------
# No message here shows the given value, because it may be a key in the wrong place.


def check_keys(given: object, option: str, *, longest: int) -> Mapping[str, bytes]:
    """Check the keys of a ring, id → key. An empty ring is an error: only None turns seals off."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        raise InvalidOption(f'{option} must map ids to keys, like {{"2026-11": b"…"}}. The first key seals')
    for place, (id, key) in enumerate(given.items(), 1):
        _check_id(id, f"key {place} of {option}")
        if not isinstance(key, bytes):
            raise InvalidOption(
                f"key {id!r} of {option} must be bytes, not {type(key).__name__}. Decode it first, for example with "
                "base64.b64decode(…)"
            )
        if not KEY_BYTES <= len(key) <= longest:
            wanted = str(KEY_BYTES) if longest == KEY_BYTES else f"{KEY_BYTES} to {longest:,}"
            raise InvalidOption(
                f"key {id!r} of {option} has {len(key)} bytes and must have {wanted}. Make one with "
                f"os.urandom({KEY_BYTES})"
            )
    return given


def _ring(keys: Mapping[str, bytes]) -> dict[bytes, bytes]:
    return {id.encode(): key for id, key in keys.items()}


def read_keys(variable: str, text: str) -> dict[str, bytes]:
    """Read keys from an environment variable: `id:base64`, separated by spaces. The first key seals."""
    if not text.strip():  # a missing secret must not turn seals off
        raise InvalidOption(f"{variable} is empty. Set it to id:base64, or unset it to use no keys")
    found: dict[str, bytes] = {}
    for place, word in enumerate(text.split(), 1):
        id, colon, written = word.partition(":")
        if not colon:
            raise InvalidOption(f"word {place} of {variable} is not id:base64. Make the base64 part with {_NEW_KEY}")
        _check_id(id, f"key {place} in {variable}")
        if id in found:
            raise InvalidOption(f"{variable} has two keys {id!r}. Give one of them another id")
        try:
            found[id] = base64.b64decode(written, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidOption(f"key {id!r} in {variable} is not base64. Make one with {_NEW_KEY}") from None
    return found


def _check_id(id: object, what: str) -> None:
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidOption(
            f"the id of {what} is invalid. Use 1 to 64 letters, digits, dots, underscores and hyphens, beginning with "
            "a letter or digit, for example a date"
        )


UNSEALED = Seal()
