"""`windlass worker`, which also stops when its input is closed: it does not outlive who started it.

Run as `python -m windlass.cli.attached_worker MODULE:APP OPTIONS`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from windlass.cli import main


def _stop_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_input, daemon=True).start()
    main(["worker", *sys.argv[1:]])
