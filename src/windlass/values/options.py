"""The options of enqueue and update: checks them and builds a `NewJob`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from windlass.errors import InvalidOption, InvalidTime
from windlass.values.durability import Durability
from windlass.values.durations import Duration, Moment, expiry, milliseconds, run_time
from windlass.values.ids import random_id
from windlass.values.job import PLAIN, Change, NewJob
from windlass.values.validation import (
    MAX_COUNT,
    check_choice,
    check_flag,
    check_id,
    check_known,
    check_payload,
    check_priority,
    check_whole,
    listed,
)

MAX_TAGS = 10  # of one job: they are read with every lease
MAX_TAG_BYTES = 64
UpdateRunAt = bool | Literal["later", "earlier"]
_RUN_AT_MODES = {True: "always", False: "never", "later": "later", "earlier": "earlier"}


class LimitOptions(TypedDict, total=False):
    """The limits of a job."""

    max_failures: int
    max_stalls: int
    min_backoff: Duration
    max_backoff: Duration
    max_snoozes: int


class CommonJobOptions(LimitOptions, total=False):
    """The options that a task, or a queue's defaults, can give to its jobs."""

    priority: int
    tags: Collection[str]
    expires: Duration | datetime | None


class JobOptions(CommonJobOptions, total=False):
    """The options of `enqueue`."""

    id: str
    run_at: Moment | None
    delay: Duration | None
    if_exists: Literal["update", "keep"]
    update_data: bool
    update_run_at: UpdateRunAt
    update_priority: bool
    update_max_failures: bool
    update_max_stalls: bool
    update_min_backoff: bool
    update_max_backoff: bool
    reset_counts: bool
    durability: str


class UpdateOptions(CommonJobOptions, total=False):
    """The changes of `update`."""

    data: bytes
    run_at: Moment | None
    delay: Duration | None
    when: Literal["always", "later", "earlier"]
    reset_counts: bool


LIMITS = tuple(LimitOptions.__annotations__)
COMMON_JOB_OPTIONS = tuple(CommonJobOptions.__annotations__)


@dataclass(frozen=True, slots=True)
class RawJob:
    """A payload with its options, for `enqueue_many`: `RawJob(b"…", delay="5m")`."""

    data: bytes
    options: JobOptions

    def __init__(self, data: bytes, **options: Unpack[JobOptions]) -> None:
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "options", options)

    def __repr__(self) -> str:
        return f"RawJob(options={self.options!r})"  # payloads may be long, and may be secret


_UPDATES = frozenset(name for name in JobOptions.__annotations__ if name.startswith("update_")) | {"reset_counts"}


def new_job(data: bytes, options: JobOptions, max_payload: int, spare_id: str | None = None) -> NewJob:
    """Check data and options and build a job. Without an id it gets `spare_id`, or a random one."""
    payload = check_payload(data, max_payload)
    if not options:
        return NewJob(spare_id or random_id(), payload, fresh=True)
    check_known(options, JobOptions, "enqueue")
    given_id = options.get("id")
    update_data = _flag(options, "update_data", True)
    extras = nonempty(given_extras(options))
    change = Change(
        when=run_time(options.get("run_at"), options.get("delay")),
        **check_numbers(options),
        update_data=update_data,
        update_run_at=_run_at_mode(options.get("update_run_at", True)),
        update_priority=_flag(options, "update_priority", True),
        update_max_failures=_flag(options, "update_max_failures", True),
        update_max_stalls=_flag(options, "update_max_stalls", True),
        update_min_backoff=_flag(options, "update_min_backoff", True),
        update_max_backoff=_flag(options, "update_max_backoff", True),
        reset_counts=_flag(options, "reset_counts", update_data),
        extras=extras,
        replace_extras=update_data,
        keep_extras=not (update_data or extras),
        keep=check_choice(options.get("if_exists", "update"), "if_exists", ("update", "keep")) == "keep",
        limits_given=_gives_limits(options),
    )
    _check_expiry(change)
    id = check_id(given_id) if given_id is not None else spare_id or random_id()
    return NewJob(
        id,
        payload,
        PLAIN if change == PLAIN else change,
        fresh=given_id is None,
        has_update_options=not _UPDATES.isdisjoint(options) or options.get("if_exists") == "update",
        durability=Durability.parse(options["durability"]) if "durability" in options else None,
    )


