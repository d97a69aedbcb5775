"""Bytes that go bad on the disk."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
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


def change_without_an_index(path: Path, index: str, change: str) -> None:
    """Change rows of a SQLite that nobody uses, but not their entries in an index."""
    with closing(sqlite3.connect(path)) as opened:
        (schema,) = opened.execute("SELECT * FROM sqlite_master WHERE name = ?", (index,))
        for statement, values in (
            ("DELETE FROM sqlite_master WHERE name = ?", (index,)),
            (change, ()),
            ("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", schema),
        ):
            opened.execute("PRAGMA writable_schema = RESET")
            opened.execute("PRAGMA writable_schema = ON")
            opened.execute(statement, values)
            opened.commit()


def ruin_a_table(path: Path, table: str) -> None:
    """Write over the first page of a table of a SQLite that nobody uses, or of an index."""
    with closing(sqlite3.connect(path)) as opened:
        (root,) = opened.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = opened.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 100)
