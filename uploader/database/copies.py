"""Copies of the database: the format for each kind of database, and the rolling copies beside a SQLite.

The copy of a SQLite is a SQLite file. The copy of a MySQL or MariaDB is a compressed file of JSON lines with the rows of all
tables. No program of MySQL or MariaDB is needed:

{"revision": "0009"} {"table": "file", "columns": ["id", "user_id", …]} ["5f…", "alice", …]

A text is UTF-8. Bytes that are not UTF-8, moments and days are objects: {"hex": …}, {"at": …}, {"day": …}. This module knows
no columns: a copy of an older revision is loaded into the tables of that revision, and migrated afterwards.

The rolling copies are called `uploader.db.copy-20261127T020000Z`; `uploader.db.copy` is the copy in progress. A copy is made
while the server runs, then synced and checked. Only then does the copy get its name, and an older copy is deleted. So after
the second hour there are always two good copies, and a crash takes none of them. A copy includes damaged pages as they are,
so a copy that fails SQLite's own check is deleted.
"""

import asyncio
import errno
import fcntl
import gzip
import json
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Table, text

from uploader.database import migrate, models
from uploader.database.connection import AsyncConnection
from uploader.database.damage import GivesUp, damage_of, opened, parts_of
from uploader.database.engine import Database
from uploader.domain import reasons
from uploader.domain.diagnosis import Diagnosis
from uploader.domain.secret import Secret
from uploader.errors import ConfigurationError, DatabaseDamaged, StorageFailed, Unavailable
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.units import format_ago

# Called with the amount done and the total.
Tell = Callable[[int, int], None]
_PAGES_AT_ONCE = 2000
_PAUSE_SECONDS = 0.05

# Files of SQLite


def copy_sqlite(source: Path, target: Path, tell: Tell) -> None:
    """Copy a database that is in use, by SQLite's own backup API (https://sqlite.org/backup.html). `tell` gets numbers of
    pages. Raises sqlite3.Error.

    In WAL mode readers do not block writers. This function copies in one read transaction: all pages are of one moment, and
    commits of others do not start the copy anew.
    """
    with closing(opened(source, "rw")) as live, closing(sqlite3.connect(target, isolation_level=None)) as copied:
        live.execute("BEGIN")
        live.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first read fixes the moment
        live.backup(
            copied,
            pages=_PAGES_AT_ONCE,
            progress=lambda _status, left, pages: tell(pages - left, pages),
            sleep=_PAUSE_SECONDS,
        )
        copied.execute("PRAGMA journal_mode=DELETE")  # now the file alone is complete


def draft_of(source: Path, path: Path) -> Path:
    """Copy a database that nobody uses to a draft beside `path`, which a caller may rename to `path`. The draft is synced,
    and closed to other accounts."""
    draft = path.with_name(f"{path.name}.new")
    _remove_logs(draft)
    try:
        shutil.copyfile(source, draft)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    draft.chmod(0o600)
    sync_path(draft)
    return draft


def replace(path: Path, draft: Path, now: datetime) -> Path | None:
    """Put another database in the place of `path`, durably. Keep the old database under another name, and return that path;
    None if there was none. The old log moves first: SQLite would apply it to the new database. Raises OSError."""
    with closing(opened(draft, "rw")) as settled:
        settled.execute("PRAGMA journal_mode=DELETE")  # now the file alone is complete
    sync_path(draft)
    name, aside = f"{path.name}.damaged-{now.strftime(_STAMP)}", None
    for part in reversed(parts_of(path)):
        with suppress(FileNotFoundError):
            part.rename(path.with_name(name + part.name.removeprefix(path.name)))
            aside = path.with_name(name) if part == path else aside
            crash_point("restore.after_part")
    sync_path(path.parent)
    draft.rename(path)
    sync_path(path.parent)
    return aside


