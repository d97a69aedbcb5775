"""Recounts what the database keeps of users and contents by their definitions, a range of ids at a time."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Column, ColumnElement, Subquery, func, literal, or_, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models, queries
from uploader.domain.quota import Usage
from uploader.domain.upload import State

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Sums:
    """The figures of a user as their definitions make them."""

    use_space_finished: int
    use_space_unfinished: int
    reserved: int


class RecountedUser(NamedTuple):
    """The figures of a user as they are stored (None: there is no row), and as they are counted."""

    user_id: str
    stored: Usage | None
    counted: Sums


class RecountedRefs(NamedTuple):
    """The refs of a content as they are stored (None: there is no row of the blob), and how many files it has."""

    sha256: str
    stored: int | None
    counted: int


@dataclass(frozen=True, slots=True)
class Slice(Generic[Row]):
    """A range of ids: the last one (None: no more follow), how many there are, and the rows that are wrong."""

    until: str | None
    count: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class _Range:
    """What comes after the id `after`, up to and with `until`; None: to the end."""

    after: str
    until: str | None

    def holds(self, identifier: ColumnElement[str]) -> list[ColumnElement[bool]]:
        return [identifier > self.after, *([] if self.until is None else [identifier <= self.until])]


async def users_after(connection: AsyncConnection, after: str, count: int) -> Slice[RecountedUser]:
    """The next `count` users. Wrong is whose figures are not what their definitions make them, or break a bound."""
    return await _slice(connection, models.user_info.c.user_id, after, count, _recounted_users)


async def refs_after(connection: AsyncConnection, after: str, count: int) -> Slice[RecountedRefs]:
    """The next `count` contents. Wrong are refs that are not the number of files."""
    return await _slice(connection, models.blob.c.sha256, after, count, _recounted_refs)


async def recounted_user(connection: AsyncConnection, user_id: str) -> RecountedUser:
    """One user, right or wrong."""
    return RecountedUser(user_id, await queries.usage(connection, user_id), await sums_of(connection, user_id))


async def _slice(
    connection: AsyncConnection,
    identifier: Column[str],
    after: str,
    count: int,
    recounted: Callable[[AsyncConnection, _Range], Awaitable[list[Row]]],
) -> Slice[Row]:
    """The next `count` ids of a column; the last slice holds whatever follows."""
    last = select(identifier).where(identifier > after).order_by(identifier).offset(count - 1).limit(1)
    within = _Range(after, (await connection.execute(last)).scalar())
    counted = select(func.count()).where(*within.holds(identifier))
    found = int((await connection.execute(counted)).scalar_one())
    return Slice(within.until, found, await recounted(connection, within))


_KEPT = ("total_space", "use_space_finished", "use_space_unfinished", "reserved")

# What is kept of a user or a content, and what is counted, lie in rows of their own, which are then added up: so each table
# is walked once, and nobody is missed who is only in one of them.
_Figures = Mapping[str, ColumnElement[Any]]


def _added_up(
    identifier: str, names: tuple[str, ...], parts: list[tuple[ColumnElement[str], _Figures, Any]]
) -> Subquery:
    """For each id the sums of `names`; each part is an id, some figures, and what its query goes on with."""
    queries = [
        more(select(id_.label(identifier), *(figures.get(name, literal(0)).label(name) for name in names)))
        for id_, figures, more in parts
    ]
    rows = union_all(*queries).subquery()
    sums = [func.sum(rows.c[name]).label(name) for name in names]
    return select(rows.c[identifier], *sums).group_by(rows.c[identifier]).subquery()


_USER_FIGURES = ("there", *_KEPT, *(f"counted_{name}" for name in _KEPT[1:]))


async def _recounted_users(connection: AsyncConnection, within: _Range) -> list[RecountedUser]:
    users, files, uploads = models.user_info.c, models.file.c, models.upload.c
    is_open = uploads.state == State.OPEN.value
    table = _added_up(
        "user_id",
        _USER_FIGURES,
        [
            (
                users.user_id,
                {"there": literal(1), **{name: users[name] for name in _KEPT}},
                lambda query: query.where(*within.holds(users.user_id)),
            ),
            (
                files.user_id,
                {"counted_use_space_finished": func.sum(files.size)},
                lambda query: query.where(*within.holds(files.user_id)).group_by(files.user_id),
            ),
            (
                uploads.user_id,
                {
                    "counted_use_space_unfinished": func.sum(uploads.flushed_bytes),
                    "counted_reserved": func.sum(uploads.size),
                },
                lambda query: query.where(is_open, *within.holds(uploads.user_id)).group_by(uploads.user_id),
            ),
        ],
    ).c
    wrong = [table[name] != table[f"counted_{name}"] for name in _KEPT[1:]]
    beyond = [
        table.use_space_unfinished > table.reserved,
        table.use_space_finished + table.reserved > table.total_space,
    ]
    query = select(*table).where(or_(table.there == 0, *wrong, *beyond)).order_by(table.user_id)
    found = []
    for user_id, there, *figures in await connection.execute(query):
        kept, counted = map(int, figures[: len(_KEPT)]), map(int, figures[len(_KEPT) :])
        stored = Usage(user_id=user_id, **dict(zip(_KEPT, kept, strict=True))) if there else None
        found.append(RecountedUser(user_id, stored, Sums(*counted)))
    return found


async def sums_of(connection: AsyncConnection, user_id: str) -> Sums:
    """The figures of one user, recounted."""
    uploads, files = models.upload.c, models.file.c
    sums = func.coalesce(func.sum(uploads.flushed_bytes), 0), func.coalesce(func.sum(uploads.size), 0)
    open_sums = select(*sums).where(uploads.user_id == user_id, uploads.state == State.OPEN.value)
    unfinished, reserved = (await connection.execute(open_sums)).one()
    finished = select(func.coalesce(func.sum(files.size), 0)).where(files.user_id == user_id)
    return Sums(int((await connection.execute(finished)).scalar_one()), int(unfinished), int(reserved))


async def _recounted_refs(connection: AsyncConnection, within: _Range) -> list[RecountedRefs]:
    blobs, files = models.blob.c, models.file.c
    table = _added_up(
        "sha256",
        ("there", "refs", "files"),
        [
            (
                blobs.sha256,
                {"there": literal(1), "refs": blobs.refs},
                lambda query: query.where(*within.holds(blobs.sha256)),
            ),
            (
                files.sha256,
                {"files": func.count()},
                lambda query: query.where(*within.holds(files.sha256)).group_by(files.sha256),
            ),
        ],
    ).c
    query = select(*table).where(or_(table.there == 0, table.refs != table.files)).order_by(table.sha256)
    return [
        RecountedRefs(sha256, int(refs) if there else None, int(count))
        for sha256, there, refs, count in await connection.execute(query)
    ]


async def files_unlike_blobs(connection: AsyncConnection, after: str, until: str | None) -> list[tuple[str, str, str]]:
    """Of the contents after the SHA-256 `after`, up to and with `until`: files that have another size or MD5, and what the
    blob and the file say."""
    blobs, files = models.blob.c, models.file.c
    query = select(files.id, blobs.size, blobs.md5, files.size, files.md5).join_from(
        models.blob, models.file, files.sha256 == blobs.sha256
    )
    known = files.md5.is_(None) != blobs.md5.is_(None)
    unlike = or_(files.size != blobs.size, files.md5 != blobs.md5, known)
    rows = await connection.execute(query.where(unlike, *_Range(after, until).holds(blobs.sha256)).order_by(files.id))
    return [(file_id, f"{size} {md5}", f"{own_size} {own_md5}") for file_id, size, md5, own_size, own_md5 in rows]


async def count_files_of(connection: AsyncConnection, sha256: str) -> int:
    query = select(func.count()).select_from(models.file).where(models.file.c.sha256 == sha256)
    return int((await connection.execute(query)).scalar_one())
