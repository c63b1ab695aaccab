"""The callers of a session: threads that call at the same time each have one of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.internals import give_back_caller, take_caller
from windlass.storage.port import Call, Script
from windlass.transport import Endpoint, Session, SessionOptions

ROUNDS = 3000
THREADS = 6


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless_threads")
def test_threads_that_take_callers_at_the_same_time_are_not_in_each_others_way() -> None:
    session = Session(Endpoint.parse("unix:///nowhere"), SessionOptions(scripts=()))
    call = Call(Script("none", ""), ("key",), (), read=lambda reply: reply, writes=False, about="nothing")
    errors: list[Exception] = []
    taken: set[int] = set()

    def take_and_give_back() -> None:
        try:
            for _ in range(ROUNDS):
                caller = take_caller(session, call)
                assert id(caller) not in taken, "two threads have the same caller"
                taken.add(id(caller))
                taken.remove(id(caller))
                give_back_caller(session, caller)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=take_and_give_back) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(session.callers) <= THREADS
