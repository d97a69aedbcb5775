"""The queries of reports: the space of each user, idle uploads, and totals.

Each figure is exact at the moment of its transaction.
"""

from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, Select, String, and_, exists, func, insert, or_, select

from uploader.database import models, queries
from uploader.database.connection import AsyncConnection
from uploader.domain.reports import Day, OpenTotal, TempMonth, Totals, UserReport
from uploader.domain.upload import Upload, Usage

_DAYS, _USERS = models.usage_daily.c, models.user_info.c
_UPLOADS, _FILES, _BLOBS = models.upload.c, models.file.c, models.blob.c


async def has_day(connection: AsyncConnection, day: date) -> bool:
    query = select(_DAYS.day).where(_DAYS.day == day)
    return (await connection.execute(query)).first() is not None


async def add_day(connection: AsyncConnection, day: Day) -> None:
    """Raises Duplicate (from the engine) if somebody else was faster."""
    values = {"day": day.day, "taken_at": day.taken_at, "free_disk_bytes": day.free_disk_bytes}
    await connection.execute(insert(models.usage_daily).values(**values, **asdict(day.totals)))


async def days_since(connection: AsyncConnection, first: date) -> list[Day]:
    """Return the snapshots in order. Days without a snapshot are missing."""
    query = select(models.usage_daily).where(_DAYS.day >= first).order_by(_DAYS.day)
    return await queries.all_of(connection, _day_of, query)


async def newest_day_until(connection: AsyncConnection, last: date) -> Day | None:
    query = select(models.usage_daily).where(_DAYS.day <= last).order_by(_DAYS.day.desc()).limit(1)
    return await queries.first_of(connection, _day_of, query)


