"""The records that Python and Lua share: both read and pack the same bytes, and no script spells a format itself."""

from __future__ import annotations

import re
from importlib.resources import files

import msgspec
import pytest
import redis

from windlass.storage import formats
from windlass.storage.formats import CONSTANTS, CORE, LEASE, META, Record, record_functions
from windlass.storage.lua import refuse_redefinition
from windlass.values.job import NO_EXTRAS, PLAIN

NATIVE = files("windlass.storage.native") / "lua"


@pytest.mark.parametrize("name", sorted(formats.RECORDS))
def test_lua_and_python_pack_the_same_bytes(client: redis.Redis, name: str) -> None:
    record: Record = formats.RECORDS[name]
    values = [index + 1 for index in range(len(record.fields))]
    packed = record.pack(*values)
    assert len(packed) == record.size == int(CONSTANTS[f"{name}_SIZE"])
    prefix = name.lower()
    script = record_functions(name) + f"local r = unpack_{prefix}(ARGV[1], 3) return {{ pack_{prefix}(r), r[ARGV[2]] }}"
    for place, field in enumerate(record.fields):
        assert client.eval(script, 0, b"xx" + packed, field) == [packed, values[place]]
        offset = record.offset(field)
        assert packed[offset : offset + 8].lstrip(b"\0").startswith(bytes([values[place]]))


def test_no_script_spells_a_format_that_python_knows() -> None:
    known = {record.lua_format for record in formats.RECORDS.values() if len(record.fields) > 2}
    for path in [*NATIVE.iterdir(), *(NATIVE / "shared").iterdir()]:
        if path.name.endswith(".lua"):
            assert not known & set(re.findall(r"'(>[BI\d]+)'", path.read_text("utf-8"))), path.name


def test_a_script_cannot_define_a_shared_constant_again() -> None:
    with pytest.raises(ValueError, match=r"turn defines MAX_ITEMS, which storage/formats\.py defines"):
        refuse_redefinition("turn", "local x = 1\nlocal MAX_ITEMS = 2", CONSTANTS)


def test_the_state_of_a_queue_stays_in_the_small_encoding() -> None:
    assert CORE.size <= 64
    assert LEASE.offset("fence") == 1


@pytest.mark.parametrize("damaged", [b"\xc1", b"\x93", b"\xa3abc", b"7"])
def test_damaged_extras_read_as_none(damaged: bytes) -> None:
    packed = META.pack(formats.META_VERSION, 0, 5, 10, 3, 1, 0, 2000, 300_000, 0, len(damaged)) + damaged
    *_, failures, stalls, _limits, extras = formats.read_meta(packed)
    assert (failures, stalls, extras) == (1, 0, NO_EXTRAS)


def test_extras_of_a_later_version_are_ignored() -> None:
    later = msgspec.msgpack.encode({"invented_later": [1, 2]})
    packed = META.pack(formats.META_VERSION, 0, 5, 10, 3, 0, 0, 2000, 300_000, 0, len(later)) + later
    assert formats.read_meta(packed)[-1] == NO_EXTRAS


def test_a_plain_job_needs_no_record_while_the_defaults_are_those_of_the_format() -> None:
    assert formats.pack_change(PLAIN) == b""
    assert formats.meta_length(b"short") is None
