"""One level of a user's names: the folders and the files right below a prefix, by name, byte by byte.

The query hops along the index of names: from a folder to the first name after the folder. So the cost of a page depends on
the entries shown, not on the number of files in the folders. The files of the folders are counted up to a limit
(`COUNTED_FILES`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from uploader.database import links, models, queries
from uploader.database.connection import AsyncConnection
from uploader.domain.bulk import beyond
from uploader.domain.names import Folder, Place
from uploader.domain.upload import File

# For all folders of a page together. If they hold more files, each folder is counted up to an equal share.
COUNTED_FILES = 20_000
# Per statement: MySQL and MariaDB end a recursion after 1,000.
_HOPS = 500

# MySQL and MariaDB plan a subquery once, without the values of the outer row, and then each hop would begin at the first
# name of the user. They plan a range again for each row of the table before it in a join, if no bound is a constant and no
# key can be looked up. So a table with one row holds the user and is joined by a range. There is no ORDER BY, because with
# one they would fetch all rows that follow; the index returns the smallest name first. Only if the table fits into about one
# page may MySQL read the rows in another order. So queries for any name of a prefix bound the range at both ends, and for a
# user with at most 100 files the names are ordered.
_HOP = {
    "sqlite": """
SELECT {table}.name FROM {table} WHERE {table}.user_id = :user_id AND {table}.name >= {first}
ORDER BY {table}.name LIMIT 1""",
    "mysql": """
