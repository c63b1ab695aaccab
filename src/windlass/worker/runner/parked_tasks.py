"""The tasks whose parked jobs this runner claims. A worker that parks jobs of an unknown task announces the task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

MAX_CLAIMS = 100  # tasks in one turn: the server looks up each


class ParkedTasks:
    """The announced tasks of one queue that this runner can run, until a turn has claimed all their parked jobs."""

    def __init__(self, known: Callable[[], Collection[str]]) -> None:
        self._known = known
        self._tasks: dict[str, None] = {}  # in the order of their announcements
        self._may_have_missed_some = False

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def announce(self, task: str) -> bool:
        """Record that jobs of a task were parked. Returns whether this runner claims them."""
        if task not in self._known():
            return False
        self._tasks[task] = None
        return True

    def subscribed(self) -> None:
        """Record that announcements come from now on, and that earlier ones may be lost."""
        self._may_have_missed_some = True

    def take_missed(self) -> bool:
        """Return whether announcements may be lost from before the turn that begins now."""
        missed, self._may_have_missed_some = self._may_have_missed_some, False
        return missed

    def claim_all(self) -> None:
        """Claim the parked jobs of all tasks."""
        self.put_back(self._known())

    def take(self) -> tuple[str, ...]:
        """Take the tasks for the next turn. An announcement during the turn counts for a later one."""
        taken = tuple(self._tasks)[:MAX_CLAIMS]
        for task in taken:
            del self._tasks[task]
        return taken

    def put_back(self, tasks: Iterable[str]) -> None:
        """Claim these again: more of their jobs may be parked."""
        self._tasks.update(dict.fromkeys(tasks))
