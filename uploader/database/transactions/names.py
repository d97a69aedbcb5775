"""Decides on the names of a user's files and folders. A name belongs to at most one file or folder.

All changes of names hold the lock of the user's row and use `Names.find`. A folder exists while it holds files or folders;
an empty folder has a row.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import sqlalchemy as sa

from uploader.database import levels, models, queries
from uploader.database.connection import AsyncConnection
from uploader.database.transactions import rows
from uploader.database.trash import excess
from uploader.domain.names import (
    FIRST_NUMBER,
    MAX_NAME_BYTES,
    begin_of_numbered,
    folder_of,
    folders_of,
    is_numbered,
    numbered,
)
from uploader.domain.upload import File, IfExists, Usage
from uploader.errors import NameTaken

_FOLDERS = models.folder.c

# The first free number among these is taken. Beyond them, a search by doubling and dividing finds a free number whose
# predecessor is taken.
_NUMBERS_AT_ONCE = 32
_MOST_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class Found:
    """The name that a file may have: a free name, the name of the file `replaced`, or of a file with the `same` content."""

    name: str
    replaced: File | None = None
    same: File | None = None


class Names:
    """The names of one user, as far as they were read, with the changes of this transaction."""

    def __init__(self, connection: AsyncConnection, user_id: str) -> None:
        self.connection = connection
        self._user_id = user_id
        self._known: set[str] = set()
        self._above: set[str] = set()
        self._files: dict[str, File] = {}
        # Folders end in a slash. Empty folders have a row.
        self._folders: set[str] = set()
        self._empty: set[str] = set()
        # Folders with a row that are no longer empty.
        self.filled: set[str] = set()

    async def read(self, names: Iterable[str]) -> None:
        """Read files and folders with these names, and above and below them."""
        asked = sorted({name.rstrip("/") for name in names} - self._known)
        if not asked:
            return
        self._known.update(asked)
        above = sorted({folder for name in asked for folder in folders_of(name)} - self._above)
        self._above.update(above)
        found = await levels.named(self.connection, self._user_id, asked, above)
        for file in found.files:
            self._files.setdefault(file.name, file)
        self._folders.update(found.folders)
        self._empty.update(found.empty)

    async def find(self, name: str, if_exists: IfExists, sha256: str | None = None) -> Found:
        """Find a name for a file. If `sha256` is given and a file with this content has the name (for KEEP: or a number of
        the name), return this file as `same`. Raises NameTaken."""
        await self.read([name])
        blocking = next((folder for folder in folders_of(name) if folder in self._files), None)
        if blocking is None:
            standing = self._files.get(name)
            if standing is None and not self.is_folder(name):
                return Found(name)
            if standing is not None and sha256 is not None and standing.sha256 == sha256:
                return Found(name, same=standing)
            if standing is not None and if_exists is IfExists.REPLACE:
                return Found(name, replaced=standing)
        if if_exists is not IfExists.KEEP:
            raise NameTaken(taken=blocking or name)
        if blocking is not None:
            other = await self._first_free(blocking, lambda each: each not in self._files)
            return await self.find(_checked(other + name[len(blocking) :], name), if_exists, sha256)
        same = None if sha256 is None else await self._numbered_content(name, sha256)
        if same is not None:
            return Found(same.name, same=same)
        return Found(await self._first_free(name, self.is_free))

    async def find_folder(self, name: str, if_exists: IfExists = IfExists.FAIL) -> str | None:
        """Return the name for a new folder; None if the folder exists. KEEP: number a segment whose name belongs to a file.
        Raises NameTaken."""
        name = name.rstrip("/")
        await self.read([name])
        blocking = next((each for each in (*folders_of(name), name) if each in self._files), None)
        if blocking is None:
            return None if self.is_folder(name) else f"{name}/"
        if if_exists is not IfExists.KEEP:
            raise NameTaken(taken=blocking)
        other = await self._first_free(blocking, lambda each: each not in self._files)
        return await self.find_folder(_checked(other + name[len(blocking) :], name), if_exists)

    def is_folder(self, name: str) -> bool:
        return f"{name.rstrip('/')}/" in self._folders

    def take(self, name: str, file: File | None = None) -> None:
        """Note that a file or an empty folder now has a name."""
        self._known.add(name.rstrip("/"))
        if file is None:
            self._folders.add(name)
        else:
            self._files[name] = file
        above = {f"{folder}/" for folder in folders_of(name)}
        self._folders |= above
        self.filled |= above & self._empty

    def standing(self, names: Iterable[str]) -> list[File]:
        """Return the files with these names, as far as they were read."""
        return [self._files[name] for name in names if name in self._files]

    def forget(self, folders: Iterable[str]) -> None:
        """Note that the rows of empty folders are gone."""
        self._empty.difference_update(folders)
        self._folders.difference_update(folders)

    def is_free(self, name: str) -> bool:
        return name not in self._files and not self.is_folder(name)

    async def _numbered_content(self, name: str, sha256: str) -> File | None:
        taken = [file for file in self._files.values() if file.sha256 == sha256]
        begin = begin_of_numbered(name)
        found = await queries.files_of_content_below(self.connection, self._user_id, sha256, begin)
        return next((file for file in (*taken, *found) if is_numbered(name, file.name)), None)

    async def _first_free(self, name: str, is_free: Callable[[str], bool]) -> str:
        """Raises NameTaken if no number is free or the name becomes too long."""

        async def first_of(numbers: Sequence[int]) -> int | None:
            await self.read([numbered(name, number) for number in numbers])
            return next((place for place, number in enumerate(numbers) if is_free(numbered(name, number))), None)

        numbers: Sequence[int] = range(FIRST_NUMBER, FIRST_NUMBER + _NUMBERS_AT_ONCE)
        place = await first_of(numbers)
        if place is None:
            last = numbers[-1]
            numbers = [last << doubling for doubling in range(_MOST_DOUBLINGS)]
            place = await first_of(numbers)
            while place and numbers[place] - numbers[place - 1] > 1:
                taken, free = numbers[place - 1], numbers[place]
                step = max((free - taken) // _NUMBERS_AT_ONCE, 1)
                numbers = [*range(taken, free, step), free]
                place = await first_of(numbers)
        if place is None:
            raise NameTaken(taken=name)
        return _checked(numbered(name, numbers[place]), name)


def _checked(name: str, wanted: str) -> str:
    """Raises NameTaken if the name is too long."""
    if len(name.encode()) > MAX_NAME_BYTES:
        raise NameTaken(taken=wanted)
    return name


async def fill(connection: AsyncConnection, names: Names, user_id: str) -> int:
    """Remove the rows of folders that are no longer empty; return the number."""
    return await forget_folders(connection, user_id, sorted(names.filled))


async def forget_folders(connection: AsyncConnection, user_id: str, names: Sequence[str]) -> int:
    """Remove the rows of empty folders; return the number."""
    return await rows.changed(connection, _of_names(user_id, names)) if names else 0


def deepest(folders: Iterable[str]) -> list[str]:
    """Return the folders without another one below: a folder above another folder is not empty."""
    found = sorted(set(folders))
    return [each for each, following in pairwise([*found, ""]) if not following.startswith(each)]


async def leave(connection: AsyncConnection, user_id: str, names: Iterable[str], now: datetime) -> int:
    """Insert rows for the folders that became empty when these names went; return the number. The caller has locked the
    user's row and accounts for the folders."""
    left = sorted({folder_of(name) for name in names} - {""})
    if not left:
        return 0
    in_use = set(await levels.prefixes_in_use(connection, user_id, left))
    empty = [each for each in deepest(left) if each not in in_use]
    await _insert_folders(connection, user_id, empty, now, made=False)
    return len(empty)


