"""Let files pass a gate that ClamAV finds clean: `UPLOADER_URL=… UPLOADER_TOKEN=… python3 virus_scan.py`, beside a clamd."""

import os
import subprocess
import tempfile
from pathlib import Path

from uploader.client import Task, Worker

worker = Worker(os.environ["UPLOADER_URL"], os.environ["UPLOADER_TOKEN"])
# clamd.conf has to say `AlertExceedsMax yes`: otherwise what is too large to be scanned is clean.
SCAN = ["clamdscan", "--fdpass", "--no-summary", "--stdout"]
CLEAN, INFECTED = 0, 1


@worker.handles("scan", lease="5m", at_once=4)
def scan(task: Task) -> None:
    with tempfile.TemporaryDirectory() as directory:
        content = task.save(Path(directory) / "content")
        scanned = subprocess.run([*SCAN, content], check=False, capture_output=True, text=True)
    words = scanned.stdout.strip().removeprefix(f"{content}: ")
    if scanned.returncode == INFECTED:
        task.refuse(words.removesuffix(" FOUND"))
    elif scanned.returncode != CLEAN:
        raise RuntimeError(words)  # clamd does not run, or its database is being read: the task comes again


if __name__ == "__main__":
    worker.run()  # until SIGTERM
