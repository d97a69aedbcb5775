"""Where servers keep their bytes: in memory, for comparing servers; on the disk, for what has to survive a power cut."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 6 << 30


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of one run."""

    memory: Path
    disk: Path

    def of(self, name: str) -> "Places":
        """The same places, a level down; both exist."""
        places = Places(self.memory / name, self.disk / name)
        for directory in (places.memory, places.disk):
            directory.mkdir(parents=True, exist_ok=True)
        return places

    def warm(self, length: int) -> None:
        """Touch so much memory and give it back: on a virtual machine, the first touch of a page is dear."""
        path = self.memory / "warm"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, length)
        finally:
            os.close(descriptor)
            path.unlink()


def memory_directory() -> Path | None:
    """The parent of directories in memory; None if there is none that is large enough."""
    try:
        return _SHARED_MEMORY if shutil.disk_usage(_SHARED_MEMORY).free >= _ENOUGH_BYTES else None
    except OSError:
        return None
