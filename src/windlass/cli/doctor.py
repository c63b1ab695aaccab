"""`windlass doctor`: whether the server can be trusted with jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import rich_click as click

from windlass.app import Windlass
from windlass.cli.connect import with_server
from windlass.cli.options import json_option, option_of
from windlass.cli.output import cell, plain, say_json, say_table
from windlass.cli.status import look
from windlass.doctor import GRAVITY, Finding, can_read_queues, examine
from windlass.doctor.finding import warning
from windlass.errors import WindlassError

FAILED = 1


@click.command()
@option_of("doctor")("--strict", is_flag=True, help="Warnings count, too: exit with 1 if there is one.")
@json_option
@with_server
def doctor(app: Windlass, strict: bool, as_json: bool) -> None:
    """Look whether the server can be trusted with jobs.

    It looks at eviction, persistence, fsync, memory, replicas, version and known holes, clock, latency, rights and
    more, and changes nothing. In a cluster every primary is examined, with Sentinel the primary. What this user may
    not see is shown as unseen, with the rule that would show it.

    A danger means that jobs can be lost, or that none can be worked on: then it exits with 1, and a worker does not
    start on the worst of them.

    \b
      windlass doctor
      windlass doctor --url redis://localhost:6379/0 --strict
      windlass doctor --json | jq '.findings[] | select(.level == "danger")'
    """
    found = [*app.run(examine), *_queues(app)]
    worst = max(found, key=lambda finding: GRAVITY[finding.level]).level if found else "ok"
    if as_json:
        say_json({"worst": worst, "findings": [plain(finding) for finding in found]})
    else:
        _say(found)
    if GRAVITY[worst] >= GRAVITY["warning" if strict else "danger"]:
        sys.exit(FAILED)


def _queues(app: Windlass) -> Iterator[Finding]:
    """Queues that stand still because of jobs that cannot be decoded."""
    if not app.run(can_read_queues):
        yield Finding("queues", "unseen", "this user may not look at the queues", "the line in docs/acl/reader.acl")
        return
    try:
        found = look(app)["queues"]
    except WindlassError:
        return  # another finding says which server cannot be reached
    for queue in found:
        for told in queue.get("suspended", ()):
            yield warning(
                "queues",
                f"{queue['queue']}: worker {told['worker']} takes no jobs from it: {told['reason']}",
                f"check the code and the keys of that worker; see windlass dead list --broken {queue['queue']}",
            )
        if queue.get("broken", 0) >= app.max_broken:
            yield warning(
                "queues",
                f"{queue['queue']}: {queue['broken']} jobs cannot be decoded, as many as it may keep (max_broken)",
                f"revive or purge them: windlass dead retry --broken {queue['queue']}",
            )


def _say(found: list[Finding]) -> None:
    """The table, then what to do."""
    several = len({finding.server for finding in found}) > 1
    place = ("server",) if several else ()
    rows = [(*((finding.server,) if several else ()), finding.level, finding.check, finding.what) for finding in found]
    say_table((*place, "level", "check", "what"), rows, "There is nothing to look at.")
    told = (finding for finding in found if finding.remedy and finding.level in ("warning", "danger", "unseen"))
    for line in dict.fromkeys(f"{each.server + ' ' if several else ''}{each.check}: {each.remedy}" for each in told):
        click.echo(cell(line))
