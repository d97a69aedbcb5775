"""Recounts the figures that the database keeps of users, links and contents, a range of ids at a time, and repairs them.
Also finds rows of SQLite with flipped bits.

Unlike InnoDB, SQLite keeps no checksums of its pages. Therefore only two kinds of damage show: a difference between a column
and an index, and a value that its column can't have.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from uploader.database import links, models, queries
from uploader.database.audit_log import note
from uploader.database.connection import AsyncConnection
from uploader.database.models import Bytewise, Integer64, Octets, UtcDateTime, UtcDay, metadata, upload
from uploader.database.transactions.rows import lock_open, set_upload
from uploader.domain.audit_log import Act
from uploader.domain.links import LINK_ID_LENGTH
from uploader.domain.upload import State

_Conditions = Iterable[sa.ColumnElement[bool]]


class _Part(NamedTuple):
    """A table whose rows add up to figures, by the names of the figures."""

    table: sa.Table
    figures: dict[str, sa.ColumnElement[Any]]
    conditions: _Conditions = ()


@dataclass(frozen=True, eq=False)
class KeptFigures:
    """Figures that each row of a table keeps, and the tables whose rows add up to the figures."""

    key: sa.Column[str]
    names: tuple[str, ...]
    parts: tuple[_Part, ...]
    # The column in the table of a part with the key of the counted row.
    key_in: Callable[[sa.Table], sa.ColumnElement[str]]
    # Kept columns that are compared with the figures, and not counted.
    bounds: tuple[str, ...] = ()
    # True: counted ids without a kept row are wrong.
    needs_row: bool = True

    @property
    def kept(self) -> sa.Table:
        return self.key.table


_COUNT = sa.func.count()
_IS_OPEN = (models.upload.c.state == State.OPEN.value,)
# Tables whose rows count among a user's files, with their bytes, and as refs of contents.
_FILES = (models.file, models.held_file)
# Tables whose rows count among a user's files, without bytes.
_COUNTED_ALONE = (models.folder, models.trashed_file)
USERS = KeptFigures(
    models.user_info.c.user_id,
    ("use_space_finished", "use_space_unfinished", "reserved", "files"),
    (
        *(_Part(table, {"use_space_finished": sa.func.sum(table.c.size), "files": _COUNT}) for table in _FILES),
        *(_Part(table, {"files": _COUNT}) for table in _COUNTED_ALONE),
        _Part(
            upload,
            {
                "use_space_unfinished": sa.func.sum(upload.c.flushed_bytes),
                "reserved": sa.func.sum(upload.c.size),
                "files": _COUNT,
            },
            _IS_OPEN,
        ),
    ),
    lambda table: table.c.user_id,
    bounds=("total_space",),
)
CONTENTS = KeptFigures(
    models.blob.c.sha256,
    ("refs",),
    tuple(_Part(table, {"refs": _COUNT}) for table in _FILES),
    lambda table: table.c.sha256,
)
LINKS = KeptFigures(
    models.link.c.id,
    links.FIGURES,
    tuple(
        _Part(
            table,
            dict(zip(names, (_COUNT, sa.func.sum(table.c.size)), strict=True)),
            (table.c.session > "", *conditions),
        )
        for table, names, conditions in (
            *((table, links.FIGURES[:2], ()) for table in _FILES),
            (upload, links.FIGURES[2:], _IS_OPEN),
        )
    ),
    lambda table: sa.func.substr(table.c.session, 1, LINK_ID_LENGTH, type_=models.link.c.id.type),
    needs_row=False,
)


@dataclass(frozen=True, slots=True)
class RecountedRow:
    """The figures of a row: as stored (None if there is no row), and as counted."""

    id: str
    stored: dict[str, int] | None
    counted: dict[str, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of ids: the number of rows, and the wrong rows. `until` is None for the last range."""

    until: str | None
    count: int
    rows: list[RecountedRow]


async def after(connection: AsyncConnection, figures: KeptFigures, after: str, count: int) -> Slice:
    """Recount the next rows. A row is wrong if a figure differs from its count, or breaks a bound. The last slice has all
    ids that follow."""
    last = sa.select(figures.key).where(figures.key > after).order_by(figures.key).offset(count - 1).limit(1)
    until = (await connection.execute(last)).scalar()
    found = await queries.count(connection, *_between(figures.key, after, until))
    rows = await _wrong(connection, figures, lambda key, _table: _between(key, after, until))
    return Slice(until, found, rows)


async def user(connection: AsyncConnection, user_id: str) -> Slice:
    found = await queries.count(connection, USERS.key == user_id)
    return Slice(None, found, await _wrong(connection, USERS, lambda key, _table: [key == user_id]))


