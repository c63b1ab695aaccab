"""The seal by itself: what is bound, what is refused and in which words, and which keys it takes. No server."""

from __future__ import annotations

import hmac
import os
import subprocess
import sys
from base64 import b64encode
from typing import Any

import pytest

from tests.support.internals import seal_of
from windlass import Windlass
from windlass.errors import InvalidOption, Undecodable, UnsupportedByLayout
from windlass.storage.native.sealing import SEALED, Purpose, Seal, read_keys

OLD, NEW = b"o" * 32, b"n" * 32
SIGNING = Seal({"k1": NEW})
ENCRYPTING = Seal(None, {"k1": NEW})
DATA = b'{"task":"pay"}'
both_kinds = pytest.mark.parametrize("seal", [SIGNING, ENCRYPTING], ids=["signed", "encrypted"])


def closed(seal: Seal, data: bytes = DATA) -> bytes:
    return seal.close(Purpose.JOB, "bills", "job-1", data)


def opened(seal: Seal, sealed: bytes) -> bytes:
    return seal.open(Purpose.JOB, "bills", "job-1", sealed)


def refusal(
    seal: Seal, sealed: bytes, purpose: Purpose = Purpose.JOB, queue: str = "bills", name: str = "job-1"
) -> str:
    with pytest.raises(Undecodable) as caught:
        seal.open(purpose, queue, name, sealed)
    return caught.value.reason


# -- what is sealed --------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("data", [b"", b"x", DATA, SEALED, bytes(range(256)) * 5000])
@pytest.mark.parametrize("purpose", Purpose)
def test_what_was_sealed_is_opened_byte_for_byte(seal: Seal, purpose: Purpose, data: bytes) -> None:
    sealed = seal.close(purpose, "bills", "ä", data)
    assert sealed.startswith(SEALED)
    assert seal.open(purpose, "bills", "ä", sealed) == data


def test_what_is_signed_can_be_read_by_all_and_what_is_encrypted_by_none() -> None:
    assert closed(SIGNING).endswith(DATA)
    assert b"pay" not in closed(ENCRYPTING)
    assert closed(ENCRYPTING) != closed(ENCRYPTING), "the same payload twice must not be seen to be the same"


def test_the_format_is_the_one_that_is_written_down() -> None:
    """Computed here from the description alone: a later version must read what this one has written."""
    head = SEALED + b"\x01" + b"s" + b"j" + b"\x02" + b"k1"
    place = b"".join(len(part).to_bytes(4, "big") for part in (head, b"bills", b"job-1")) + head + b"bills" + b"job-1"
    assert closed(SIGNING) == head + hmac.digest(NEW, place + DATA, "sha256") + DATA

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    head = SEALED + b"\x01" + b"e" + b"j" + b"\x02" + b"k1"
    place = b"".join(len(part).to_bytes(4, "big") for part in (head, b"bills", b"job-1")) + head + b"bills" + b"job-1"
    salt, nonce = bytes(range(16)), bytes(range(12))
    key = HKDFExpand(SHA256(), 32, b"windlass cipher key" + salt).derive(NEW)
    assert opened(ENCRYPTING, head + salt + nonce + AESGCM(key).encrypt(nonce, DATA, place)) == DATA


# -- what is refused -------------------------------------------------------------------------------


@both_kinds
def test_whichever_bit_is_changed_it_is_refused(seal: Seal) -> None:
    sealed = closed(seal)
    for place in range(len(sealed)):
        for change in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            forged = sealed[:place] + bytes([sealed[place] ^ change]) + sealed[place + 1 :]
            assert "pay" not in refusal(seal, forged), f"byte {place}, changed by {change:#x}"


@both_kinds
def test_what_is_cut_or_continued_is_refused(seal: Seal) -> None:
    sealed = closed(seal)
    for length in range(len(sealed)):
        refusal(seal, sealed[:length])
    assert "altered or moved" in refusal(seal, sealed + b"\x00")


@both_kinds
@pytest.mark.parametrize(
    "place",
    [
        {"queue": "other"},
        {"name": "job-2"},
        {"name": "job-1 "},
        {"purpose": Purpose.RESULT},
        {"purpose": Purpose.TICK},
        {"purpose": Purpose.SCHEDULE},
        {"queue": "billsjob", "name": "-1"},  # the same letters, cut elsewhere
    ],
    ids=str,
)
def test_what_was_moved_is_refused(seal: Seal, place: dict[str, Any]) -> None:
    assert "altered or moved" in refusal(seal, closed(seal), **place)


