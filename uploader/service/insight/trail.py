"""Who did what to whom: the acts of the trail, the newest first."""

from collections.abc import AsyncIterator
from dataclasses import replace

from uploader.database.engine import Database
from uploader.database.reports.paging import Page
from uploader.database.trail import acts
from uploader.database.trail.acts import Wanted
from uploader.domain.trail.acts import Act
from uploader.service.insight.cursors import cursor, parse_cursor

__all__ = ["Act", "TrailReports", "Wanted"]

_SORT = "created_at"
_BATCH = 1000


class TrailReports:
    """Reads the trail."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, wanted: Wanted, *, limit: int, after: str | None) -> tuple[list[Act], str | None]:
        """A page of acts, and the cursor of the next one. Raises InvalidRequest for an unknown cursor, Unavailable."""
        position = None if after is None else parse_cursor(after, _SORT, "moment")
        found = await self._read(wanted, _page(limit + 1, position))
        if len(found) <= limit:
            return found, None
        last = found[limit - 1]
        return found[:limit], cursor(_SORT, last.created_at, last.id)

    async def all(self, wanted: Wanted) -> AsyncIterator[list[Act]]:
        """Every act, in batches, for a stream that holds no connection while its reader is slow. Raises Unavailable."""
        page = _page(_BATCH, None)
        while found := await self._read(wanted, page):
            yield found
            page = replace(page, after=(found[-1].created_at, found[-1].id))

    async def _read(self, wanted: Wanted, page: Page) -> list[Act]:
        return await self._database.read(lambda connection: acts.acts(connection, wanted, page))


def _page(limit: int, after: tuple[object, str] | None) -> Page:
    return Page(sort=_SORT, descending=True, limit=limit, after=after)