def _between(key: sa.ColumnElement[str], after: str, until: str | None) -> _Conditions:
    return [key > after, *([] if until is None else [key <= until])]


async def _wrong(
    connection: AsyncConnection,
    figures: KeptFigures,
    within: Callable[[sa.ColumnElement[str], sa.Table], _Conditions],
) -> list[RecountedRow]:
    """Put the stored figures and the counted figures into rows of their own, and add the rows up by id. So each table is
    read once, and ids of only one table show, too."""
    stored = (*figures.bounds, *figures.names)
    names = ("there", *stored, *(f"counted_{name}" for name in figures.names))

    def row(key: sa.ColumnElement[str], found: dict[str, Any]) -> "sa.Select[Any]":
        return sa.select(key.label("id"), *(found.get(name, sa.literal(0)).label(name) for name in names))

    kept = {"there": sa.literal(1), **{name: figures.kept.c[name] for name in stored}}
    parts = [row(figures.key, kept).where(*within(figures.key, figures.kept))]
    for table, made, conditions in figures.parts:
        key = figures.key_in(table)
        counted = row(key, {f"counted_{name}": figure for name, figure in made.items()})
        parts.append(counted.where(*conditions, *within(key, table)).group_by(key))
    rows = sa.union_all(*parts).subquery()
    sums = [sa.func.sum(rows.c[name]).label(name) for name in names]
    sum_of = sa.select(rows.c.id, *sums).group_by(rows.c.id).subquery().c
    wrong = [sum_of[name] != sum_of[f"counted_{name}"] for name in figures.names]
    if figures is USERS:
        wrong += [
            sum_of.use_space_unfinished > sum_of.reserved,
            sum_of.use_space_finished + sum_of.reserved > sum_of.total_space,
        ]
    is_wrong = sa.or_(sum_of.there == 0, *wrong) if figures.needs_row else sa.and_(sum_of.there == 1, sa.or_(*wrong))
    found = (await connection.execute(sa.select(*sum_of).where(is_wrong).order_by(sum_of.id))).mappings()
    return [
        RecountedRow(
            each["id"],
            {name: int(each[name]) for name in stored} if each["there"] else None,
            {name: int(each[f"counted_{name}"]) for name in figures.names},
        )
        for each in found
    ]


async def repair(connection: AsyncConnection, figures: KeptFigures, id_: str, act: Act | None = None) -> bool:
    """Set the figures of a row to their counts; False if there is no row.

    Each change of an upload, a file or a folder locks the row of its user before the commit; a change of a file also locks
    its content, a change through a link the link. While a row is locked here, its figures hold exactly the changes that this
    transaction sees. Other changes are invisible, and will be added later.
    """
    is_it = figures.key == id_
    owner = figures.kept.c.get("user_id", sa.null())
    locked = (await connection.execute(sa.select(owner).where(is_it).with_for_update())).first()
    if locked is None:
        return False

    def within(key: sa.ColumnElement[str], table: sa.Table) -> _Conditions:
        # Conditions that an index serves.
        return links.of_link(table, locked[0], id_) if figures is LINKS and table is not models.link else [key == id_]

    for row in await _wrong(connection, figures, within):
        stored = row.stored or {}
        changes = {
            name: {"from": stored[name], "to": counted}
            for name, counted in row.counted.items()
            if stored[name] != counted
        }
        await connection.execute(sa.update(figures.kept).where(is_it).values(**row.counted))
        if changes:
            await note(connection, act and replace(act, user_id=locked[0]), **changes)
    return True


async def files_unlike_blobs(connection: AsyncConnection, after: str, until: str | None) -> list[tuple[str, str, str]]:
    """Return files whose size or MD5 differs from their blob, with the size and MD5 of the blob and of the file."""
    blobs, files = models.blob.c, models.file.c
    query = sa.select(files.id, blobs.size, blobs.md5, files.size, files.md5).join_from(
        models.blob, models.file, files.sha256 == blobs.sha256
    )
    known = files.md5.is_(None) != blobs.md5.is_(None)
    unlike = sa.or_(files.size != blobs.size, files.md5 != blobs.md5, known)
    rows = await connection.execute(query.where(unlike, *_between(blobs.sha256, after, until)).order_by(files.id))
    return [(file_id, f"{size} {md5}", f"{own_size} {own_md5}") for file_id, size, md5, own_size, own_md5 in rows]