@both_kinds
@pytest.mark.parametrize("purpose", [purpose for purpose in Purpose if purpose is not Purpose.JOB])
def test_what_says_that_it_is_something_else_is_refused(seal: Seal, purpose: Purpose) -> None:
    """The purpose in the head is only a hint: it is bound as all the rest is."""
    sealed = bytearray(closed(seal))
    sealed[len(SEALED) + 2] = purpose.value[0]
    assert "altered or moved" in refusal(seal, bytes(sealed), purpose)


def test_what_names_another_key_of_the_ring_is_refused() -> None:
    sealed = closed(Seal({"k1": NEW, "k2": OLD}))
    assert "altered or moved" in refusal(Seal({"k1": NEW, "k2": OLD}), sealed.replace(b"\x02k1", b"\x02k2"))
    assert "altered or moved" in refusal(Seal({"k1": OLD}), sealed)


def test_a_key_in_both_rings_does_not_make_one_of_the_other() -> None:
    seal = Seal({"k1": NEW}, {"k1": NEW})
    for sealed, other in ((closed(SIGNING), b"e"), (closed(ENCRYPTING), b"s")):
        at = len(SEALED) + 1
        refusal(seal, sealed[:at] + other + sealed[at + 1 :])


@both_kinds
def test_what_is_unsigned_is_refused_and_named_so(seal: Seal) -> None:
    for data in (b"", DATA, SEALED[:-1], b"\x00" + closed(seal)):
        assert "unsigned" in refusal(seal, data)


def test_without_keys_all_is_taken_but_what_is_sealed() -> None:
    plain = Seal()
    assert closed(plain) == DATA
    assert opened(plain, DATA) == DATA
    assert refusal(plain, closed(SIGNING)) == (
        "refused: it is signed with key 'k1', and this app has no keys. Set signing_keys"
    )
    assert "Set encryption_keys" in refusal(plain, closed(ENCRYPTING))


def test_a_format_of_the_future_is_named_so() -> None:
    sealed = closed(SIGNING)
    later = sealed[: len(SEALED)] + b"\x02" + sealed[len(SEALED) + 1 :]
    assert "sealed in format 2" in refusal(SIGNING, later)


def test_an_id_that_somebody_made_up_is_not_shown() -> None:
    forged = SEALED + b"\x01sj\x05<b>\n\x07" + bytes(40)
    assert "<b>" not in refusal(SIGNING, forged)


# -- changing keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ring", ["signing_keys", "encryption_keys"])
def test_the_first_key_writes_and_all_read(ring: str) -> None:
    old, both, new = Seal(**{ring: {"a": OLD}}), Seal(**{ring: {"b": NEW, "a": OLD}}), Seal(**{ring: {"b": NEW}})
    assert opened(both, closed(old)) == DATA
    assert opened(new, closed(both)) == DATA
    assert [both.is_current(closed(seal)) for seal in (old, both, new)] == [False, True, True]


@pytest.mark.parametrize("ring", ["signing_keys", "encryption_keys"])
def test_a_key_that_was_taken_out_opens_nothing(ring: str) -> None:
    old, new = Seal(**{ring: {"a": OLD}}), Seal(**{ring: {"b": NEW}})
    assert f"with key 'a', which is not among the {ring}" in refusal(new, closed(old))


def test_with_both_rings_it_encrypts_and_still_reads_what_is_signed() -> None:
    both = Seal({"s": OLD}, {"e": NEW})
    assert b"pay" not in closed(both)
    assert opened(both, closed(both)) == DATA
    assert opened(both, closed(Seal({"s": OLD}))) == DATA
    assert "which is not among the signing_keys" in refusal(ENCRYPTING, closed(Seal({"s": OLD})))


# -- keys ------------------------------------------------------------------------------------------

SECRET = "hunter2hunter2hunter2hunter2hunter2"


@pytest.mark.parametrize("ring", ["signing_keys", "encryption_keys"])
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "must map ids to keys"),
        ([SECRET.encode()], "must map ids to keys"),
        (SECRET.encode(), "must map ids to keys"),
        ({"a": SECRET}, "must be bytes, not str"),
        ({"a": SECRET[:31].encode()}, "has 31 bytes and must have 32"),
        ({"a": SECRET.encode() * 40}, "has 1400 bytes and must have 32"),
        ({f"{SECRET}:{SECRET}": b"a"}, "the id of key 1"),
        ({SECRET.encode(): b"a"}, "the id of key 1"),
        ({"ok": OLD, SECRET * 2: OLD}, "the id of key 2"),
        ({"": OLD}, "the id of key 1"),
    ],
    ids=range(10),
)
def test_keys_that_cannot_be_used_are_refused_and_not_shown(ring: str, keys: Any, told: str) -> None:
    with pytest.raises(InvalidOption, match=told) as caught:
        Windlass("redis://localhost", **{ring: keys})
    assert "hunter2" not in str(caught.value)
    assert ring in str(caught.value)


