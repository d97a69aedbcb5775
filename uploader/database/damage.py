"""Finds damage in the file of a SQLite by SQLite's own check, because SQLite keeps no checksums. These functions block: call
them in threads.
"""

import fcntl
import os
import re
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

_MAX_TOLD = 5
# Steps of SQLite's virtual machine between two calls of `gives_up`.
_STEPS = 10_000
# The suffixes of the files of a database. The first file alone may be incomplete while the second one exists.
PARTS = ("", "-wal", "-shm", "-journal")
# Each open connection locks this byte of the shared memory (https://sqlite.org/walformat.html, 2.3.1).
_OPEN_BYTE = 128
_FLOCK = struct.Struct("hhqqi4x")
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TREES = "SELECT type, name, rootpage FROM sqlite_master WHERE rootpage > 0"
_TREE = re.compile(r"\b(?:[Tt]ree|Page) (\d+)")
_CODE = re.compile(r"\berror code=(\d+)")
_UNREADABLE = "the disk can't read it"
_READ = """
import sys
for path in sys.argv[1:]:
    try:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass
    except FileNotFoundError:
        pass
"""

GivesUp = Callable[[], bool]


def opened(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode={mode}", uri=True, isolation_level=None)


def parts_of(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{suffix}") for suffix in PARTS]


def damage_of(path: Path, *, quick: bool = False, gives_up: GivesUp | None = None) -> list[str]:
    """Return the first few errors in a database, with the names of tables; nothing if all is right, or if `gives_up` returns
    true. `quick`: do not compare indexes with rows. Raises sqlite3.Error if the check can't be made, such as on a disk
    error."""
    told = _told_by_check(path, quick, gives_up)
    if not told:
        return []
    # SQLite reports a temporary read error of the disk like a damaged page
    # (https://sqlite.org/rescode.html#ioerr_corruptfs).
    if not _can_be_read(path):
        raise sqlite3.OperationalError(_UNREADABLE)
    again = _told_by_check(path, quick, gives_up)
    return told if again is None else again


def _can_be_read(path: Path) -> bool:
    """Read all of a database in a process of its own: closing a file releases the locks of the whole process
    (https://sqlite.org/howtocorrupt.html, 2.2)."""
    command = [sys.executable, "-ISc", _READ, *map(str, parts_of(path))]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 (the file is this server's)


def _told_by_check(path: Path, quick: bool, gives_up: GivesUp | None) -> list[str] | None:
    """Return the lines of SQLite's check; None if `gives_up` ended the check."""
    trees: dict[str, str] = {}
    lines: list[str] = []
    with closing(opened(path, "rw")) as checked:
        checked.set_progress_handler(gives_up, _STEPS)
        try:
            trees = {str(root): f"{kind} {name}" for kind, name, root in checked.execute(_TREES)}
            for (text,) in checked.execute(f"PRAGMA {'quick_check' if quick else 'integrity_check'}({_MAX_TOLD})"):
                lines += [line for line in str(text).splitlines() if line.strip() and text != "ok"]
        except sqlite3.DatabaseError as error:
            if _code_of(error) == sqlite3.SQLITE_INTERRUPT:
                return None
            if _code_of(error) not in _DAMAGED:
                raise
            lines = lines or [*_unreadable_tables(checked), str(error)]
    if sqlite3.SQLITE_IOERR in {int(code) & 0xFF for line in lines for code in _CODE.findall(line)}:
        raise sqlite3.OperationalError(_UNREADABLE)
    told = [line for line in lines if not (line.startswith("***") or line.endswith("is never used"))] or lines
    return [_TREE.sub(lambda found: trees.get(found[1], found[0]), line) for line in told][:_MAX_TOLD]


def _code_of(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _unreadable_tables(checked: sqlite3.Connection) -> Iterator[str]:
    """Name the damaged tables. SQLite's check does not name a table whose first page is damaged."""
    with suppress(sqlite3.DatabaseError):
        for (table,) in checked.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            try:
                checked.execute(f'SELECT count(*) FROM "{table}" NOT INDEXED').fetchone()  # noqa: S608 (its own)
            except sqlite3.DatabaseError as error:
                if _code_of(error) in _DAMAGED:
                    yield f"table {table}: {error}"


def is_in_use(path: Path) -> bool:
    """Return whether some connection to this database is open. This looks for its lock, and takes none."""
    try:
        descriptor = os.open(path.with_name(f"{path.name}-shm"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OPEN_BYTE, 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)
