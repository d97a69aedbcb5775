"""A SQLite as a dump: a file that is another such database, by SQLite's own backup API (https://sqlite.org/backup.html).

In WAL mode whoever reads holds up nobody who writes. So the copy is made within one transaction that reads: it is of one
moment, and does not begin anew with every commit of others.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

FILE = "uploader.db"
_PAGES_AT_ONCE = 2000
_IN_USE = "SELECT sha256, size FROM blob WHERE refs > 0 ORDER BY sha256"


def copy_sqlite(source: Path, directory: Path, tell: Callable[[int, int], None]) -> None:
    """Copy a database that is in use. `tell` hears how many pages are done, and of how many. Raises sqlite3.Error."""
    with (
        closing(sqlite3.connect(f"file:{quote(str(source))}?mode=rw", uri=True, isolation_level=None)) as live,
        closing(sqlite3.connect(directory / FILE, isolation_level=None)) as copied,
    ):
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on it is of one moment
        live.backup(
            copied, pages=_PAGES_AT_ONCE, progress=lambda _status, left, pages: tell(pages - left, pages), sleep=0.05
        )
        copied.execute("PRAGMA journal_mode=DELETE")  # so that the one file is all


def doubt_about(directory: Path) -> str | None:
    """What SQLite finds wrong with the copy, as it was with the original: it keeps no checksums."""
    with closing(_opened(directory)) as copied:
        try:
            said = str(copied.execute("PRAGMA integrity_check(1)").fetchone()[0])
        except sqlite3.DatabaseError as error:
            said = str(error)
    return None if said == "ok" else said


def blobs_of_sqlite(directory: Path) -> Iterator[tuple[str, int]]:
    """Those that have files, by their SHA-256, with their sizes."""
    with closing(_opened(directory)) as copied:
        for sha256, size in copied.execute(_IN_USE):
            yield bytes(sha256).decode(errors="replace"), int(size)


def place_sqlite(directory: Path, target: Path) -> None:
    """Make a database of the copy, all at once and durably."""
    # Where contents are in a bucket nobody else has made it.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.new")
    shutil.copyfile(directory / FILE, draft)
    descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.chmod(0o600)
    draft.rename(target)
    parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _opened(directory: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(directory / FILE))}?mode=ro", uri=True)