async def repair_flushed(
    connection: AsyncConnection,
    upload_id: str,
    received: int,
    *,
    renew_generation: bool,
    now: datetime,
    act: Act | None = None,
) -> None:
    """Set the accounted bytes of an upload to the bytes on disk, and repair its user's figures. Raises NotOpen.

    The caller holds the locks of the upload. Within a generation figures only grow. `renew_generation` is needed where a
    figure goes down, here or in Redis: each late flush and ack of the old figure then changes nothing.
    """
    upload = await lock_open(connection, upload_id)
    generation = upload.generation + renew_generation
    values = {"flushed_bytes": received, "flushed_generation": generation, "generation": generation}
    await set_upload(connection, upload_id, **values, updated_at=now)
    await repair(connection, USERS, upload.user_id)
    await note(connection, act, flushed_bytes={"from": upload.flushed_bytes, "to": received})


# The most findings per table or check, and the most characters of a value.
_MAX_TOLD = 100
_MAX_SHOWN = 100
_SECOND = "substr({0}, 1, 19)"
_STATES = ", ".join(f"'{state.value}'" for state in State)
_NUMBER = "typeof({0}) = 'integer' AND {0} >= 0"
# SQL conditions for the values of each type. Python checks text that is not plain ASCII (`_is_text`).
_RULES: dict[type, str] = {
    Octets: "typeof({0}) = 'blob'",
    sa.LargeBinary: "json_valid(CAST({0} AS TEXT))",
    Integer64: _NUMBER,
    sa.SmallInteger: _NUMBER,
    sa.Boolean: "{0} IN (0, 1)",
    UtcDateTime: f"length({{0}}) = 26 AND datetime({_SECOND}) = {_SECOND} AND julianday({{0}}) > julianday('0001-01-01')",
    UtcDay: "length({0}) = 10 AND date({0}) = {0} AND {0} > '0001'",
}
_PLAIN = "typeof({0}) = 'blob' AND CAST({0} AS TEXT) NOT GLOB '*[^ -~]*' AND NOT instr({0}, X'00')"
# A column with the text of other programs, which may contain anything.
_ANY_TEXT = "last_error"
_STATE = f"CAST({{0}} AS TEXT) IN ({_STATES}) AND ({{0}} = CAST('OPEN' AS BLOB)) = (open_flag IS 1)"


@dataclass(frozen=True, slots=True)
class Malformed:
    table: str
    rowid: int
    column: str
    value: str


async def contradictions(connection: AsyncConnection) -> list[str]:
    """Return the errors that SQLite's own check of the whole file finds: in pages, in rows that an index has otherwise, in
    constraints (https://sqlite.org/pragma.html#pragma_integrity_check)."""
    if connection.dialect.name != "sqlite":
        return []
    rows = await connection.execute(sa.text(f"PRAGMA integrity_check({_MAX_TOLD})"))
    lines = [line.strip() for told in rows.scalars() for line in str(told).splitlines()]
    return [line for line in lines if line and line != "ok"]


async def malformed(connection: AsyncConnection) -> list[Malformed]:
    """Return values that their columns can't have. SQLite's own check covers the columns that an index repeats.
    docs/repair.md lists columns that no check covers."""
    found: list[Malformed] = []
    for table in metadata.sorted_tables if connection.dialect.name == "sqlite" else ():
        keys = [each for each in table.constraints if isinstance(each, (sa.PrimaryKeyConstraint, sa.UniqueConstraint))]
        repeated = {column for key in (*keys, *table.indexes) for column in key.columns}
        alone = [column for column in table.columns if column not in repeated and column.name != _ANY_TEXT]
        suspects = [f"CASE WHEN {_rule(column)} THEN NULL ELSE {column.name} END AS {column.name}" for column in alone]
        names = ", ".join(column.name for column in alone)
        query = f"SELECT * FROM (SELECT {', '.join(['rowid', *suspects])} FROM {table.name})"  # noqa: S608 (names of our own)
        rows = await connection.execute(
            sa.text(f"{query} WHERE coalesce(NULL, NULL{names and f', {names}'}) IS NOT NULL")
        )
        wrong = [
            Malformed(table.name, rowid, column.name, repr(value)[:_MAX_SHOWN])
            for rowid, *values in rows
            for column, value in zip(alone, values, strict=True)
            if value is not None and not _is_text(column, value)
        ]
        found += wrong[:_MAX_TOLD]
    return found


def _rule(column: sa.Column[Any]) -> str:
    return (_STATE if column is upload.c.state else _RULES.get(type(column.type), _PLAIN)).format(column.name)


def _is_text(column: sa.Column[Any], value: Any) -> bool:
    """Return whether a value of a text column is UTF-8 without control characters, which no name has."""
    if not isinstance(column.type, Bytewise) or column is upload.c.state:
        return False
    try:
        return not any(character < " " for character in bytes(value).decode())
    except (TypeError, UnicodeDecodeError):
        return False
