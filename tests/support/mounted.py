"""A disk of some MiB that nobody else sees: a server works on it, and a test can fill it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import UPLOADER


@dataclass(frozen=True)
class SmallDisk:
    # As those who work on it see it, and as the test does.
    inside: Path
    here: Path
    _holder: int

    @property
    def program(self) -> list[str]:
        """`uploader`, on this disk."""
        return ["nsenter", "-m", "-t", str(self._holder), str(UPLOADER)]

    def fill(self) -> Path:
        """Leave nothing; return the file that has it."""
        filler = self.here / "filler"
        with filler.open("ab", 0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        return filler


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount a filesystem there, in a namespace of its own."""
    directory.mkdir(exist_ok=True)
    script = f"mount -t tmpfs -o size={size_bytes} none '{directory}' && echo mounted && exec sleep infinity"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"mounted\n"
            yield SmallDisk(directory, Path(f"/proc/{holder.pid}/root{directory}"), holder.pid)
        finally:
            holder.kill()
