"""A disk of some MiB that nobody else sees: a server works on it, and a test can fill it."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import UPLOADER, wait_for


@dataclass(frozen=True)
class SmallDisk:
    # As those who work on it see it, and as the test does.
    inside: Path
    here: Path
    _holder: int
    inodes: int

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

    def remount(self, how: str) -> None:
        """Make it read-only (`ro`) once no file is open for writing, or writable again (`rw`)."""
        mount = ["nsenter", "-m", "-t", str(self._holder), "mount", "-o", f"remount,{how}", str(self.inside)]
        wait_for(lambda: subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode == 0)

    def take_inodes(self) -> None:
        """Make files without a byte until the filesystem has no inode left."""
        with suppress(OSError):
            for number in range(self.inodes):
                (self.here / f"taken-{number}").touch()

    def give_inodes_back(self) -> None:
        for taken in self.here.glob("taken-*"):
            taken.unlink()


@contextmanager
def small_disk(directory: Path, size_bytes: int, inodes: int = 0) -> Iterator[SmallDisk]:
    """Mount a filesystem there, in a namespace of its own; 0 `inodes` are as many as the bytes allow."""
    directory.mkdir(exist_ok=True)
    options = f"size={size_bytes}" + (f",nr_inodes={inodes}" if inodes else "")
    script = f"mount -t tmpfs -o {options} none '{directory}' && echo mounted && exec sleep infinity"
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"mounted\n"
            yield SmallDisk(directory, Path(f"/proc/{holder.pid}/root{directory}"), holder.pid, inodes)
        finally:
            holder.kill()