def _day_of(day: date, taken_at: datetime, free_disk_bytes: int, **figures: int) -> Day:
    return Day(day=day, taken_at=taken_at, free_disk_bytes=free_disk_bytes, totals=Totals(**figures))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """At most `limit` rows after the pair (value of `sort`, id) `after`. A page begins after a row, not after a number of
    rows, so changes before that row move nothing."""

    sort: str
    descending: bool
    limit: int
    after: tuple[Any, str] | None

    def of(self, query: "Select[Any]", key: ColumnElement[Any], identifier: ColumnElement[str]) -> "Select[Any]":
        """Sort by `key` and then by `identifier`."""
        beyond = self.beyond(key, identifier)
        return self.ordered(query if beyond is None else query.where(beyond), key, identifier)

    def beyond(self, key: ColumnElement[Any], identifier: ColumnElement[str]) -> ColumnElement[bool] | None:
        if self.after is None:
            return None
        value, last = self.after
        return or_(key < value if self.descending else key > value, and_(key == value, identifier > last))

    def ordered(self, query: "Select[Any]", key: ColumnElement[Any], identifier: ColumnElement[str]) -> "Select[Any]":
        return query.order_by(key.desc() if self.descending else key.asc(), identifier.asc()).limit(self.limit)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts the rows with `conditions` by their user."""

    user_id: ColumnElement[str]
    conditions: tuple[ColumnElement[bool], ...] = ()

    def counts(self) -> "Select[Any]":
        columns: list[ColumnElement[Any]] = [self.user_id, func.count()]
        return select(*columns).where(*self.conditions).group_by(self.user_id)


COUNTED = {
    "files": Counted(_FILES.user_id),
    "open_uploads": Counted(_UPLOADS.user_id, (_UPLOADS.open_flag == 1,)),
}


async def counts_of(connection: AsyncConnection, user_ids: list[str], name: str) -> dict[str, int]:
    """Return counts by user. Users without rows are missing."""
    counted = COUNTED[name]
    rows = await connection.execute(counted.counts().where(counted.user_id.in_(user_ids)))
    return dict(rows.all())


async def users_by_count(connection: AsyncConnection, page: Page, containing: str | None) -> list[str]:
    """Return a page of users by their counts, from two queries that use one index each: users with rows, by count, and users
    without rows, by id. A join of all users with all counts is slow."""
    count, last = page.after or (None, "")
    found: list[str] = []
    if page.descending:
        if count != 0:
            found = await _who_have_some(connection, page, containing)
        missing = page.limit - len(found)
        return found + await _who_have_none(connection, page.sort, last if count == 0 else "", missing, containing)
    if not count:
        found = await _who_have_none(connection, page.sort, last, page.limit, containing)
    rest = replace(page, limit=page.limit - len(found), after=page.after if count else None)
    return found + await _who_have_some(connection, rest, containing)


async def _who_have_some(connection: AsyncConnection, page: Page, containing: str | None) -> list[str]:
    counted, found = COUNTED[page.sort], list[str]()
    while len(found) < page.limit:
        query = counted.counts()
        if containing:
            query = query.where(_contains(counted.user_id, containing))
        beyond = page.beyond(func.count(), counted.user_id)
        query = page.ordered(query if beyond is None else query.having(beyond), func.count(), counted.user_id)
        rows = (await connection.execute(query)).all()
        # Rows of missing users are a drift, and must not end the list early.
        are_there = select(_USERS.user_id).where(_USERS.user_id.in_([user_id for user_id, _ in rows]))
        there = set((await connection.execute(are_there)).scalars())
        found += [user_id for user_id, _ in rows if user_id in there]
        if len(rows) < page.limit:
            break
        page = replace(page, after=(rows[-1][1], rows[-1][0]))
    return found[: page.limit]


async def _who_have_none(
    connection: AsyncConnection, name: str, after: str, limit: int, containing: str | None
) -> list[str]:
    if limit <= 0:
        return []
    counted, users = COUNTED[name], _USERS
    some = select(counted.user_id).where(*counted.conditions, counted.user_id == users.user_id)
    query = select(users.user_id).where(users.user_id > after, ~exists(some)).order_by(users.user_id).limit(limit)
    if containing:
        query = query.where(_contains(users.user_id, containing))
    return list((await connection.execute(query)).scalars())


def _contains(user_id: ColumnElement[str], text: str) -> ColumnElement[bool]:
    return func.instr(user_id, text.encode()) > 0


# The largest figure of a column. A user may have a total space of that size, so sums may be larger.
_LARGEST = 2**63 - 1

_UPLOAD_KEYS: dict[str, ColumnElement[Any]] = {
    "updated_at": _UPLOADS.updated_at,
    "quota_bytes": _UPLOADS.size,
    "disk_bytes": _UPLOADS.flushed_bytes,
}


async def user_reports(connection: AsyncConnection, page: Page, containing: str | None) -> list[UserReport]:
    query = queries.USAGE
    if page.sort in COUNTED:
        user_ids = await users_by_count(connection, page, containing)
        return await _counted(connection, query.where(_USERS.user_id.in_(user_ids)), user_ids)
    if containing:
        query = query.where(_contains(_USERS.user_id, containing))
    return await _counted(connection, page.of(query, _USERS[page.sort], _USERS.user_id))


async def user_report(connection: AsyncConnection, user_id: str) -> UserReport | None:
    found = await _counted(connection, queries.USAGE.where(_USERS.user_id == user_id))
    return found[0] if found else None


async def _counted(
    connection: AsyncConnection, query: "Select[Any]", order: list[str] | None = None
) -> list[UserReport]:
    """Return reports in the order of these ids, or of the query."""
    usages = {usage.user_id: usage for usage in await queries.all_of(connection, Usage, query)}
    user_ids = list(usages) if order is None else order
    files = await counts_of(connection, user_ids, "files")
    open_uploads = await counts_of(connection, user_ids, "open_uploads")
    return [
        UserReport(usage=usages[user_id], files=files.get(user_id, 0), open_uploads=open_uploads.get(user_id, 0))
        for user_id in user_ids
        if user_id in usages  # a damaged index of SQLite may name another user than the row
    ]


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)


_OPEN_FIGURES = (func.count(), _sum(_UPLOADS.size), _sum(_UPLOADS.flushed_bytes))


def _open_conditions(idle_since: datetime | None, user_id: str | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [_UPLOADS.open_flag == 1]
    if idle_since is not None:
        conditions.append(_UPLOADS.updated_at <= idle_since)
    if user_id is not None:
        conditions.append(_UPLOADS.user_id == user_id)
    return conditions


async def open_uploads(
    connection: AsyncConnection, page: Page, *, idle_since: datetime | None, user_id: str | None
) -> list[Upload]:
    """Return open uploads, only idle ones if `idle_since` is given, and only of one user if `user_id` is given."""
    query = select(*queries.UPLOAD_COLUMNS).where(*_open_conditions(idle_since, user_id))
    return await queries.all_of(connection, queries.upload_of, page.of(query, _UPLOAD_KEYS[page.sort], _UPLOADS.id))


async def open_sums(connection: AsyncConnection, *, idle_since: datetime | None, user_id: str | None) -> OpenTotal:
    row = (await connection.execute(select(*_OPEN_FIGURES).where(*_open_conditions(idle_since, user_id)))).one()
    return OpenTotal(row[0], int(row[1]), int(row[2]))


async def open_sums_by_month(connection: AsyncConnection) -> list[TempMonth]:
    """Sum up open uploads by the month (UTC) of their opening, the earliest first."""
    # As text, a moment begins with `YYYY-MM` on every database.
    month = func.substr(_UPLOADS.created_at, 1, 7, type_=String)
    query = select(month.label("month"), *_OPEN_FIGURES).where(_UPLOADS.open_flag == 1)
    rows = await connection.execute(query.group_by("month").order_by("month"))
    return [TempMonth(count, int(quota), int(disk), month) for month, count, quota, disk in rows]


async def totals(connection: AsyncConnection, months: list[TempMonth]) -> Totals:
    """Return the totals. The refs of contents count the files, so one walk over the contents is enough."""
    # In two halves, because SQLite refuses a sum beyond 64 bits.
    halves = [_sum(_USERS.total_space.bitwise_rshift(32)), _sum(_USERS.total_space.bitwise_and(2**32 - 1))]
    accounts = select(
        func.count(), *halves, _sum(_USERS.use_space_finished), _sum(_USERS.use_space_unfinished), _sum(_USERS.reserved)
    )
    users, high, low, finished, unfinished, reserved = map(int, (await connection.execute(accounts)).one())
    contents = select(func.count(), _sum(_BLOBS.refs), _sum(_BLOBS.size * _BLOBS.refs), _sum(_BLOBS.size))
    of_blobs = (await connection.execute(contents.where(_BLOBS.refs > 0))).one()
    blobs, files, logical_bytes, physical_bytes = map(int, of_blobs)
    return Totals(
        users=users,
        files=files,
        blobs=blobs,
        open_uploads=sum(month.open_uploads for month in months),
        total_space=min(_LARGEST, (high << 32) + low),
        use_space_finished=finished,
        use_space_unfinished=unfinished,
        reserved=reserved,
        logical_bytes=logical_bytes,
        physical_bytes=physical_bytes,
    )