def test_a_cipher_key_has_exactly_32_bytes() -> None:
    Seal({"a": bytes(33)})
    with pytest.raises(InvalidOption, match=r"33 bytes and must have 32[.]"):
        Seal(None, {"a": bytes(33)})


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SIGNING_KEYS", f"2026-11:{b64encode(NEW).decode()} 2026-05:{b64encode(OLD).decode()}")
    with Windlass("redis://localhost") as app:
        assert app.given.signing_keys == {"2026-11": NEW, "2026-05": OLD}
        assert list(app.given.signing_keys) == ["2026-11", "2026-05"]
        assert app.given.encryption_keys is None
    with Windlass("redis://localhost", signing_keys={"own": OLD}) as app:
        assert app.given.signing_keys == {"own": OLD}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (SECRET, "word 1 of WINDLASS_SIGNING_KEYS is not id:base64"),
        (f"a:{SECRET}!", "key 'a' in WINDLASS_SIGNING_KEYS is not base64"),
        ("a:aHVudGVyMg== ", "key 'a' of signing_keys has 7 bytes"),
        (f"a:{b64encode(OLD).decode()} {SECRET}", "word 2"),
        (f"{SECRET}/{SECRET}:aa", "the id of key 1 in WINDLASS_SIGNING_KEYS"),
        (f"a:{b64encode(OLD).decode()} a:{b64encode(NEW).decode()}", "two keys 'a'"),
    ],
    ids=range(8),
)
def test_a_variable_that_cannot_be_read_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    monkeypatch.setenv("WINDLASS_SIGNING_KEYS", text)
    with pytest.raises(InvalidOption, match=told) as caught:
        Windlass("redis://localhost")
    for secret in ("hunter2", "aHVudGVyMg", b64encode(OLD).decode()):
        assert secret not in str(caught.value)


def test_what_openssl_prints_can_be_used() -> None:
    assert read_keys("WINDLASS_SIGNING_KEYS", f"a:{b64encode(OLD).decode()}\nb:{b64encode(NEW).decode()}\n") == {
        "a": OLD,
        "b": NEW,
    }


def test_nothing_shows_its_keys() -> None:
    key = os.urandom(32)
    with Windlass("redis://localhost", signing_keys={"a": key}, encryption_keys={"b": key}) as app:
        shown = [app, app.given, seal_of(app), app.queue("q"), app.layout("q"), app.schedules]
        for each in (str(thing) + repr(thing) for thing in shown):
            for secret in (repr(key)[2:-1], key.hex(), b64encode(key).decode()):
                assert secret not in each


# -- the extra -------------------------------------------------------------------------------------


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_the_extra_encryption_says_what_to_install() -> None:
    told = run_python(
        "import sys; sys.modules['cryptography'] = None\n"
        "from windlass import Windlass\n"
        "Windlass('redis://localhost', signing_keys={'a': bytes(32)})\n"
        "try: Windlass('redis://localhost', encryption_keys={'a': bytes(32)})\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    assert told.startswith("InvalidOption")
    assert "pip install 'windlass[crypto]'" in told


def test_only_encryption_loads_the_extra() -> None:
    """Its ciphers at least: where it is installed, redis-py loads other parts of it."""
    told = run_python(
        "import sys\n"
        "from windlass import Windlass\n"
        "CIPHERS = 'cryptography.hazmat.primitives.ciphers.aead'\n"
        "Windlass('redis://localhost', signing_keys={'a': bytes(32)})\n"
        "print(CIPHERS in sys.modules)\n"
        "Windlass('redis://localhost', encryption_keys={'a': bytes(32)})\n"
        "print(CIPHERS in sys.modules)"
    )
    assert told.split() == ["False", "True"]


# -- other layouts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["worqr", "workqueue", "queasy", "hworker", "processor"])
def test_a_layout_whose_peers_know_no_seals_is_refused_never_used_without(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    told = f"layout '{layout}', whose peers cannot read signed or encrypted jobs. Use a native queue"
    with Windlass("redis://localhost", signing_keys={"a": NEW}) as app, pytest.raises(UnsupportedByLayout, match=told):
        app.queue("q", layout=layout)
    with pytest.raises(UnsupportedByLayout, match=told):
        Windlass("redis://localhost", signing_keys={"a": NEW}, layouts={"q": layout})
    monkeypatch.setenv("WINDLASS_LAYOUTS", layout)
    with pytest.raises(UnsupportedByLayout, match=told):
        Windlass("redis://localhost", encryption_keys={"a": NEW})
    with Windlass("redis://localhost", layouts={"*": layout}) as app:
        assert app.queue("q").layout == layout, "without keys it is as ever"