async def _insert_folders(
    connection: AsyncConnection, user_id: str, names: Sequence[str], now: datetime, *, made: bool
) -> None:
    if names:
        values = [{"user_id": user_id, "name": name, "created_at": now, "made": made} for name in names]
        await connection.execute(sa.insert(models.folder), values)


class NotAsked(Exception):
    """The transaction would create a name that the pre-create hook has not seen."""


async def make_folder(
    connection: AsyncConnection, user_id: str, name: str, max_files: int, now: datetime, *, is_allowed: bool
) -> bool:
    """Make an empty folder; return False if the folder exists. `is_allowed`: the pre-create hook allows the name, or is off.
    Raises NameTaken, TooManyFiles, NotAsked."""
    usage, names = await rows.lock_user(connection, user_id), Names(connection, user_id)
    wanted = await names.find_folder(name)
    if wanted is None:
        return False
    if not is_allowed:
        raise NotAsked
    names.take(wanted)
    await rows.take_room(connection, usage, 1 - len(names.filled), max_files, names.filled)
    await _insert_folders(connection, user_id, [wanted], now, made=True)
    filled = await fill(connection, names, user_id)
    await rows.add_finished(connection, user_id, 0, 1 - filled)
    return True


async def remove_folders(
    connection: AsyncConnection, user_id: str, names: Sequence[str], prefix: str, now: datetime
) -> int:
    """Remove empty folders below a prefix and return the number. The folder that held the prefix stays, perhaps as an empty
    folder."""
    await rows.lock_user(connection, user_id)
    gone = await forget_folders(connection, user_id, names)
    kept = await leave(connection, user_id, [prefix], now)
    await rows.add_finished(connection, user_id, 0, kept - gone)
    return gone


async def move_folders(
    connection: AsyncConnection,
    user_id: str,
    targets: Mapping[str, str],
    if_exists: IfExists,
    now: datetime,
    prefix: str,
) -> None:
    """Rename empty folders below a prefix, by name. A folder with an empty new name is removed. Raises NameTaken."""
    usage = await rows.lock_user(connection, user_id)
    there = await queries.folder_rows(connection, user_id, sorted(targets))
    await forget_folders(connection, user_id, there)
    kept = await leave(connection, user_id, [prefix], now)
    wanted = [targets[name] for name in there if targets[name]]
    await put_folders(connection, usage, wanted, now, if_exists=if_exists, more=kept - len(there))


async def put_folders(
    connection: AsyncConnection,
    usage: Usage,
    wanted: Sequence[str],
    now: datetime,
    *,
    if_exists: IfExists | None = None,
    more: int = 0,
) -> list[str]:
    """Make the empty folders that do not exist, and return them. Account for them together with `more`. The user's row is
    locked. Raises NameTaken; without `if_exists`, skips taken names."""
    names, made = Names(connection, usage.user_id), []
    await names.read(wanted)
    for name in wanted:
        try:
            free = await names.find_folder(name, if_exists or IfExists.FAIL)
        except NameTaken:
            if if_exists is not None:
                raise
            continue
        if free is not None:
            names.take(free)
            made.append(free)
    await _insert_folders(connection, usage.user_id, made, now, made=True)
    more += len(made) - await fill(connection, names, usage.user_id)
    more -= await excess(connection, usage.user_id, usage.files, more)
    await rows.add_finished(connection, usage.user_id, 0, more)
    return made


def _of_names(user_id: str, names: Sequence[str]) -> sa.Delete:
    return sa.delete(models.folder).where(_FOLDERS.user_id == user_id, _FOLDERS.name.in_(names))
