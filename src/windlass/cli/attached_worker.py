"""A `windlass worker` that stops when its standard input closes, so that it ends with the program that started it.

Run as `python -m windlass.cli.attached_worker MODULE:APP OPTIONS`; `windlass.ops.attached_worker` starts it so.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from windlass.cli import main


def _stop_when_input_closes() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_when_input_closes, daemon=True).start()
    main(["worker", *sys.argv[1:]])
