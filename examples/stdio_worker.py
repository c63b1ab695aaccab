"""A worker over a pipe. It exchanges lines of JSON with `windlass stdio`, as a program in any language could.

    python examples/stdio_worker.py

The jobs are on a plain Windlass queue. Only `main` needs Python: it enqueues the jobs and counts them at the end.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime

from windlass import Windlass

QUEUE, WORKER = "example-thumbnails", "worker-1"
SERVICE = [sys.executable, "-m", "windlass", "stdio", "--layout", "native"]


def say(service: subprocess.Popen[str], word: str, **payload: object) -> None:
    """Send one message: a JSON object on one line."""
    assert service.stdin
    message = {
        "topic": f"default/job_queue/workers/{WORKER}/{word}",
        "service_uuid": WORKER,
        "created_at": datetime.now(UTC).isoformat(),
        "payload": {"queue_name": QUEUE, **payload},
    }
    print(json.dumps(message), file=service.stdin, flush=True)


def work(jobs: int) -> None:
    """Work on this many jobs, then close the pipe."""
    with subprocess.Popen(
        SERVICE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as service:
        assert service.stdin
        assert service.stdout
        say(service, "worker_idle")  # repeat every 3 seconds while there is no job
        for line in service.stdout:
            job = json.loads(line)["payload"]
            say(service, "job_accepted", uuid=job["uuid"])
            print("making a thumbnail of", job["path"])
            say(service, "worker_progress", uuid=job["uuid"], progress=0.5)  # repeat every 3 seconds
            say(service, "job_finished", uuid=job["uuid"])  # the next job arrives without a request
            jobs -= 1
            if not jobs:
                service.stdin.close()


def main() -> None:
    with Windlass() as app:
        queue = app.queue(QUEUE)
        queue.enqueue_json({"path": "a.png"})
        queue.enqueue_json({"path": "b.png"}, priority=1)
        work(jobs=2)
        counts = queue.counts()
        print("left", counts.waiting + counts.running)


if __name__ == "__main__":
    main()