SELECT {table}.name FROM JSON_TABLE(:users, '$[*]' COLUMNS (id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) AS owner
STRAIGHT_JOIN {table} FORCE INDEX ({index})
  ON {table}.user_id >= CAST(owner.id AS BINARY) AND {table}.user_id <= CAST(owner.id AS BINARY)
  AND {table}.name >= {first}{within}
LIMIT 1""",
}
_WITHIN = {"sqlite": "", "mysql": " AND {table}.name < UNHEX(item.beyond)"}
_NEXT = {
    "sqlite": "{hop}",
    "mysql": """
SELECT CASE WHEN (SELECT user_info.files FROM user_info WHERE user_info.user_id = :user_id) <= 100 THEN (
    SELECT {table}.name FROM {table} FORCE INDEX ({index})
    WHERE {table}.user_id = :user_id AND {table}.name >= {first} ORDER BY {table}.name LIMIT 1
  ) ELSE ({hop}) END""",
}
# The index of names of each table.
_INDEXES = {"file": "uq_file_name", "folder": "PRIMARY", "held_file": "ix_held_file_name"}
# For each prefix, a name that begins with the prefix. On SQLite: the first name from the prefix on.
_FIRST = {
    "sqlite": """
SELECT item.key AS number, ({hop}) AS name FROM json_each(:prefixes) AS item""",
    "mysql": """
SELECT item.number - 1 AS number, ({hop}) AS name FROM JSON_TABLE(:prefixes, '$[*]' {range}) AS item""",
}
# Kind 0: the files with the given names. Kind 1: for each prefix, the name of a file and of an empty folder, as above. Kind
# 2: the empty ones among the given folders. A single statement, because this runs for each new file.
_NAMED = {
    "sqlite": """
SELECT 0 AS kind, item.key AS number, file.name AS found, {columns}, {damaged} AS damaged
FROM json_each(:names) AS item CROSS JOIN file ON file.user_id = :user_id AND file.name = CAST(item.value AS BLOB)
LEFT JOIN `blob` ON `blob`.sha256 = file.sha256
UNION ALL SELECT 1, item.key, ({files}), {nothing}, NULL FROM json_each(:prefixes) AS item
UNION ALL SELECT 1, item.key, ({folders}), {nothing}, NULL FROM json_each(:prefixes) AS item
UNION ALL SELECT 2, item.key, folder.name, {nothing}, NULL
FROM json_each(:above) AS item CROSS JOIN folder ON folder.user_id = :user_id AND folder.name = CAST(item.value AS BLOB)""",
    "mysql": """
SELECT 0 AS kind, item.number - 1 AS number, file.name AS found, {columns}, {damaged} AS damaged
FROM JSON_TABLE(:names, '$[*]' {item}) AS item
STRAIGHT_JOIN file FORCE INDEX (uq_file_name) ON file.user_id = :user_id AND file.name = CAST(item.value AS BINARY)
LEFT JOIN `blob` ON `blob`.sha256 = file.sha256
UNION ALL SELECT 1, item.number - 1, ({files}), {nothing}, NULL FROM JSON_TABLE(:prefixes, '$[*]' {range}) AS item
UNION ALL SELECT 1, item.number - 1, ({folders}), {nothing}, NULL FROM JSON_TABLE(:prefixes, '$[*]' {range}) AS item
UNION ALL SELECT 2, item.number - 1, folder.name, {nothing}, NULL
FROM JSON_TABLE(:above, '$[*]' {item}) AS item
STRAIGHT_JOIN folder ON folder.user_id = :user_id AND folder.name = CAST(item.value AS BINARY)""",
}
_ITEM = "COLUMNS (number FOR ORDINALITY, value VARCHAR(1025) CHARACTER SET utf8mb4 PATH '$')"
# A prefix, and the first name after all names with this prefix, in hexadecimal digits.
_RANGE = """COLUMNS (
  number FOR ORDINALITY, value VARCHAR(1025) CHARACTER SET utf8mb4 PATH '$[0]',
  beyond VARCHAR(2052) CHARACTER SET utf8mb4 PATH '$[1]'
)"""
_INDEX = {"sqlite": "", "mysql": "FORCE INDEX (uq_file_name)"}
# The position of the first slash after the prefix, and the first name that may follow an entry of the level.
_SLASH = "INSTR(SUBSTR(hop.name, :skip), X'2F')"
_AFTER = {
    "sqlite": f"""
CAST(CASE WHEN {_SLASH} > 0 THEN SUBSTR(hop.name, 1, :skip + {_SLASH} - 2) || X'30' ELSE hop.name || X'00' END AS BLOB)""",
    "mysql": f"""
CASE WHEN {_SLASH} > 0 THEN CONCAT(SUBSTR(hop.name, 1, :skip + {_SLASH} - 2), X'30') ELSE CONCAT(hop.name, X'00') END""",
}
_HOPS_OF = """
WITH RECURSIVE hop (number, name) AS (
  SELECT 1, (SELECT MIN({table}.name) FROM {table} WHERE {table}.user_id = :user_id AND {table}.name >= :first)
  UNION ALL SELECT number + 1, ({next}) FROM hop WHERE hop.name < :beyond AND number < :hops
)"""
_FILES_OF_LEVEL = """
SELECT hop.number, hop.name AS found, {columns}, COALESCE(`blob`.damaged, `blob`.sha256 IS NULL) AS damaged
FROM hop
LEFT JOIN file {index} ON {slash} = 0 AND file.user_id = :user_id AND file.name = hop.name
LEFT JOIN `blob` ON `blob`.sha256 = file.sha256
WHERE hop.name < :beyond ORDER BY hop.number"""
_FOLDERS_OF_LEVEL = """
SELECT hop.number, hop.name AS found FROM hop WHERE hop.name < :beyond ORDER BY hop.number"""

# Finds the first name of each range. MySQL may read the rows in any order.
_SKIPPED = """
SELECT item.number - 1 AS number, (
  SELECT MIN({table}.name) FROM JSON_TABLE(:users, '$[*]' COLUMNS (id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) AS owner
  STRAIGHT_JOIN {table} FORCE INDEX ({index})
    ON {table}.user_id >= CAST(owner.id AS BINARY) AND {table}.user_id <= CAST(owner.id AS BINARY)
    AND {table}.name >= UNHEX(item.first) AND {table}.name < UNHEX(item.beyond)
) AS name
FROM JSON_TABLE(:gaps, '$[*]' COLUMNS (
  number FOR ORDINALITY, first VARCHAR(2052) CHARACTER SET utf8mb4 PATH '$[0]',
  beyond VARCHAR(2052) CHARACTER SET utf8mb4 PATH '$[1]'
)) AS item"""
_HAS_MORE = """
SELECT file.name FROM file {index} WHERE file.user_id = :user_id AND file.name >= :first AND file.name < :beyond
ORDER BY file.name LIMIT 1 OFFSET :most"""
_COUNT_ALL = """
SELECT SUBSTR(file.name, 1, :skip + INSTR(SUBSTR(file.name, :skip), X'2F') - 1) AS folder,
  COUNT(*) AS files, SUM(file.size) AS bytes
FROM file {index} WHERE file.user_id = :user_id AND file.name >= :first AND file.name < :beyond GROUP BY folder"""
# Count the files of each folder up to the name `cut`. Without the LIMIT, MySQL and MariaDB would look for `cut` once per
# file.
_COUNT_SHARES = {
    "sqlite": """
WITH item AS (
  SELECT value ->> 0 AS number, CAST(value ->> 2 AS BLOB) AS name, CAST(value ->> 3 AS BLOB) AS beyond
  FROM json_each(:folders)
), shown AS MATERIALIZED (
  SELECT item.*, (
    SELECT file.name FROM file
    WHERE file.user_id = :user_id AND file.name >= item.name AND file.name < item.beyond
    ORDER BY file.name LIMIT 1 OFFSET :most
  ) AS cut FROM item
)
SELECT shown.number, COUNT(*) AS files, SUM(file.size) AS bytes, MAX(shown.cut IS NOT NULL) AS at_least FROM shown
CROSS JOIN file ON file.user_id = :user_id AND file.name >= shown.name AND file.name < COALESCE(shown.cut, shown.beyond)
GROUP BY shown.number""",
    "mysql": """
SELECT shown.number, COUNT(*) AS files, SUM(file.size) AS bytes, MAX(shown.cut IS NOT NULL) AS at_least FROM (
  SELECT item.number, item.user_id, CAST(item.name AS BINARY) AS name, CAST(item.beyond AS BINARY) AS beyond, (
    SELECT file.name FROM JSON_TABLE(:users, '$[*]' COLUMNS (id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$')) AS owner
    STRAIGHT_JOIN file FORCE INDEX (uq_file_name)
      ON file.user_id >= CAST(owner.id AS BINARY) AND file.user_id <= CAST(owner.id AS BINARY)
      AND file.name >= CAST(item.name AS BINARY) AND file.name < CAST(item.beyond AS BINARY)
    LIMIT 1 OFFSET :most
  ) AS cut
  FROM JSON_TABLE(:folders, '$[*]' COLUMNS (
    number BIGINT PATH '$[0]', user_id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]',
    name VARCHAR(1025) CHARACTER SET utf8mb4 PATH '$[2]', beyond VARCHAR(1025) CHARACTER SET utf8mb4 PATH '$[3]'
  )) AS item LIMIT 1000000
) AS shown
STRAIGHT_JOIN file FORCE INDEX (uq_file_name)
  ON file.user_id >= CAST(shown.user_id AS BINARY) AND file.user_id <= CAST(shown.user_id AS BINARY)
  AND file.name >= shown.name AND file.name < COALESCE(shown.cut, shown.beyond)
GROUP BY shown.number""",
}

_FILES = models.file.c


def _typed(statement: str, *columns: sa.ColumnElement[Any]) -> sa.TextualSelect:
    given = [sa.bindparam("user_id", type_=_FILES.user_id.type)] if ":user_id" in statement else []
    return sa.text(statement).bindparams(*given).columns(*columns)


def _any_from(dialect: str, table: str, first: str) -> str:
    """Return a subquery for any name that begins with a prefix."""
    within = _WITHIN[dialect].format(table=table)
    return _HOP[dialect].format(table=table, index=_INDEXES[table], first=first, within=within)


def _hop(dialect: str, table: str, first: str) -> str:
    hop = _HOP[dialect].format(table=table, index=_INDEXES[table], first=first, within="")
    return _NEXT[dialect].format(table=table, index=_INDEXES[table], first=first, hop=hop)


def _ranges(dialect: str, prefixes: Sequence[str]) -> str:
    return json.dumps(prefixes if dialect == "sqlite" else [(each, _beyond(each).hex()) for each in prefixes])


@cache
def _first(dialect: str, table: str) -> sa.TextualSelect:
    """Return the statement that finds, for each prefix by number, a name that begins with the prefix."""
    own = "CAST(item.value AS BLOB)" if dialect == "sqlite" else "CAST(item.value AS BINARY)"
    statement = _FIRST[dialect].format(hop=_any_from(dialect, table, own), range=_RANGE)
    return _typed(statement, sa.column("number", models.Integer64()), sa.column("name", _FILES.name.type))


@cache
def _named(dialect: str) -> sa.TextualSelect:
    """Return the statement for the files with the given names, for the names below, and for the empty folders above."""
    own = "CAST(item.value AS BLOB)" if dialect == "sqlite" else "CAST(item.value AS BINARY)"
    columns = [_FILES[name] for name in queries.FILE_COLUMNS]
    statement = _NAMED[dialect].format(
        columns=", ".join(f"file.{column.name}" for column in columns),
        nothing=", ".join("NULL" for _ in columns),
        damaged="COALESCE(`blob`.damaged, `blob`.sha256 IS NULL)",
        files=_any_from(dialect, "file", own),
        folders=_any_from(dialect, "folder", own),
        item=_ITEM,
        range=_RANGE,
    )
    kind, number = sa.column("kind", sa.Integer()), sa.column("number", models.Integer64())
    found = sa.column("found", _FILES.name.type)
    return _typed(statement, kind, number, found, *columns, sa.column("damaged", sa.Boolean()))


@cache
def _level(dialect: str, table: str) -> sa.TextualSelect:
    """Return the statement for the entries of a level. `table`: `file` for files and their folders, `folder` for empty
    folders."""
    hops = _HOPS_OF.format(table=table, next=_hop(dialect, table, _AFTER[dialect]))
    found = [sa.column("number", sa.Integer()), sa.column("found", _FILES.name.type)]
    if table == "folder":
        return _typed(hops + _FOLDERS_OF_LEVEL, *found)
    columns = [_FILES[name] for name in queries.FILE_COLUMNS]
    named = ", ".join(f"file.{column.name}" for column in columns)
    statement = hops + _FILES_OF_LEVEL.format(columns=named, index=_INDEX[dialect], slash=_SLASH)
    return _typed(statement, *found, *columns, sa.column("damaged", sa.Boolean()))


@cache
def _skipped(table: str) -> sa.TextualSelect:
    """Return the statement that finds, for each range by number, the first name in the range."""
    statement = _SKIPPED.format(table=table, index=_INDEXES[table])
    return _typed(statement, sa.column("number", models.Integer64()), sa.column("name", _FILES.name.type))


@cache
def _has_more(dialect: str) -> sa.TextualSelect:
    """Return the statement that finds out if more than `most` files lie in a range."""
    return _typed(_HAS_MORE.format(index=_INDEX[dialect]), sa.column("name", _FILES.name.type))


_FIGURES = [sa.column(name, models.Integer64()) for name in ("files", "bytes")]


@cache
def _count_all(dialect: str) -> sa.TextualSelect:
    """Return the statement that counts the files of all folders in a range."""
    return _typed(_COUNT_ALL.format(index=_INDEX[dialect]), sa.column("folder", _FILES.name.type), *_FIGURES)


@cache
def _count_shares(dialect: str) -> sa.TextualSelect:
    """Return the statement that counts the files of each folder up to a limit."""
    number, at_least = sa.column("number", models.Integer64()), sa.column("at_least", sa.Boolean())
    return _typed(_COUNT_SHARES[dialect], number, *_FIGURES, at_least)


# Tables whose rows make a folder and are visible in a folder.
_SEEN = ("file", "folder")
# Names of open uploads and waiting concatenations of a user. A user has few of them.
COMING = {
    table.name: sa.select(table.c.id, table.c.name).where(
        table.c.user_id == sa.bindparam("user_id"), table.c.session == "", table.c.open_flag == 1
    )
    for table in (models.upload, models.concatenation)
}


async def prefixes_in_use(
    connection: AsyncConnection, user_id: str, prefixes: Sequence[str], *, unseen: bool = False
) -> list[str]:
    """Return the prefixes that have names below them. No other function answers this question.

    Finished files and rows of empty folders count: they make a folder, take names, and are shared. `unseen`: count also
    names that make no folder, because a share would reveal them later: held files, open uploads and waiting concatenations
    of the user, and the folders of links. The folder of a link stands for the uploads of its visitors.
    """
    in_use: set[str] = set()
    for table in (*_SEEN, "held_file") if unseen else _SEEN:
        if unsure := [prefix for prefix in prefixes if prefix not in in_use]:
            dialect = connection.dialect.name
            asked = {"user_id": user_id, "users": json.dumps([user_id]), "prefixes": _ranges(dialect, unsure)}
            found = await connection.execute(_first(dialect, table), asked)
            in_use.update(
                unsure[number] for number, name in found if name is not None and name.startswith(unsure[number])
            )
    if unseen and (unsure := [prefix for prefix in prefixes if prefix not in in_use]):
        coming = [
            name for query in COMING.values() for _, name in await connection.execute(query, {"user_id": user_id})
        ]
        in_use.update(prefix for prefix in unsure if any(name.startswith(prefix) for name in coming))
        for prefix in unsure:
            if prefix not in in_use and await links.below(connection, user_id, prefix):
                in_use.add(prefix)
    return [prefix for prefix in prefixes if prefix in in_use]


@dataclass(frozen=True, slots=True)
class Named:
    """Result of `named`: files with the given names, given names that are folders, and empty folders above. Folders end in a
    slash."""

    files: list[File]
    folders: list[str]
    empty: list[str]


async def named(connection: AsyncConnection, user_id: str, names: Sequence[str], above: Sequence[str]) -> Named:
    """Find the files and folders with the given names, and files or empty folders with the names in `above`."""
    prefixes, folders = [f"{name}/" for name in names], [f"{name}/" for name in above]
    asked = {"user_id": user_id, "users": json.dumps([user_id]), "names": json.dumps([*names, *above])}
    dialect = connection.dialect.name
    asked |= {"prefixes": _ranges(dialect, prefixes), "above": json.dumps(folders)}
    result = Named([], [], [])
    for row in (await connection.execute(_named(dialect), asked)).mappings():
        file = dict(row)
        kind, number, found = file.pop("kind"), file.pop("number"), file.pop("found")
        if kind == 0:
            result.files.append(File(**file))
        elif kind == 2:
            result.empty.append(found)
        elif found is not None and found.startswith(prefixes[number]):
            result.folders.append(prefixes[number])
    return result


async def page(
    connection: AsyncConnection, user_id: str, prefix: str, *, limit: int, after: Place | None
) -> tuple[list[Folder | File], bool]:
    """Return a page of one level by name, after the place `after`, with the files and bytes counted per folder. The second
    value is true if more entries follow."""
    found = await _entries(connection, user_id, prefix, limit + 1, after, "file")
    found.update(await _entries(connection, user_id, prefix, limit + 1, after, "folder"))
    names = sorted(found, key=str.encode)[: limit + 1]
    shown = [(name, found[name]) for name in names[:limit]]
    folders = await _counted(connection, user_id, prefix, [name for name, file in shown if file is None])
    return [file or folders[name] for name, file in shown], len(names) > limit


async def _entries(
    connection: AsyncConnection, user_id: str, prefix: str, limit: int, after: Place | None, table: str
) -> dict[str, File | None]:
    """Return the entries of a level by name: a file, or None for a folder. `table`: `file`, or `folder` for empty
    folders."""
    statement = _level(connection.dialect.name, table)
    # The prefix itself is no entry of its level.
    first = prefix.encode() + b"\0" if table == "folder" else prefix.encode()
    if after is not None:
        first = max(first, _first_after(prefix, after[0]))
    found: dict[str, File | None] = {}
    while True:
        hops = min(limit - len(found), _HOPS)
        asked = {"user_id": user_id, "users": json.dumps([user_id]), "skip": len(prefix.encode()) + 1, "first": first}
        asked |= {"beyond": _beyond(prefix), "hops": hops}
        rows = (await connection.execute(statement, asked)).mappings().all()
        is_last = not rows or rows[-1]["number"] < hops
        skipped = await _first_skipped(
            connection, user_id, prefix, table, [row["found"] for row in rows], is_last=is_last
        )
        for row in rows if skipped is None else rows[: skipped[0] + 1]:
            file = dict(row)
            _, at = file.pop("number"), file.pop("found")
            slash = at.find("/", len(prefix))
            if slash >= 0:
                found[at[: slash + 1]] = None
            elif file.get("id") is not None:
                found[at] = File(**file)
        if len(found) >= limit or (is_last and skipped is None):
            return found
        first = _first_after(prefix, at) if skipped is None else skipped[1].encode()


async def _first_skipped(
    connection: AsyncConnection, user_id: str, prefix: str, table: str, names: Sequence[str], *, is_last: bool
) -> tuple[int, str] | None:
    """Return the first name that the hops have skipped, and the number of the hop before. `is_last`: the level should have
    no name after these.

    MySQL and MariaDB read a range in the order of the primary key if they expect all rows of the table in the range, in
    spite of FORCE INDEX. Then a hop leads past names.
    """
    if connection.dialect.name == "sqlite" or not names:
        return None
    firsts = [_first_after(prefix, name) for name in names]
    ends = [name.encode() for name in names[1:]] + ([_beyond(prefix)] if is_last else [])
    gaps = json.dumps([(first.hex(), end.hex()) for first, end in zip(firsts, ends, strict=False)])
    asked = {"users": json.dumps([user_id]), "gaps": gaps}
    found = [(number, name) for number, name in await connection.execute(_skipped(table), asked) if name is not None]
    return min(found, default=None)


async def _counted(connection: AsyncConnection, user_id: str, prefix: str, names: Sequence[str]) -> dict[str, Folder]:
    """Count the files in folders of one level. `names` are in order."""
    if not names:
        return {}
    dialect, beyond = connection.dialect.name, [_first_after(prefix, name) for name in names]
    # Empty folders have no row in the result.
    folders = {name: Folder(name, 0, 0) for name in names}
    asked: dict[str, Any] = {"user_id": user_id, "first": names[0].encode(), "beyond": beyond[-1]}
    if (await connection.execute(_has_more(dialect), {**asked, "most": COUNTED_FILES})).first() is None:
        asked["skip"] = len(prefix.encode()) + 1
        for name, *figures in await connection.execute(_count_all(dialect), asked):
            folders[name] = Folder(name, *figures)
        return folders
    items = [(number, user_id, name, beyond[number].decode()) for number, name in enumerate(names)]
    asked = {"user_id": user_id, "users": json.dumps([user_id]), "folders": json.dumps(items)}
    asked["most"] = max(COUNTED_FILES // len(names), 1)
    for number, *figures in await connection.execute(_count_shares(dialect), asked):
        folders[names[number]] = Folder(names[number], *figures)
    return folders


def _first_after(prefix: str, name: str) -> bytes:
    """Return the first name of the level after a name, or after the folder of this level that holds the name."""
    slash = name.find("/", len(prefix)) if name.startswith(prefix) else -1
    return name.encode() + b"\0" if slash < 0 else name[:slash].encode() + b"0"  # the byte after the slash


def _beyond(prefix: str) -> bytes:
    return beyond(prefix.encode()) if prefix else b"\xff"
