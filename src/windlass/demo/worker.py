"""The demo's worker: `python -m windlass.demo.worker MODULE:APP SETTINGS`, with the settings as JSON.

It is what `windlass worker` starts, with one addition: it stops when its input is closed, so that it does not outlive
the demo, whatever becomes of that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

import msgspec

from windlass.worker.keeper import run_worker
from windlass.worker.logs import set_up_logs
from windlass.worker.settings import Settings


def _stop_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(target: str, text: str) -> int:
    """Work until told to stop; the exit code."""
    settings = msgspec.json.decode(text, type=Settings)
    set_up_logs(settings.log_format, settings.log_level)
    threading.Thread(target=_stop_with_input, daemon=True).start()
    return run_worker(target, settings)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
