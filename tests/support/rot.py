"""Bytes that go bad on the disk."""

import os
from collections.abc import Callable
from pathlib import Path
from stat import S_IFSOCK


def flip_bit(path: Path, bit: int = 77) -> None:
    """Flip a bit of a file, in its place."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def _make_socket(path: Path) -> None:
    os.mknod(path, S_IFSOCK | 0o600)


def _instead(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


# Each puts something into the place of a file that is none. A device is made by root alone.
NO_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": _instead(os.mkfifo),
    "directory": _instead(Path.mkdir),
    "socket": _instead(_make_socket),
}
