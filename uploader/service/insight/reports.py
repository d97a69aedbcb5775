"""What administrators ask: who uses how much, and which uploads stand still."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from uploader.clock import Clock
from uploader.database.engine import Connection, Database
from uploader.database.reports import usage
from uploader.database.reports.paging import Page
from uploader.domain.reports import OpenSums, UserReport
from uploader.domain.upload import File, Upload
from uploader.errors import NotFound
from uploader.service.files import Files
from uploader.service.insight.cursors import Kind, cursor, parse_cursor
from uploader.service.insight.figures import OpenTotal, OpenUploadReport, UserUsage, total_of, upload_of, user_of

# Large enough that an order by counts, which are counted anew for each, does not take a stream long.
_BATCH = 1000
_KINDS: dict[str, Kind] = {"user_id": "text", "updated_at": "moment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of a list: by a column, and then by ids from the first to the last."""

    sort: str
    descending: bool

    def page(self, limit: int, after: str | None) -> Page:
        """One row more than `limit`, which tells whether there is another page. Raises InvalidRequest."""
        position = None if after is None else parse_cursor(after, self.sort, _KINDS.get(self.sort, "number"))
        return Page(sort=self.sort, descending=self.descending, limit=limit + 1, after=position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Which open uploads: those that nothing was accounted for so long, and of one user, if given."""

    seconds: float = 0
    user_id: str | None = None


class Reports:
    """Lists over all users."""

    def __init__(self, database: Database, files: Files, clock: Clock) -> None:
        self._database = database
        self._files = files
        self._clock = clock

    # Users

    async def usage(
        self, order: Order, *, limit: int, after: str | None, containing: str | None
    ) -> tuple[list[UserUsage], str | None]:
        """A page of users, and the cursor of the next one. Raises InvalidRequest for an unknown cursor."""
        page = order.page(limit, after)
        found = await self._database.read(
            lambda connection: usage.user_reports(connection, page, containing), snapshot=True
        )
        users = [user_of(report) for report in found[:limit]]
        if len(found) <= limit:
            return users, None
        return users, cursor(order.sort, getattr(users[-1], order.sort), users[-1].user_id)

    async def all_usage(self, order: Order, *, containing: str | None) -> AsyncIterator[list[UserUsage]]:
        """Every user, in batches, for a stream that holds no connection while its reader is slow."""
        after: str | None = None
        while True:
            page, after = await self.usage(order, limit=_BATCH, after=after, containing=containing)
            yield page
            if after is None:
                return

    async def user(self, user_id: str) -> UserReport:
        """One user. Raises NotFound."""
        report = await self._database.read(lambda connection: usage.user_report(connection, user_id), snapshot=True)
        if report is None:
            raise NotFound("There is no such user.")
        return report

    async def files_of(
        self, user_id: str, *, limit: int, after: str | None, prefix: str | None
    ) -> tuple[list[File], str | None]:
        """A page of a user's files, newest first. Raises NotFound, InvalidRequest for an unknown cursor."""
        await self.user(user_id)
        return await self._files.list(user_id, limit=limit, after=after, prefix=prefix)

    # Open uploads

    async def uploads(
        self, order: Order, idle: Idle, *, limit: int, after: str | None
    ) -> tuple[list[OpenUploadReport], str | None, OpenTotal]:
        """A page of open uploads, the cursor of the next one, and the sums over all pages. Raises InvalidRequest."""
        page, since = order.page(limit, after), self._since(idle)

        async def look(connection: Connection) -> tuple[list[Upload], OpenSums]:
            found = await usage.open_uploads(connection, page, idle_since=since, user_id=idle.user_id)
            return found, await usage.open_sums(connection, idle_since=since, user_id=idle.user_id)

        found, sums = await self._database.read(look, snapshot=True)
        uploads, total = [upload_of(upload) for upload in found[:limit]], total_of(sums)
        if len(found) <= limit:
            return uploads, None, total
        return uploads, cursor(order.sort, getattr(uploads[-1], order.sort), uploads[-1].upload_id), total

    async def all_uploads(self, order: Order, idle: Idle) -> AsyncIterator[list[OpenUploadReport]]:
        """Every open upload, in batches."""
        page, since = order.page(_BATCH, None), self._since(idle)
        while True:
            found = await self._database.read(
                lambda connection, page=page: usage.open_uploads(  # type: ignore[misc]
                    connection, page, idle_since=since, user_id=idle.user_id
                )
            )
            uploads = [upload_of(upload) for upload in found[:_BATCH]]
            yield uploads
            if len(found) <= _BATCH:
                return
            page = replace(page, after=(getattr(uploads[-1], order.sort), uploads[-1].upload_id))

    def _since(self, idle: Idle) -> datetime | None:
        return self._clock.now() - timedelta(seconds=idle.seconds) if idle.seconds else None
