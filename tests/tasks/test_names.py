"""The names of tasks: by default module and function, so projects on one queue do not run each other's tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass import Job, Lease, Windlass
from windlass.errors import InvalidTask
from windlass.tasks.envelope import write_envelope
from windlass.tasks.names import default_name
from windlass.values.outcome import UnknownTask
from windlass.worker import attempt

MODULE = """
from windlass import Windlass

app = Windlass("redis://localhost:1")

@app.task
def send(n: int) -> None: ...

class Mail:
    @staticmethod
    @app.task
    def post(n: int) -> None: ...

if __name__ == "__main__":
    print(send.name, Mail.post.name)
"""


def send(n: int) -> None: ...


def nested() -> Callable[[int], None]:
    def send(n: int) -> None: ...

    return send


def of_project(name: str) -> Windlass:
    """An app with one task `send` of a module of this name."""
    app = Windlass("redis://localhost:1")

    def send(n: int) -> None: ...

    send.__module__, send.__qualname__ = name, "send"
    app.task(send)
    return app


def lease_of(task: str) -> Lease:
    return Lease("default", "a", write_envelope(task, b'{"n":1}'), fence=1)


def planned(app: Windlass, task: str) -> str | None:
    """The name of the task that would run for a payload."""
    plan = attempt.plan(app, lease_of(task))
    return plan.task if isinstance(plan, attempt.Plan) else None


def test_a_name_has_the_module_and_the_function(here: Windlass) -> None:
    assert here.task(send).name == f"{__name__}.send"
    assert here.task(nested()).name == f"{__name__}.nested.send"
    assert here.task(name="send")(nested()).name == "send"


def test_a_project_does_not_run_the_task_of_another(here: Windlass) -> None:
    shop, blog = of_project("shop.jobs"), of_project("blog.jobs")
    name = next(iter(shop.tasks))
    assert name == "shop.jobs.send"
    assert planned(shop, name) == name
    assert attempt.plan(blog, lease_of(name)) == UnknownTask(lease_of(name), name)
    assert planned(blog, "jobs.send") is None, "only the bare name of the function is short for it"


def test_a_short_name_finds_the_only_task_of_that_name(here: Windlass) -> None:
    first = here.task(send)
    assert planned(here, "send") == first.name
    assert here.find_task("send") is first
    assert sorted(here.task_names) == ["send", first.name]
    second = here.task(nested())
    assert here.find_task("send") is None, "two tasks have it"
    assert planned(here, "send") is None
    assert set(here.task_names) == {first.name, second.name}
    third = here.task(name="send")(nested())
    assert here.find_task("send") is third, "a given name is the whole name"
    assert planned(here, "send") == "send"


def test_two_tasks_of_one_name_are_refused(here: Windlass) -> None:
    here.task(nested())
    with pytest.raises(InvalidTask, match=r"task '.*\.nested\.send'.* have the same name: give one of them name="):
        here.task(nested())


def test_names_that_cannot_be(here: Windlass) -> None:
    with pytest.raises(InvalidTask, match="a lambda has no name of its own: pass name="):
        here.task(lambda n: None)

    def long(n: int) -> None: ...

    long.__qualname__ = "x" * 128
    with pytest.raises(InvalidTask, match="is not a task name: pass name=… with 1 to 128 printable characters"):
        here.task(long)
    assert here.task(name="long")(long).name == "long"


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        (["jobs.py"], "jobs"),
        (["-m", "jobs"], "jobs"),
        (["-m", "shop.jobs"], "shop.jobs"),
        (["shop/jobs.py"], "shop.jobs"),
        (["./shop/inner/jobs.py"], "shop.inner.jobs"),
        (["plain/jobs.py"], "jobs"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_program_names_its_tasks_as_an_import_does(tmp_path: Path, command: list[str], imported: str) -> None:
    for folder in ("", "shop", "shop/inner", "plain"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "jobs.py").write_text(MODULE)
        if folder.startswith("shop"):
            (tmp_path / folder / "__init__.py").touch()
    ran = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=True)
    names = ran.stdout.split()
    assert names == [f"{imported}.send", f"{imported}.Mail.post"]
    where = tmp_path / "plain" if command == ["plain/jobs.py"] else tmp_path
    look = f"import {imported} as jobs; print(*jobs.app.tasks)"
    seen = subprocess.run([sys.executable, "-c", look], cwd=where, capture_output=True, text=True, check=True)
    assert seen.stdout.split() == names


def test_a_function_of_a_console_has_no_module(tmp_path: Path) -> None:
    program = MODULE.replace("Mail.post.name", "app.tasks")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("send "), "a worker elsewhere finds its task by the short name"


def test_a_callable_without_a_module_or_name(here: Windlass) -> None:
    class Nameless:
        def __call__(self, n: int) -> None: ...

        def __repr__(self) -> str:
            return "nameless"

    assert default_name(Nameless()) == f"{__name__}.nameless"


def test_a_job_carries_the_whole_name(here: Windlass) -> None:
    task = here.task(send)
    job = Job(lease_of("send"), task.name)
    assert job.task == task.call(1).task == f"{__name__}.send"
