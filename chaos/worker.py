"""`windlass worker` with a tap in its supervisor: `python -m chaos.worker OPTIONS`, for the app of the chaos run."""

from __future__ import annotations

import sys

from chaos import tap
from windlass.cli import main

APP = "chaos.app:app"

if __name__ == "__main__":
    tap.install_supervisor()
    main(["worker", APP, *sys.argv[1:]])
