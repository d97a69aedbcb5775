"""Recounts what the database keeps of users and contents by their definitions, a range of ids at a time; sets figures
to that; and looks for rows of SQLite that a byte flipped in.

SQLite keeps no checksums, as InnoDB does of its pages. What can be told is what is kept twice (a column that an index
repeats), and what can't be a value of its column.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import sqlalchemy as sa

from uploader.database import links, models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.models import Bytewise, Integer64, Octets, UtcDateTime, metadata, upload
from uploader.database.transactions.rows import lock_open, set_upload
from uploader.domain.audit_log import Act
from uploader.domain.links import LINK_ID_LENGTH
from uploader.domain.upload import State, Usage

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Sums:
    """The figures of a user as their definitions make them."""

    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    files: int


class RecountedUser(NamedTuple):
    """`stored` is None if there is no row."""

    user_id: str
    stored: Usage | None
    counted: Sums


class RecountedLink(NamedTuple):
    """The figures of a link, as they are stored, and as its files and uploads make them."""

    link_id: str
    user_id: str
    stored: tuple[int, ...]
    counted: tuple[int, ...]


class RecountedRefs(NamedTuple):
    """`stored` is None if there is no row of the blob; counted are its files."""

    sha256: str
    stored: int | None
    counted: int


@dataclass(frozen=True, slots=True)
class Slice(Generic[Row]):
    """A range of ids with its wrong rows; `until` is None if no more follow."""

    until: str | None
    count: int
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class _Range:
    """The ids after `after`, up to and with `until`; None: to the end."""

    after: str
    until: str | None

    def holds(self, identifier: sa.ColumnElement[str]) -> list[sa.ColumnElement[bool]]:
        return [identifier > self.after, *([] if self.until is None else [identifier <= self.until])]


async def users_after(connection: AsyncConnection, after: str, count: int) -> Slice[RecountedUser]:
    """Recount the next users; wrong is a figure that differs from its definition, or breaks a bound."""
    return await _slice(connection, models.user_info.c.user_id, after, count, _recounted_users)


async def refs_after(connection: AsyncConnection, after: str, count: int) -> Slice[RecountedRefs]:
    """Recount the refs of the next contents; wrong are those that differ from the number of files."""
    return await _slice(connection, models.blob.c.sha256, after, count, _recounted_refs)


async def links_after(connection: AsyncConnection, after: str, count: int) -> Slice[RecountedLink]:
    """Recount the next links; wrong is a figure that differs from the sum of files or of open uploads."""
    return await _slice(connection, models.link.c.id, after, count, _recounted_links)


async def recounted_user(connection: AsyncConnection, user_id: str) -> RecountedUser:
    return RecountedUser(user_id, await queries.usage(connection, user_id), await sums_of(connection, user_id))


async def _slice(
    connection: AsyncConnection,
    identifier: sa.Column[str],
    after: str,
    count: int,
    recounted: Callable[[AsyncConnection, _Range], Awaitable[list[Row]]],
) -> Slice[Row]:
    """The last slice holds whatever follows."""
    last = sa.select(identifier).where(identifier > after).order_by(identifier).offset(count - 1).limit(1)
    within = _Range(after, (await connection.execute(last)).scalar())
    found = await queries.count(connection, *within.holds(identifier))
    return Slice(within.until, found, await recounted(connection, within))


# Whose rows count among the files of a user, with their bytes, and each as a ref of its content.
_FILES = (models.file, models.held_file)
# Whose rows count among the files of a user, and have no bytes in the account.
_COUNTED_ALONE = (models.folder, models.trashed_file)
_KEPT = ("total_space", "use_space_finished", "use_space_unfinished", "reserved", "files")


# What is kept of a user or a content, and what is counted, lie in rows of their own, which are then added up: so each table
# is walked once, and nobody is missed who is only in one of them.
class _Part(NamedTuple):
    identifier: sa.ColumnElement[str]
    figures: Mapping[str, sa.ColumnElement[Any]]
    conditions: tuple[sa.ColumnElement[bool], ...] = ()
    is_counted: bool = True


def _added_up(within: _Range, identifier: str, names: tuple[str, ...], *parts: _Part) -> sa.Subquery:
    queries = []
    for part in parts:
        figures = [part.figures.get(name, sa.literal(0)).label(name) for name in names]
        query = sa.select(part.identifier.label(identifier), *figures)
        query = query.where(*part.conditions, *within.holds(part.identifier))
        queries.append(query.group_by(part.identifier) if part.is_counted else query)
    rows = sa.union_all(*queries).subquery()
    sums = [sa.func.sum(rows.c[name]).label(name) for name in names]
    return sa.select(rows.c[identifier], *sums).group_by(rows.c[identifier]).subquery()


async def _recounted_users(connection: AsyncConnection, within: _Range) -> list[RecountedUser]:
    users, uploads = models.user_info.c, models.upload.c
    kept = {"there": sa.literal(1), **{name: users[name] for name in _KEPT}}
    unfinished, reserved = sa.func.sum(uploads.flushed_bytes), sa.func.sum(uploads.size)
    held = {"counted_use_space_unfinished": unfinished, "counted_reserved": reserved, "counted_files": sa.func.count()}
    finished = [
        _Part(
            table.c.user_id, {"counted_use_space_finished": sa.func.sum(table.c.size), "counted_files": sa.func.count()}
        )
        for table in _FILES
    ]
    table = _added_up(
        within,
        "user_id",
        ("there", *_KEPT, *(f"counted_{name}" for name in _KEPT[1:])),
        _Part(users.user_id, kept, is_counted=False),
        *finished,
        *(_Part(table.c.user_id, {"counted_files": sa.func.count()}) for table in _COUNTED_ALONE),
        _Part(uploads.user_id, held, (uploads.state == State.OPEN.value,)),
    ).c
    wrong = [table[name] != table[f"counted_{name}"] for name in _KEPT[1:]]
    beyond = [
        table.use_space_unfinished > table.reserved,
        table.use_space_finished + table.reserved > table.total_space,
    ]
    query = sa.select(*table).where(sa.or_(table.there == 0, *wrong, *beyond)).order_by(table.user_id)
    found = []
    for user_id, there, *figures in await connection.execute(query):
        stored, counted = map(int, figures[: len(_KEPT)]), map(int, figures[len(_KEPT) :])
        usage = Usage(user_id=user_id, **dict(zip(_KEPT, stored, strict=True))) if there else None
        found.append(RecountedUser(user_id, usage, Sums(*counted)))
    return found


async def sums_of(connection: AsyncConnection, user_id: str) -> Sums:
    uploads = models.upload.c
    flushed, sizes = (sa.func.coalesce(sa.func.sum(column), 0) for column in (uploads.flushed_bytes, uploads.size))
    open_sums = sa.select(flushed, sizes, sa.func.count()).where(
        uploads.user_id == user_id, uploads.state == State.OPEN.value
    )
    unfinished, reserved, opened = (await connection.execute(open_sums)).one()
    finished = made = 0
    for table in _FILES:
        size = sa.func.coalesce(sa.func.sum(table.c.size), 0)
        sums = sa.select(size, sa.func.count()).where(table.c.user_id == user_id)
        more_bytes, more_files = (await connection.execute(sums)).one()
        finished, made = finished + int(more_bytes), made + more_files
    others = [await queries.count(connection, table.c.user_id == user_id) for table in _COUNTED_ALONE]
    return Sums(finished, int(unfinished), int(reserved), opened + made + sum(others))


async def _recounted_refs(connection: AsyncConnection, within: _Range) -> list[RecountedRefs]:
    blobs = models.blob.c
    table = _added_up(
        within,
        "sha256",
        ("there", "refs", "files"),
        _Part(blobs.sha256, {"there": sa.literal(1), "refs": blobs.refs}, is_counted=False),
        *(_Part(table.c.sha256, {"files": sa.func.count()}) for table in _FILES),
    ).c
    query = sa.select(*table).where(sa.or_(table.there == 0, table.refs != table.files)).order_by(table.sha256)
    return [
        RecountedRefs(sha256, int(refs) if there else None, int(count))
        for sha256, there, refs, count in await connection.execute(query)
    ]


async def _recounted_links(connection: AsyncConnection, within: _Range) -> list[RecountedLink]:
    rows, uploads = models.link.c, models.upload.c
    counted = [f"counted_{name}" for name in links.FIGURES]

    def part(table: sa.Table, names: Sequence[str], *conditions: sa.ColumnElement[bool]) -> _Part:
        link_id = sa.func.substr(table.c.session, 1, LINK_ID_LENGTH, type_=rows.id.type)
        figures = dict(zip(names, (sa.func.count(), sa.func.sum(table.c.size)), strict=True))
        return _Part(link_id, figures, (table.c.session > "", *conditions))

    table = _added_up(
        within,
        "id",
        ("there", *links.FIGURES, *counted),
        _Part(rows.id, {"there": sa.literal(1), **{name: rows[name] for name in links.FIGURES}}, is_counted=False),
        *(part(table, counted[:2]) for table in _FILES),
        part(models.upload, counted[2:], uploads.state == State.OPEN.value),
    ).c
    is_wrong = sa.or_(*(table[name] != table[f"counted_{name}"] for name in links.FIGURES))
    query = sa.select(table.id, rows.user_id, *(table[name] for name in (*links.FIGURES, *counted)))
    query = query.join_from(table.id.table, models.link, rows.id == table.id).where(table.there == 1, is_wrong)
    found = []
    for link_id, user_id, *figures in await connection.execute(query.order_by(table.id)):
        numbers = tuple(map(int, figures))
        found.append(RecountedLink(link_id, user_id, numbers[: len(counted)], numbers[len(counted) :]))
    return found


async def repair_link(connection: AsyncConnection, link_id: str, act: Act | None = None) -> bool:
    """Set the figures of a link to what its files and uploads make them, which lock its row when they come and go; False
    without a link."""
    link = await links.locked(connection, link_id)
    if link is None:
        return False
    figures = await links.figures_of(connection, link.user_id, link_id)
    await connection.execute(sa.update(models.link).where(models.link.c.id == link_id).values(**figures))
    differing = {name: _change(getattr(link, name), figure) for name, figure in figures.items()}
    if any(differing.values()):
        await note(connection, act, **{name: change for name, change in differing.items() if change})
    return True


async def files_unlike_blobs(connection: AsyncConnection, after: str, until: str | None) -> list[tuple[str, str, str]]:
    """Find files that have another size or MD5 than their blobs, with what the blob and the file say."""
    blobs, files = models.blob.c, models.file.c
    query = sa.select(files.id, blobs.size, blobs.md5, files.size, files.md5).join_from(
        models.blob, models.file, files.sha256 == blobs.sha256
    )
    known = files.md5.is_(None) != blobs.md5.is_(None)
    unlike = sa.or_(files.size != blobs.size, files.md5 != blobs.md5, known)
    rows = await connection.execute(query.where(unlike, *_Range(after, until).holds(blobs.sha256)).order_by(files.id))
    return [(file_id, f"{size} {md5}", f"{own_size} {own_md5}") for file_id, size, md5, own_size, own_md5 in rows]


async def repair_user(connection: AsyncConnection, user_id: str, act: Act | None = None) -> bool:
    """Set a user's figures to what their definitions make them; False if the user has no row.

    Every change of an upload, a file or a folder locks the user's row before the commit. So while it is held here, every
    change that is in the figures can be seen, and every other one can't and will still be added.
    """
    users = models.user_info.c
    before = await queries.usage(connection, user_id, lock=True)
    if before is None:
        return False
    sums = asdict(await sums_of(connection, user_id))
    await connection.execute(sa.update(models.user_info).where(users.user_id == user_id).values(**sums))
    differing = {name: _change(getattr(before, name), figure) for name, figure in sums.items()}
    if any(differing.values()):
        await note(connection, act, **{name: change for name, change in differing.items() if change})
    return True


def _change(before: int, after: int) -> dict[str, int] | None:
    return None if before == after else {"from": before, "to": after}


async def repair_refs(connection: AsyncConnection, sha256: str, act: Act | None = None) -> bool:
    """Set the refs of a blob to the number of its files, which only change under its lock; False without a blob."""
    blob = await queries.blob_by_sha256(connection, sha256, lock=True)
    if blob is None:
        return False
    refs = sum([await queries.count(connection, table.c.sha256 == sha256) for table in _FILES])
    await connection.execute(sa.update(models.blob).where(models.blob.c.sha256 == sha256).values(refs=refs))
    if refs != blob.refs:
        await note(connection, act, refs=_change(blob.refs, refs))
    return True


async def repair_flushed(
    connection: AsyncConnection,
    upload_id: str,
    received: int,
    *,
    renew_generation: bool,
    now: datetime,
    act: Act | None = None,
) -> None:
    """Set the accounted bytes of an upload to those on disk, and its user's figures with them. Raises NotOpen.

    The caller holds the upload's locks. Within a generation figures only grow: where one has to go down, here or in
    Redis, `renew_generation` makes every late flush and ack of the old figure a no-op.
    """
    upload = await lock_open(connection, upload_id)
    generation = upload.generation + renew_generation
    values = {"flushed_bytes": received, "flushed_generation": generation, "generation": generation}
    await set_upload(connection, upload_id, **values, updated_at=now)
    await repair_user(connection, upload.user_id)
    await note(connection, act, flushed_bytes={"from": upload.flushed_bytes, "to": received})


# So many of a kind are told.
_MAX_TOLD = 100
_MAX_SHOWN = 100
_HEX_DIGITS = {
    **dict.fromkeys(("id", "md5", "file_id", "upload_id", "link_id", "event_id", "digest_md5"), 32),
    **dict.fromkeys(("sha256", "token_sha256", "digest_sha256", "slug_sha256"), 64),
}
# Those texts that neither an index repeats nor a pattern tells.
_TEXTS = [
    *(("upload", "name"), ("upload", "temp_path"), ("meta", "value"), ("token", "scope"), ("token", "made_by")),
    *(("concatenation", "name"), ("concatenation", "ordered")),
    *(
        ("trashed_file", "reason"),
        ("trashed_file", "detail"),
        ("held_file", "name"),
        ("blob", "passed"),
        ("link", "label"),
        ("link", "name"),
        ("link", "password"),
    ),
    *(("multipart", "multipart_id"), ("multipart", "appender"), ("chunk", "etag")),
]
_SECOND = "substr({column}, 1, 19)"
_CLOSED = "(closed_at IS NULL) = (open_flag IS 1) AND (CAST(state AS TEXT) = 'OPEN') = (open_flag IS 1)"


@dataclass(frozen=True, slots=True)
class Malformed:
    table: str
    rowid: int
    column: str
    value: str


async def contradictions(connection: AsyncConnection) -> list[str]:
    """SQLite's own check of the whole file: pages, rows that an index does not have as they are, broken constraints
    (https://sqlite.org/pragma.html#pragma_integrity_check)."""
    if connection.dialect.name != "sqlite":
        return []
    rows = await connection.execute(sa.text(f"PRAGMA integrity_check({_MAX_TOLD})"))
    lines = [line.strip() for told in rows.scalars() for line in str(told).splitlines()]
    return [line for line in lines if line and line != "ok"]


async def malformed(connection: AsyncConnection) -> list[Malformed]:
    """Find values that their columns can't have, one of a row; docs/repair.md lists those that nothing repeats."""
    if connection.dialect.name != "sqlite":
        return []
    found: list[Malformed] = []
    for table in metadata.sorted_tables:
        found += await _malformed_rows(connection, table)
    for table_name, column_name in _TEXTS:
        found += await _broken_texts(connection, table_name, column_name)
    return found


async def _malformed_rows(connection: AsyncConnection, table: sa.Table) -> list[Malformed]:
    wrong = " ".join(f"WHEN ({_rule(column)}) IS NOT TRUE THEN '{column.name}'" for column in table.columns)
    if table is upload:
        wrong += f" WHEN ({_CLOSED}) IS NOT TRUE THEN 'state'"
    query = f"SELECT rowid, CASE {wrong} END AS wrong FROM {table.name} WHERE wrong IS NOT NULL LIMIT {_MAX_TOLD}"  # noqa: S608
    rows = (await connection.execute(sa.text(query))).all()
    return [
        Malformed(table.name, rowid, name, await _shown(connection, table.name, rowid, name)) for rowid, name in rows
    ]


async def _shown(connection: AsyncConnection, table_name: str, rowid: int, column_name: str) -> str:
    query = sa.text(f"SELECT {column_name} FROM {table_name} WHERE rowid = :rowid")  # noqa: S608
    return repr((await connection.execute(query, {"rowid": rowid})).scalar())[:_MAX_SHOWN]


def _rule(column: sa.Column[Any]) -> str:
    rule = _rule_of_value(column).format(column=column.name)
    return f"{column.name} IS NULL OR ({rule})" if column.nullable else rule


def _rule_of_value(column: sa.Column[Any]) -> str:
    if column is upload.c.state:
        words = ", ".join(f"'{state.value}'" for state in State)
        return f"typeof({{column}}) = 'blob' AND CAST({{column}} AS TEXT) IN ({words})"
    if column.name in _HEX_DIGITS:
        length = f"typeof({{column}}) = 'blob' AND length({{column}}) = {_HEX_DIGITS[column.name]}"
        return f"{length} AND CAST({{column}} AS TEXT) NOT GLOB '*[^0-9a-f]*'"
    match column.type:
        case Bytewise() | Octets():
            return "typeof({column}) = 'blob'"
        case sa.LargeBinary():
            return "typeof({column}) = 'blob' AND json_valid(CAST({column} AS TEXT))"
        case Integer64():
            return "typeof({column}) = 'integer' AND {column} >= 0"
        case sa.Boolean():
            return "typeof({column}) = 'integer' AND {column} IN (0, 1)"
        case sa.SmallInteger():
            return "{column} = 1"
        case UtcDateTime():
            second = f"strftime('%Y-%m-%d %H:%M:%S', {_SECOND}) = {_SECOND} AND {{column}} > '0001'"
            return f"length({{column}}) = 26 AND {{column}} GLOB '*.[0-9][0-9][0-9][0-9][0-9][0-9]' AND {second}"
        case _:
            return "length({column}) = 10 AND date({column}) = {column} AND {column} > '0001'"


async def _broken_texts(connection: AsyncConnection, table: str, column: str) -> list[Malformed]:
    suspect = f"CAST({column} AS TEXT) GLOB '*[^ -~]*' OR instr({column}, X'00') > 0"
    query = f"SELECT rowid, {column} FROM {table} WHERE {suspect}"  # noqa: S608
    rows = (await connection.execute(sa.text(query))).all()
    return [Malformed(table, rowid, column, repr(value)[:_MAX_SHOWN]) for rowid, value in rows if not _is_text(value)]


def _is_text(value: Any) -> bool:
    """Return whether it is UTF-8 without control characters, which no name has."""
    try:
        return not any(character < " " for character in bytes(value).decode())
    except (TypeError, UnicodeDecodeError):
        return False
