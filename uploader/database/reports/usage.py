"""The questions of reports: who uses how much, which uploads stand still, what all of it adds up to.

Each figure is exact at the moment of the transaction that it is read in.
"""

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, String, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models, queries
from uploader.database.reports.paging import Page
from uploader.database.reports.ranking import COUNTED, counts_of, users_by_count
from uploader.domain.quota import Usage
from uploader.domain.reports import OpenSums, Totals, UserReport
from uploader.domain.upload import Upload

# The largest figure that a column holds. A user may have a total space of that size, so sums of it may be larger.
_LARGEST = 2**63 - 1

_USAGE_COLUMNS = [models.user_info.c[field.name] for field in fields(Usage)]

_UPLOAD_KEYS: dict[str, ColumnElement[Any]] = {
    "updated_at": models.upload.c.updated_at,
    "quota_bytes": models.upload.c.size,
    "disk_bytes": models.upload.c.flushed_bytes,
}


# Users


async def user_reports(connection: AsyncConnection, page: Page, containing: str | None) -> list[UserReport]:
    """A page of the users whose ids contain `containing`."""
    users = models.user_info.c
    query = select(*_USAGE_COLUMNS)
    if page.sort in COUNTED:
        user_ids = await users_by_count(connection, page, containing)
        return await _counted(connection, query.where(users.user_id.in_(user_ids)), user_ids)
    if containing:
        query = query.where(func.instr(users.user_id, containing.encode()) > 0)
    return await _counted(connection, page.of(query, users[page.sort], users.user_id))


async def user_report(connection: AsyncConnection, user_id: str) -> UserReport | None:
    """One user."""
    found = await _counted(connection, select(*_USAGE_COLUMNS).where(models.user_info.c.user_id == user_id))
    return found[0] if found else None


async def _counted(
    connection: AsyncConnection, query: "Select[Any]", order: list[str] | None = None
) -> list[UserReport]:
    """The users of `query`, each with its counts, in the order of these ids or of the query itself."""
    usages = {row["user_id"]: Usage(**row) for row in (await connection.execute(query)).mappings()}
    user_ids = list(usages) if order is None else order
    files = await counts_of(connection, user_ids, "files")
    open_uploads = await counts_of(connection, user_ids, "open_uploads")
    return [
        UserReport(usage=usages[user_id], files=files.get(user_id, 0), open_uploads=open_uploads.get(user_id, 0))
        for user_id in user_ids
        if user_id in usages  # not so where an index of SQLite names another one than its row
    ]


# Open uploads


def _open_conditions(idle_since: datetime | None, user_id: str | None) -> list[ColumnElement[bool]]:
    table = models.upload.c
    conditions: list[ColumnElement[bool]] = [table.open_flag == 1]
    if idle_since is not None:
        conditions.append(table.updated_at <= idle_since)
    if user_id is not None:
        conditions.append(table.user_id == user_id)
    return conditions


async def open_uploads(
    connection: AsyncConnection, page: Page, *, idle_since: datetime | None, user_id: str | None
) -> list[Upload]:
    """A page of open uploads: those that nothing was accounted for since `idle_since`, and of one user, if given."""
    query = select(*queries.UPLOAD_COLUMNS).where(*_open_conditions(idle_since, user_id))
    rows = (await connection.execute(page.of(query, _UPLOAD_KEYS[page.sort], models.upload.c.id))).mappings()
    return [queries.upload_of(row) for row in rows]


async def open_sums(connection: AsyncConnection, *, idle_since: datetime | None, user_id: str | None) -> OpenSums:
    """What all of these together hold."""
    row = (await connection.execute(select(*_open_figures()).where(*_open_conditions(idle_since, user_id)))).one()
    return OpenSums(open_uploads=row[0], quota_bytes=int(row[1]), disk_bytes=int(row[2]))


async def open_sums_by_month(connection: AsyncConnection) -> list[OpenSums]:
    """What the open uploads of each month (UTC) of opening hold, the earliest month first."""
    # As text, a moment begins with `YYYY-MM` on every database.
    month = func.substr(models.upload.c.created_at, 1, 7, type_=String)
    query = select(month.label("month"), *_open_figures()).where(models.upload.c.open_flag == 1)
    return [
        OpenSums(month=row[0], open_uploads=row[1], quota_bytes=int(row[2]), disk_bytes=int(row[3]))
        for row in await connection.execute(query.group_by("month").order_by("month"))
    ]


def _open_figures() -> list[ColumnElement[Any]]:
    table = models.upload.c
    return [func.count(), _sum(table.size), _sum(table.flushed_bytes)]


# Totals


async def totals(connection: AsyncConnection, months: list[OpenSums]) -> Totals:
    """What everything adds up to, with the open uploads of all `months`.

    Files are counted by the refs of their contents, so that one walk over them is enough.
    """
    users, blobs = models.user_info.c, models.blob.c
    # In two halves, because SQLite refuses a sum beyond 64 bits.
    halves = [_sum(users.total_space.bitwise_rshift(32)), _sum(users.total_space.bitwise_and(2**32 - 1))]
    accounts = select(
        func.count(), *halves, _sum(users.use_space_finished), _sum(users.use_space_unfinished), _sum(users.reserved)
    )
    of_users = [int(value) for value in (await connection.execute(accounts)).one()]
    contents = select(func.count(), _sum(blobs.refs), _sum(blobs.size * blobs.refs), _sum(blobs.size))
    of_blobs = [int(value) for value in (await connection.execute(contents.where(blobs.refs > 0))).one()]
    return Totals(
        users=of_users[0],
        files=of_blobs[1],
        blobs=of_blobs[0],
        open_uploads=sum(month.open_uploads for month in months),
        total_space=min(_LARGEST, (of_users[1] << 32) + of_users[2]),
        use_space_finished=of_users[3],
        use_space_unfinished=of_users[4],
        reserved=of_users[5],
        logical_bytes=of_blobs[2],
        physical_bytes=of_blobs[3],
    )


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)
