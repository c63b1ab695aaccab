"""Random ids."""

from __future__ import annotations

import re

from windlass.values.ids import random_id, random_ids
from windlass.values.validation import check_id, check_name


def test_an_id_is_sixteen_letters_and_digits() -> None:
    for id in random_ids(2000):
        assert re.fullmatch(r"[A-Za-z0-9]{16}", id)
        assert check_id(id) == check_name(id) == id


def test_ids_are_all_different() -> None:
    assert len({*random_ids(5000), *(random_id() for _ in range(5000))}) == 10_000


def test_as_many_as_were_asked_for() -> None:
    for count in (0, 1, 2, 3, 1000):
        assert len(random_ids(count)) == count


def test_every_character_is_in_use() -> None:
    assert len(set("".join(random_ids(2000)))) == 62
