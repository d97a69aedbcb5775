"""Users in the order of how many files, or open uploads, they have.

A join of all users with all counts is slow. So a page is put together from two questions, each of which walks along one
index: who has some, by how many, and who has none, by their ids.
"""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database import models
from uploader.database.reports.paging import Page


@dataclass(frozen=True, slots=True)
class Counted:
    """What is counted: the rows with `condition`, by the user they belong to."""

    user_id: ColumnElement[str]
    condition: ColumnElement[bool] | None = None

    def conditions(self, *more: ColumnElement[bool]) -> list[ColumnElement[bool]]:
        return [*more] if self.condition is None else [self.condition, *more]

    def counts(self) -> "Select[Any]":
        """Users who have some, and how many."""
        columns: list[ColumnElement[Any]] = [self.user_id, func.count()]
        return select(*columns).where(*self.conditions()).group_by(self.user_id)


COUNTED = {
    "files": Counted(models.file.c.user_id),
    "open_uploads": Counted(models.upload.c.user_id, models.upload.c.open_flag == 1),
}


async def counts_of(connection: AsyncConnection, user_ids: list[str], name: str) -> dict[str, int]:
    """How many each of these users has; who has none is left out."""
    counted = COUNTED[name]
    rows = await connection.execute(counted.counts().where(counted.user_id.in_(user_ids)))
    return dict(rows.all())


async def users_by_count(connection: AsyncConnection, page: Page, containing: str | None) -> list[str]:
    """The ids of a page of the users whose ids contain `containing`, sorted by a count."""
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
        there = await _who_are_there(connection, [user_id for user_id, _ in rows])
        found += [user_id for user_id, _ in rows if user_id in there]
        if len(rows) < page.limit:
            break
        page = replace(page, after=(rows[-1][1], rows[-1][0]))
    return found[: page.limit]


async def _who_are_there(connection: AsyncConnection, user_ids: list[str]) -> set[str]:
    """Rows of users who are not there are a drift, and must not end a list early."""
    users = models.user_info.c
    return set((await connection.execute(select(users.user_id).where(users.user_id.in_(user_ids)))).scalars())


async def _who_have_none(
    connection: AsyncConnection, name: str, after: str, limit: int, containing: str | None
) -> list[str]:
    if limit <= 0:
        return []
    counted, users = COUNTED[name], models.user_info.c
    some = select(counted.user_id).where(*counted.conditions(counted.user_id == users.user_id))
    query = select(users.user_id).where(users.user_id > after, ~exists(some)).order_by(users.user_id).limit(limit)
    if containing:
        query = query.where(_contains(users.user_id, containing))
    return list((await connection.execute(query)).scalars())


def _contains(user_id: ColumnElement[str], text: str) -> ColumnElement[bool]:
    return func.instr(user_id, text.encode()) > 0
