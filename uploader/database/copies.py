"""The rolling copies of a SQLite, beside it: `uploader.db.copy-20261127T020000Z`; `uploader.db.copy` is being made.

A copy is made by the backup API while everything goes on, made durable, and checked; only then does it get its name, and an
older one goes. So there are two good ones at any moment after the second hour, of which a crash takes none. SQLite keeps no
checksums: a damaged page would be copied as it is, so one that does not pass SQLite's own check is none. Blocks: in threads.
"""

import errno
import fcntl
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from uploader.crashpoints import crash_point

_KEPT = 2
_STAMP = "%Y%m%dT%H%M%SZ"
_PAGES_AT_ONCE = 2000
_PAUSE_SECONDS = 0.05
_MAX_TOLD = 5
# How often SQLite asks whether to go on, in steps of its virtual machine.
_STEPS = 10_000
# The files that are a database, together; the first alone is none while the second is there.
PARTS = ("", "-wal", "-shm", "-journal")
# In the shared memory each connection holds this byte as long as it is open (https://sqlite.org/walformat.html, 2.3.1).
_OPEN_BYTE = 128
_FLOCK = struct.Struct("hhqqi4x")
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


class CopyDamaged(Exception):
    """The copy is not good, and so its original is not, either; how, in words."""


@dataclass(frozen=True, slots=True)
class Copy:
    path: Path
    made_at: datetime


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one database."""

    database: Path

    def listed(self) -> list[Copy]:
        """Return those that are there, the newest first."""
        found = []
        for path in self.database.parent.glob(f"{self.database.name}.copy-*"):
            with suppress(ValueError):
                made_at = datetime.strptime(path.name.rpartition("-")[2], _STAMP).replace(tzinfo=UTC)
                found.append(Copy(path, made_at))
        return sorted(found, key=lambda copy: copy.made_at, reverse=True)

    def size_bytes(self) -> int:
        """Return how much room one more takes. Raises OSError."""
        return sum(path.stat().st_size for path in parts_of(self.database)[:2] if path.exists())

    def make(self, now: datetime, go_on: Callable[[], None] = lambda: None) -> Copy | None:
        """Make one; None if another process makes one now. `go_on` is called now and then, and may raise. Raises
        CopyDamaged, OSError, sqlite3.Error."""
        draft = self.database.with_name(f"{self.database.name}.copy")
        with _locked(draft) as descriptor:
            if descriptor is None:
                return None

            def sync(_done: int, _pages: int) -> None:
                os.fdatasync(descriptor)  # a little at a time: others wait for what they sync
                go_on()

            try:
                _remove_logs(draft)
                copy_sqlite(self.database, draft, sync)
                os.fsync(descriptor)
                crash_point("copy.after_draft")
                if told := damage_of(draft, quick=True):
                    raise CopyDamaged("; ".join(told))
                made = Copy(self.database.with_name(f"{draft.name}-{now.strftime(_STAMP)}"), now.replace(microsecond=0))
                draft.rename(made.path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            sync_directory(draft.parent)
            crash_point("copy.after_name")
        for old in [copy for copy in self.listed() if copy.path != made.path][_KEPT - 1 :]:
            old.path.unlink(missing_ok=True)
        return made


@contextmanager
def _locked(draft: Path) -> Iterator[int | None]:
    """Yield a new file that this process alone writes, or None. What a crash left is written over."""
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(descriptor), draft.stat())
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if is_ours:
            os.ftruncate(descriptor, 0)
        yield descriptor if is_ours else None
    finally:
        os.close(descriptor)


def copy_sqlite(source: Path, target: Path, tell: Callable[[int, int], None]) -> None:
    """Copy a database that is in use, by SQLite's own backup API (https://sqlite.org/backup.html). `tell` hears of
    pages. Raises sqlite3.Error.

    In WAL mode readers hold up no writer. So the copy is made within one transaction that reads: it is of one moment,
    and does not begin anew with every commit of others.
    """
    with closing(opened(source, "rw")) as live, closing(sqlite3.connect(target, isolation_level=None)) as copied:
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from here on it is of one moment
        live.backup(
            copied,
            pages=_PAGES_AT_ONCE,
            progress=lambda _status, left, pages: tell(pages - left, pages),
            sleep=_PAUSE_SECONDS,
        )
        copied.execute("PRAGMA journal_mode=DELETE")  # so that the one file is all


GivesUp = Callable[[], bool]


def damage_of(path: Path, *, quick: bool = False, gives_up: GivesUp | None = None) -> list[str]:
    """Tell what is wrong with a database, by SQLite's own check: the first few things, with the names of tables; nothing if
    all is right. `quick`: without comparing indexes with rows. `gives_up` is asked now and then; nothing, too, if it does.
    Raises sqlite3.Error if it can't be told, such as of one that the disk can't read."""
    told = _told_by_check(path, quick, gives_up)
    if not told:
        return []
    # SQLite says the same of a page that the disk can't read for now (https://sqlite.org/rescode.html#ioerr_corruptfs).
    if not _can_be_read(path):
        raise sqlite3.OperationalError(_UNREADABLE)
    again = _told_by_check(path, quick, gives_up)
    return told if again is None else again


def _can_be_read(path: Path) -> bool:
    """Read all of a database, in a process of its own: to close a file takes the locks of its whole process away
    (https://sqlite.org/howtocorrupt.html, 2.2)."""
    command = [sys.executable, "-ISc", _READ, *map(str, parts_of(path))]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603 (the file is this server's)


def _told_by_check(path: Path, quick: bool, gives_up: GivesUp | None) -> list[str] | None:
    """Return None if it gave up."""
    try:
        with closing(opened(path, "rw")) as checked:
            checked.set_progress_handler(gives_up, _STEPS)
            trees = {str(root): f"{kind} {name}" for kind, name, root in checked.execute(_TREES)}
            pragma = "quick_check" if quick else "integrity_check"
            rows = checked.execute(f"PRAGMA {pragma}({_MAX_TOLD})").fetchall()
    except sqlite3.DatabaseError as error:
        if _code_of(error) == sqlite3.SQLITE_INTERRUPT:
            return None
        if _code_of(error) in _DAMAGED:
            return _unreadable_rows(path, gives_up) or [str(error)]
        raise
    lines = [line for (text,) in rows for line in str(text).splitlines() if line.strip() and text != "ok"]
    if sqlite3.SQLITE_IOERR in {int(code) & 0xFF for line in lines for code in _CODE.findall(line)}:
        raise sqlite3.OperationalError(_UNREADABLE)
    told = [line for line in lines if not (line.startswith("***") or line.endswith("is never used"))] or lines
    named = [_TREE.sub(lambda found: trees.get(found[1], found[0]), line) for line in told]
    return [*(_unreadable_rows(path, gives_up) if named else []), *named][:_MAX_TOLD]


def _code_of(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _unreadable_rows(path: Path, gives_up: GivesUp | None) -> list[str]:
    """Tell which rows of which tables can't be read, from the first that can't to the last."""
    found = []
    with suppress(sqlite3.DatabaseError), closing(opened(path, "rw")) as read:
        read.set_progress_handler(gives_up, _STEPS)
        for (table,) in read.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            ends = [_last_read(read, table, order) for order in ("ASC", "DESC")]
            if all(damaged for _, damaged in ends):
                (before, _), (after, _) = ends
                found.append(
                    f"table {table}: rows after {before or 'the first'} and before {after or 'the last'} can't be read"
                )
    return found[:_MAX_TOLD]


def _last_read(read: sqlite3.Connection, table: str, order: str) -> tuple[int | None, bool]:
    """Return the last row that can be read in this order, and whether one can't."""
    last: int | None = None
    try:
        for row in read.execute(f'SELECT rowid FROM "{table}" NOT INDEXED ORDER BY rowid {order}'):  # noqa: S608 (its own)
            last = row[0]
    except sqlite3.DatabaseError as error:
        return last, _code_of(error) in _DAMAGED
    return last, False


_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_TREES = "SELECT type, name, rootpage FROM sqlite_master WHERE rootpage > 0"


def opened(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode={mode}", uri=True, isolation_level=None)


def is_in_use(path: Path) -> bool:
    """Return whether somebody has this database open. It is asked by a look that takes no lock."""
    try:
        descriptor = os.open(path.with_name(f"{path.name}-shm"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OPEN_BYTE, 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(descriptor)


def parts_of(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{suffix}") for suffix in PARTS]


def files_beside(path: Path) -> list[Path]:
    """Return what lies beside a database because it is one: its copies, and what was damaged."""
    return [*path.parent.glob(f"{path.name}.copy*"), *path.parent.glob(f"{path.name}.damaged-*")]


def replace(path: Path, draft: Path, now: datetime) -> Path | None:
    """Put another database in the place of one, durably, and keep that one under another name, which is returned; None if
    there is none. Its log goes first: the other database would take it for its own. Raises OSError."""
    with closing(opened(draft, "rw")) as settled:
        settled.execute("PRAGMA journal_mode=DELETE")  # so that the one file is all
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    name, aside = f"{path.name}.damaged-{now.strftime(_STAMP)}", None
    for part in reversed(parts_of(path)):
        with suppress(FileNotFoundError):
            part.rename(path.with_name(name + part.name.removeprefix(path.name)))
            aside = path.with_name(name) if part == path else aside
            crash_point("restore.after_part")
    sync_directory(path.parent)
    draft.rename(path)
    sync_directory(path.parent)
    return aside


def fact_in(path: Path, name: str) -> str | None:
    """Return a fact of `meta` in a database that nobody uses. Raises sqlite3.Error."""
    with closing(opened(path, "ro")) as read:
        row = read.execute("SELECT value FROM meta WHERE CAST(name AS TEXT) = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0]).decode(errors="replace")


def copy_file(source: Path, target: Path) -> None:
    """Copy a database that nobody uses, durably, closed to other accounts."""
    _remove_logs(target)
    try:
        shutil.copyfile(source, target)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    target.chmod(0o600)
    with target.open("rb") as copied:
        os.fsync(copied.fileno())


def _remove_logs(draft: Path) -> None:
    """Remove the logs of a draft that a crash left: they would be taken for the next one's."""
    for log in parts_of(draft)[1:]:
        log.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lacks_room(path: Path, size_bytes: int) -> OSError | None:
    """Return the error of a disk that has less than twice as much free: a copy is not to fill it."""
    found = os.statvfs(path.parent)
    if found.f_bavail * found.f_frsize >= 2 * size_bytes:
        return None
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
