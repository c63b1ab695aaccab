"""States, cursors, flags and options that there are not are refused, and one bad job of a batch stops them all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.leasing import take
from tests.support.bad_input import Refused
from windlass import Queue, RawJob, State, Windlass
from windlass.errors import InvalidInput, InvalidOption

# -- states and cursors ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["leased", "", "READY", 5, b"ready"])
def test_a_state_that_is_none(queue: Queue, refused: Refused, state: Any) -> None:
    queue.enqueue(b"")
    for verb in (lambda: queue.jobs(state), lambda: queue.purge(state)):
        with refused(InvalidOption, repr(state), "ready, scheduled, blocked, running, dead"):
            verb()


def test_leased_jobs_are_not_purged_by_themselves(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"")
    take(queue)
    with refused(InvalidOption, "cancel them, or purge the whole queue"):
        queue.purge("running")


@pytest.mark.parametrize("state", list(State))
def test_a_cursor_that_is_none(queue: Queue, refused: Refused, state: State) -> None:
    queue.enqueue(b"", id="a")
    queue.enqueue(b"", id="b")
    strange: list[Any] = ["?", "abc", "YWJj", "\udcff", 5, b"YWJj"]
    if state is not State.READY:
        strange.append(queue.jobs(State.READY, limit=1).cursor)  # one of ours, but of other pages
    for cursor in strange:
        with refused(InvalidOption, "cursor"):
            queue.jobs(state, cursor=cursor)


# -- options ---------------------------------------------------------------------------------------


def test_an_option_that_there_is_not(queue: Queue, app: Windlass, refused: Refused) -> None:
    loose: Any = queue
    queue.enqueue(b"", id="a")
    verbs: list[Callable[[], Any]] = [
        lambda: loose.enqueue(b"", colour="red"),
        lambda: loose.enqueue(b"", id="a", priorty=1),
        lambda: loose.enqueue_many([b"good", RawJob(b"", colour="red")]),  # type: ignore[call-arg]
        lambda: loose.update("a", colour="red"),
        lambda: loose.update("a", data=b"", update_data=True),
    ]
    for verb in verbs:
        with refused(InvalidOption, "has no option"):
            verb()
    wrong: list[Callable[[], Any]] = [
        lambda: loose.lease(colour="red"),
        lambda: loose.retry(None, colour="red"),
        lambda: loose.jobs("ready", colour="red"),
        lambda: loose.clean(colour="red"),
        lambda: Windlass("redis://host", colour="red"),  # type: ignore[call-arg]
    ]
    for verb in wrong:
        with pytest.raises(TypeError, match="colour"):
            verb()


def test_an_update_of_nothing(queue: Queue, refused: Refused) -> None:
    queue.enqueue(b"", id="a")
    with refused(InvalidOption, "update needs at least one change"):
        queue.update("a")
    with refused(InvalidOption, "when=", "pass run_at or delay"):
        queue.update("a", when="later")
    with refused(InvalidOption, "when=", "pass run_at or delay"):
        queue.update("a", when="later", data=b"")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("if_exists", "replace"),
        ("if_exists", None),
        ("if_exists", True),
        ("update_run_at", "sometimes"),
        ("update_run_at", None),
        ("update_run_at", 1),
        ("update_data", "yes"),
        ("update_priority", 1),
        ("update_max_failures", None),
        ("update_max_stalls", 0),
        ("update_min_backoff", "no"),
        ("update_max_backoff", []),
        ("reset_counts", None),
    ],
)
def test_a_flag_that_is_none(queue: Queue, refused: Refused, option: str, value: Any) -> None:
    queue.enqueue(b"", id="a")
    given: dict[str, Any] = {option: value}
    for verb in (
        lambda: queue.enqueue(b"", id="a", **given),
        lambda: queue.enqueue_many([b"good", RawJob(b"", id="a", **given)]),
    ):
        with refused(InvalidOption, option, repr(value)):
            verb()


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"priority": 10},
        {"run_at": math.nan},
        {"delay": "soon"},
        {"max_failures": -1},
        {"min_backoff": -1},
        {"if_exists": "?"},
        {"colour": "red"},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("place", [0, 1500, 2999])
def test_one_bad_job_in_a_batch_and_none_is_enqueued(
    queue: Queue, refused: Refused, options: dict[str, Any], place: int
) -> None:
    jobs: list[bytes | RawJob] = [b"good"] * 3000  # more than one call takes
    jobs[place] = RawJob(b"bad", **options)
    before = queue.counts()
    with pytest.raises(InvalidInput):
        queue.enqueue_many(jobs)
    assert queue.counts() == before