def _remove_logs(draft: Path) -> None:
    """Remove the logs that a crash left beside a draft: SQLite would apply them to the next draft."""
    for log in parts_of(draft)[1:]:
        log.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fact_in(path: Path, name: str) -> str | None:
    """Return a fact of `meta` in a database that nobody uses. Raises sqlite3.Error."""
    with closing(opened(path, "ro")) as read:
        row = read.execute("SELECT value FROM meta WHERE CAST(name AS TEXT) = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0]).decode(errors="replace")


# Rolling copies

_KEPT = 2
_STAMP = "%Y%m%dT%H%M%SZ"
_EVERY = timedelta(hours=1)
_LATE = timedelta(hours=3)
# Seconds for which a start looks for damage.
_START_SECONDS = 5.0


class _Damaged(Exception):
    """The copy is damaged, and therefore the original as well. The message says how."""


class RollingCopy(NamedTuple):
    path: Path
    made_at: datetime


@dataclass(eq=False, repr=False)
class RollingCopies:
    """The rolling copies of a SQLite. `database` is None if another server keeps the database: then there are no copies."""

    database: Path | None
    clock: Clock
    _: KW_ONLY
    check_stopping: Callable[[], None] = lambda: None
    # The damage that the last attempt found.
    _damage: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._since = self.clock.now()

    def listed(self) -> list[RollingCopy]:
        """Return the copies, the newest first."""
        found = []
        for path in self.database.parent.glob(f"{self.database.name}.copy-*") if self.database else ():
            with suppress(ValueError):
                made_at = datetime.strptime(path.name.rpartition("-")[2], _STAMP).replace(tzinfo=UTC)
                found.append(RollingCopy(path, made_at))
        return sorted(found, key=lambda copy: copy.made_at, reverse=True)

    async def keep(self) -> Path | None:
        """Make a copy unless the newest one is less than an hour old; return its path. Raises as `make`."""
        newest = await self._newest()
        if newest is not None and timedelta(0) <= self.clock.now() - newest.made_at < _EVERY:
            return None
        made = await self.make()
        return made and made.path

    async def _newest(self) -> RollingCopy | None:
        return next(iter(await asyncio.to_thread(self.listed)), None)

    async def make(self) -> RollingCopy | None:
        """Make a copy. None: another process is making one, or there is nothing to copy. Raises DatabaseDamaged,
        StorageFailed, Unavailable, Stopping."""
        path = self.database
        if path is None:
            return None
        try:
            made = await asyncio.to_thread(self._make, path)
        except _Damaged as error:
            self._damage = str(error)
            raise DatabaseDamaged(inside=f"{path} is damaged: {error}") from error
        except OSError as error:
            raise StorageFailed(inside=f"{error.filename or path} can't be written: {error.strerror}") from error
        except sqlite3.Error as error:
            raise _can_not_be_copied(path, error) from error
        self._damage = None
        return made

    def _make(self, database: Path) -> RollingCopy | None:
        _check_room(database)
        draft = database.with_name(f"{database.name}.copy")
        with _locked(draft) as descriptor:
            if descriptor is None:
                return None

            def sync(_done: int, _pages: int) -> None:
                os.fdatasync(descriptor)  # small syncs: other syncs wait for large ones
                self.check_stopping()

            try:
                _remove_logs(draft)
                copy_sqlite(database, draft, sync)
                os.fsync(descriptor)
                crash_point("copy.after_draft")
                if told := damage_of(draft, quick=True):
                    raise _Damaged("; ".join(told))
                now = self.clock.now().replace(microsecond=0)
                made = RollingCopy(draft.with_name(f"{draft.name}-{now.strftime(_STAMP)}"), now)
                draft.rename(made.path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            sync_path(draft.parent)
            crash_point("copy.after_name")
        for old in [copy for copy in self.listed() if copy.path != made.path][_KEPT - 1 :]:
            old.path.unlink(missing_ok=True)
        return made

    async def diagnoses(self) -> list[Diagnosis]:
        if self._damage is not None:
            return [reasons.DATABASE_DAMAGED(how=self._damage)]
        newest = await self._newest()
        since = max(self._since, newest.made_at) if newest else self._since
        if self.database is None or self.clock.now() - since < _LATE:
            return []
        return [reasons.COPY_OLD(ago=format_ago(self.clock.now() - newest.made_at) if newest else "never")]

    def refuse_damaged(self, *, quick: bool = False, gives_up: GivesUp | None = None) -> None:
        """Check a database before its use, for a few seconds or until `gives_up` returns true. `quick`: do not compare
        indexes with rows, a comparison that takes a dozen times as long as the rest. Blocks. Raises ConfigurationError if
        the database is damaged."""
        path, until = self.database, time.monotonic() + _START_SECONDS
        gives_up = gives_up or (lambda: time.monotonic() > until)
        try:
            told = damage_of(path, quick=quick, gives_up=gives_up) if path is not None and path.exists() else []
        except sqlite3.Error:
            return  # opening the database will report the error
        if told:
            raise ConfigurationError(f"the database {path} can't be used: {'; '.join(told)}. {self.offer()}")

    def offer(self) -> str:
        """Say what a person can do about a damaged database."""
        found = self.listed()
        if not found:
            return "There is no copy of it: restore a backup, or save what can be read"
        return (
            f"Its newest copy is of {found[0].made_at:%Y-%m-%d %H:%M:%S} UTC: `uploader restore-backup --last` brings that "
            "back, and says what is lost"
        )


def _check_room(database: Path) -> None:
    """Raises OSError unless twice the size of the database is free: a copy must not fill the disk."""
    found = os.statvfs(database.parent)
    needed = 2 * sum(path.stat().st_size for path in parts_of(database)[:2] if path.exists())
    if found.f_bavail * found.f_frsize < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(database))


@contextmanager
def _locked(draft: Path) -> Iterator[int | None]:
    """Yield the descriptor of an empty draft that only this process writes; None if another process has locked the draft."""
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


def _can_not_be_copied(path: Path, error: sqlite3.Error) -> Unavailable:
    return Unavailable("The database can't be copied.", inside=f"{path} can't be copied: {error}")


def files_beside(path: Path) -> list[Path]:
    """Return the copies beside a database, and the damaged databases that were put aside there."""
    return [*path.parent.glob(f"{path.name}.copy*"), *path.parent.glob(f"{path.name}.damaged-*")]


# Rows of MySQL and MariaDB

_TABLES_FILE = "tables.jsonl.gz"
_ROWS_AT_ONCE = 1000
_NAME = re.compile(r"[a-z_0-9]+")


async def dump_tables(connection: AsyncConnection, directory: Path, revision: str, tell: Tell) -> None:
    """Write the rows of all tables. The transaction has to be a snapshot of one moment. `tell` gets numbers of tables."""
    dumped = await _tables(connection)
    with gzip.open(directory / _TABLES_FILE, "wt", compresslevel=1) as file:
        await asyncio.to_thread(_write, file, [{"revision": revision}])
        for number, table in enumerate(dumped):
            tell(number, len(dumped))
            key = ", ".join(f"`{column.name}`" for column in table.primary_key)
            query = text(f"SELECT * FROM `{table.name}` ORDER BY {key}")  # noqa: S608 (names of our own)
            async with connection.stream(query) as found:
                await asyncio.to_thread(_write, file, [{"table": table.name, "columns": list(found.keys())}])
                async for rows in found.partitions(_ROWS_AT_ONCE):
                    await asyncio.to_thread(_write, file, map(tuple, rows))


def _write(file: Any, lines: Iterable[object]) -> None:
    for line in lines:
        file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=_encoded) + "\n")


