"""Commands that see other filesystems than everybody else."""

import shlex
import subprocess

from tests.support.process import UPLOADER, environment
from tests.support.waiting import SERVER_SECONDS


def can_mount() -> bool:
    """In a namespace of its own, where nobody else sees it."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


def run_mounted(mounts: str, settings: dict[str, str], *command: str) -> "subprocess.CompletedProcess[str]":
    """A command that sees what a shell has mounted for it alone."""
    script = f"{mounts} && exec {shlex.join([str(UPLOADER), *command])}"
    program = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    return subprocess.run(
        program, env=environment(settings), capture_output=True, text=True, check=False, timeout=SERVER_SECONDS
    )
