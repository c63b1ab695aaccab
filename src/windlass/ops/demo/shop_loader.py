"""The shop: finds its file, and imports it for the server and the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from windlass.app import Windlass
from windlass.errors import InvalidOption
from windlass.queue import Queue

FILE = "shop.py"
APP = "shop:app"  # importable in the shop's folder
FOLDER_VARIABLE = "SHOP_FOLDER"
ORDERS, MEDIA, MAIL = QUEUES = ("shop-orders", "shop-media", "shop-mail")
SCHEDULE = "heartbeat"


def shop_folder() -> Path:
    """The folder of the shop: in the examples of the source tree, or in the package.

    A wheel has no examples, so it contains the shop as `windlass/ops/demo/shop` (`force-include` in pyproject.toml). An
    editable install has no such folder, and uses the source tree.
    """
    packed = Path(__file__).parent / "shop"
    return packed if packed.is_dir() else Path(__file__).parents[4] / "examples" / "shop"


class Shop:
    """The imported shop: its app uses the server at `url`, its files are in `folder`."""

    def __init__(self, url: str, folder: Path) -> None:
        self.variables = {"WINDLASS_URL": url, FOLDER_VARIABLE: str(folder)}
        with _environment(self.variables):
            self.module = _imported(shop_folder() / FILE)
        self.app: Windlass = self.module.app

    def place_orders(self, count: int) -> int:
        """Enqueue orders, and one job that kills its process. Returns the number of acknowledged orders."""
        self.module.corrupt_photo.using(priority=0).enqueue()
        return len(self.module.place_orders(count))

    @property
    def queues(self) -> list[Queue]:
        """All queues of the shop."""
        return [self.app.queue(name) for name in QUEUES]

    def claim(self) -> None:
        """Refuse to run if another program uses the queues; else delete the jobs that an earlier run left."""
        for queue in self.queues:
            counts = queue.counts()
            if counts.waiting or counts.running or counts.holders:
                raise InvalidOption(
                    f"queue {queue.name} is in use on this server, and the demo needs it alone: "
                    "stop the other program, or omit --url and --home"
                )
        self.empty()

    def empty(self) -> None:
        """Delete all jobs and schedules of the queues."""
        for queue in self.queues:
            for schedule in self.app.schedules.list(queue.name):
                self.app.schedules.delete(queue.name, schedule.name)
            queue.purge()


def _imported(path: Path) -> ModuleType:
    """Import the file without sys.modules: two runs in one program must not share an app."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