async def _load_tables(connection: AsyncConnection, directory: Path) -> None:
    """Insert the rows into the tables of the copy's revision. These are empty, except for facts of the migrations."""
    await connection.execute(models.meta.delete())
    found = _rows(directory)
    while some := await asyncio.to_thread(lambda: list(islice(found, _ROWS_AT_ONCE))):
        for table, group in groupby(some, itemgetter(0)):
            rows = [row for _, row in group]
            names, values = ", ".join(f"`{name}`" for name in rows[0]), ", ".join(f":{name}" for name in rows[0])
            statement = f"INSERT INTO `{table}` ({names}) VALUES ({values})"  # noqa: S608 (they were looked at)
            await connection.execute(text(statement), rows)


def _rows(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row, with the name of its table. Raises ValueError for unsafe names, because names become a part of
    statements."""
    with gzip.open(directory / _TABLES_FILE, "rt") as file:
        next(file)
        for line in file:
            facts = json.loads(line)
            if isinstance(facts, dict):
                table, columns = facts["table"], facts["columns"]
                if not all(map(_NAME.fullmatch, (table, *columns))):
                    raise ValueError(line)
            else:
                yield table, dict(zip(columns, map(_decoded, facts), strict=True))


async def _first_with_rows(connection: AsyncConnection) -> str | None:
    for table in await _tables(connection):
        if (await connection.execute(table.select().limit(1))).first() is not None:
            return table.name
    return None


async def _tables(connection: AsyncConnection) -> list[Table]:
    """Return the tables that exist: an older revision lacks some."""
    found = await connection.execute(text("SHOW TABLES"))
    names = {name.decode() if isinstance(name, bytes) else name for (name,) in found}
    return [table for table in models.metadata.sorted_tables if table.name in names]


def _encoded(value: Any) -> Any:
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"hex": value.hex()}
        case datetime():
            return {"at": value.isoformat()}
        case date():
            return {"day": value.isoformat()}
    raise TypeError(f"no copy has a {type(value).__name__}")


def _decoded(value: Any) -> Any:
    match value:
        case str():
            return value.encode()
        case {"hex": digits}:
            return bytes.fromhex(digits)
        case {"at": moment}:
            return datetime.fromisoformat(moment)
        case {"day": day}:
            return date.fromisoformat(day)
    return value


# The copy in a backup: a directory with one file, of SQLite or of tables, and the list of blobs in use

LISTING = "blobs.gz"
SQLITE, TABLES = "sqlite", "tables"
_SQLITE_FILE = "uploader.db"
_IN_USE = "SELECT sha256, size FROM blob WHERE refs > 0 ORDER BY sha256"


@dataclass(frozen=True, slots=True)
class Dumped:
    # SQLITE or TABLES.
    kind: str
    revision: str
    # The number of the blobs in use, and their size.
    blobs: int
    bytes: int
    # The first error that SQLite's own check has found.
    doubt: str | None = None


def kind_of(database: Database) -> str:
    return SQLITE if database.engine.dialect.name == "sqlite" else TABLES


async def dump(database: Database, directory: Path, tell: Tell) -> Dumped:
    """Write the whole database, as of one moment, and the list of its blobs. Raises ConfigurationError, Unavailable,
    OSError."""
    schema = await migrate.schema_of(database)
    revision = schema.revision or ""
    if kind_of(database) == SQLITE:
        return await asyncio.to_thread(_dump_sqlite, _path_of(database), directory, revision, tell)
    if schema.is_ahead:
        raise ConfigurationError(
            f"the database is at revision {revision}, which may have tables that this version does not know: back it up "
            "with the newer version"
        )
    await database.read(lambda connection: dump_tables(connection, directory, revision, tell), snapshot=True)
    return Dumped(TABLES, revision, *await asyncio.to_thread(_list_blobs, directory, _blobs_of_tables(directory)))


def _dump_sqlite(path: Path, directory: Path, revision: str, tell: Tell) -> Dumped:
    copied = directory / _SQLITE_FILE
    try:
        copy_sqlite(path, copied, tell)
        told = damage_of(copied)
        with closing(opened(copied, "ro")) as read:
            blobs = ((bytes(sha256).decode(errors="replace"), int(size)) for sha256, size in read.execute(_IN_USE))
            return Dumped(SQLITE, revision, *_list_blobs(directory, blobs), doubt=told[0] if told else None)
    except sqlite3.Error as error:
        raise _can_not_be_copied(path, error) from error


def _blobs_of_tables(directory: Path) -> Iterator[tuple[str, int]]:
    for table, row in _rows(directory):
        if table == models.blob.name and row["refs"] > 0:
            yield row["sha256"].decode(), row["size"]


def _list_blobs(directory: Path, blobs: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """List blobs in order: SHA-256, size in bytes. Return their number and their total size in bytes."""
    count = total_bytes = 0
    with gzip.open(directory / LISTING, "wt", compresslevel=1) as file:
        for sha256, size in blobs:
            file.write(f"{sha256} {size}\n")
            count, total_bytes = count + 1, total_bytes + size
    return count, total_bytes


def read_listing(directory: Path) -> Iterator[tuple[str, int]]:
    with gzip.open(directory / LISTING, "rt") as file:
        for line in file:
            sha256, _, size = line.partition(" ")
            yield sha256, int(size)


async def check_empty(database: Database, revision: str) -> None:
    """Raises ConfigurationError if a copy of this revision can't be loaded into the database, Unavailable."""
    if kind_of(database) == SQLITE:
        for there in parts_of(_path_of(database)):
            if there.exists():  # even a log alone: SQLite would apply it to the new database
                raise ConfigurationError(f"{there} is there: move it away, a restore makes a new database")
        return
    at = await migrate.current_revision(database)
    if at not in (None, revision):
        raise ConfigurationError(
            f"the database is at revision {at}, the backup at {revision}: give it one without tables"
        )
    table = await database.read(_first_with_rows)
    if table is not None:
        raise ConfigurationError(f"the database is not empty, it has rows in {table}: a restore needs one of its own")


async def load(database: Database, directory: Path, revision: str, secret: Secret | None = None) -> None:
    """Load a copy into an empty database, completely or not at all, and migrate the database. `secret`: as in
    `migrate.upgrade`. Raises ConfigurationError, Unavailable, OSError."""
    if kind_of(database) == SQLITE:
        await asyncio.to_thread(_place_sqlite, directory, _path_of(database))
    else:
        await migrate.upgrade(database, revision)
        await database.transact(_load_tables, directory)
    await migrate.upgrade(database, secret=secret)


def _place_sqlite(directory: Path, target: Path) -> None:
    """Put the database in place, atomically and durably."""
    # With contents in a bucket, nobody has made the directory before.
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft_of(directory / _SQLITE_FILE, target).rename(target)
    sync_path(target.parent)


def _path_of(database: Database) -> Path:
    path = database.engine.url.database
    if path in (None, "", ":memory:"):
        raise ConfigurationError("a database in memory can't be backed up")
    return Path(path)