def changed_job(id: str, changes: UpdateOptions, max_payload: int) -> NewJob:
    """Check and build the change of an existing job."""
    check_known(changes, UpdateOptions, "update")
    if not changes:
        raise InvalidOption(f"update needs at least one change: {listed(UpdateOptions)}")
    timed = "run_at" in changes or "delay" in changes
    mode = check_choice(changes.get("when", "always"), "when", ("always", "later", "earlier"))
    if "when" in changes and not timed:
        raise InvalidOption("when= needs a run time: pass run_at or delay with it")
    data = check_payload(changes["data"], max_payload) if "data" in changes else b""
    extras = given_extras(changes)
    change = Change(
        when=run_time(changes.get("run_at"), changes.get("delay")),
        **check_numbers(changes),
        update_data="data" in changes,
        update_run_at=mode if timed else "never",
        update_priority="priority" in changes,
        update_max_failures="max_failures" in changes,
        update_max_stalls="max_stalls" in changes,
        update_min_backoff="min_backoff" in changes,
        update_max_backoff="max_backoff" in changes,
        reset_counts=_flag(changes, "reset_counts", False),
        must_exist=True,
        extras=extras,
        replace_extras=False,
        keep_extras=not extras,
        limits_given=_gives_limits(changes),
    )
    _check_expiry(change)
    return NewJob(check_id(id), data, change)


def check_numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the given priority and limits. Backoffs are returned in milliseconds."""
    numbers: dict[str, Any] = {}
    if "priority" in options:
        numbers["priority"] = check_priority(options["priority"])
    for name in ("max_failures", "max_stalls"):
        if name in options:
            numbers[name] = check_whole(options[name], name, 0, MAX_COUNT)
    for name in ("min_backoff", "max_backoff"):
        if name in options:
            numbers[name] = milliseconds(options[name], name)
    return numbers


def given_extras(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Extras` that the options give, checked."""
    extras: dict[str, Any] = {}
    if "tags" in options:
        extras["tags"] = check_tags(options["tags"])
    if "expires" in options:
        extras["expires"] = 0 if options["expires"] is None else expiry(options["expires"])
    if "max_snoozes" in options:
        extras["max_snoozes"] = check_max_snoozes(options["max_snoozes"])
    return extras


def nonempty(extras: dict[str, Any]) -> dict[str, Any]:
    """These extras without those that remove one: a new job has none to remove."""
    return {name: value for name, value in extras.items() if value or name == "max_snoozes"}


def check_max_snoozes(number: object) -> int:
    """Check how often a job may snooze."""
    return check_whole(number, "max_snoozes", 0, MAX_COUNT)


def _check_expiry(change: Change) -> None:
    kind, expires = change.extras.get("expires") or ("in", 0)
    if kind == "at" and change.when is not None and change.when[0] == "at" and expires <= change.when[1]:
        raise InvalidTime("the job expires before it may run: expires must be later than run_at")


def check_tags(tags: object) -> tuple[str, ...]:
    """Check the tags of a job: a few short strings. Repeated ones count once."""
    if isinstance(tags, str | bytes) or not isinstance(tags, Collection):  # an iterator can be read only once
        raise InvalidOption(f'tags must be a list of strings, like ["invoice", "eu"], not {tags!r}')
    found = tuple(dict.fromkeys(check_tag(tag) for tag in tags))
    if len(found) > MAX_TAGS:
        raise InvalidOption(f"a job has at most {MAX_TAGS} tags, not {len(found)}: put other facts into its payload")
    return found


def check_tag(tag: object) -> str:
    """Check one tag: short text without spaces, so that it can be typed in a filter."""
    if not isinstance(tag, str) or not tag.isprintable() or " " in tag or not 1 <= len(tag.encode()) <= MAX_TAG_BYTES:
        shown = repr(tag)[:80]
        raise InvalidOption(f"{shown} is not a tag: use 1 to {MAX_TAG_BYTES} bytes of printable text without spaces")
    return tag


def _gives_limits(options: Mapping[str, object]) -> bool:
    return any(name in options for name in LIMITS)


def _flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    return check_flag(options.get(name, default), name)


def _run_at_mode(value: object) -> str:
    if value not in ("later", "earlier") and not isinstance(value, bool):
        raise InvalidOption(f'update_run_at must be True, False, "later" or "earlier", not {value!r}')
    return _RUN_AT_MODES[value]
