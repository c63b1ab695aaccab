"""The random tests of the test suite, with longer runs and other seeds.

`make test` runs each of them in a short form: random operations against the model, logs truncated at random places,
damaged queues, lost replies; workers that are killed, paused and stopped, and poison jobs. The seed is printed and can
be passed again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys

PROOFS = (
    "tests/model/test_model.py",
    "tests/native/test_torn_log.py",
    "tests/native/test_scripts_fuzz.py",
    "tests/native/test_operations.py",
    "tests/compat/test_random_lives.py",
    "tests/worker/test_kills.py",
    "tests/worker/test_hostile.py",
    "tests/worker/test_stopping.py",
    "tests/worker/test_attempts.py::test_children_are_enqueued_once_although_runners_are_killed",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the proofs and return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos proofs", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60_000, help="minimum number of model steps (default %(default)s)")
    parser.add_argument(
        "--cuts", type=int, default=1_000, help="places at which the log is truncated (default %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=400, help="damaged queues for each script (default %(default)s)")
    parser.add_argument(
        "--operations",
        type=int,
        default=25_000,
        help="lossy operations per client (sync and async) (default %(default)s)",
    )
    parser.add_argument(
        "--lives", type=int, default=2_000, help="steps on each of the other layouts (default %(default)s)"
    )
    parser.add_argument(
        "--poison", type=int, default=10_000, help="number of jobs, 1 %% of them poison (default %(default)s)"
    )
    parser.add_argument("--kills", type=int, default=200, help="jobs that ignore SIGTERM (default %(default)s)")
    parser.add_argument("--stops", type=int, default=20, help="SIGTERMs under load (default %(default)s)")
    parser.add_argument("--runners", type=int, default=30, help="SIGKILLs of a runner (default %(default)s)")
    parser.add_argument(
        "--lease", type=float, default=15, help="lease of the lost worker, in seconds (default %(default)s)"
    )
    parser.add_argument(
        "--parents", type=int, default=1_000, help="jobs that enqueue to other queues (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="random seed (default: random)")
    chosen = parser.parse_args(arguments)
    print(f"seed {chosen.seed}: repeat with --seed {chosen.seed}", flush=True)
    knobs = {
        "WINDLASS_MODEL_STEPS": chosen.steps,
        "WINDLASS_MODEL_SEED": chosen.seed,
        "WINDLASS_TORN_CUTS": chosen.cuts,
        "WINDLASS_TORN_SEED": chosen.seed,
        "WINDLASS_FUZZ_ROUNDS": chosen.rounds,
        "WINDLASS_LOSSY_OPERATIONS": chosen.operations,
        "WINDLASS_LOSSY_SEED": chosen.seed,
        "WINDLASS_LIVES_STEPS": chosen.lives,
        "WINDLASS_LIVES_SEED": chosen.seed,
        "WINDLASS_POISON_JOBS": chosen.poison,
        "WINDLASS_KILL_ROUNDS": chosen.runners,
        "WINDLASS_LOST_LEASE": chosen.lease,
        "WINDLASS_KILL_TRIES": chosen.kills,
        "WINDLASS_STOP_TRIES": chosen.stops,
        "WINDLASS_PARENTS": chosen.parents,
    }
    command = [sys.executable, "-m", "pytest", "-s", "--timeout", "0", *PROOFS]
    return subprocess.run(command, env=os.environ | {name: str(value) for name, value in knobs.items()}).returncode


if __name__ == "__main__":
    sys.exit(main())
