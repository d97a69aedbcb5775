"""What administrators ask: who uses how much."""

import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from uploader.database import queries
from uploader.database.engine import Database
from uploader.database.queries import REPORT_SORTS, UserReport
from uploader.errors import InvalidRequest

_BATCH = 500


class Reports:
    """Reports over all users."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def usage(
        self, *, sort: str, descending: bool, limit: int, after: str | None, containing: str | None
    ) -> tuple[list[UserReport], str | None]:
        """A page of users, and the cursor of the next one. Raises InvalidRequest for an unknown cursor."""
        position = None if after is None else _parse_cursor(after, sort)
        found = await self._database.read(
            lambda connection: queries.user_reports(
                connection,
                sort=sort,
                descending=descending,
                limit=limit + 1,
                after=position,
                containing=containing,
            )
        )
        page = found[:limit]
        return page, _cursor(page[-1], sort) if len(found) > limit else None

    async def all_usage(
        self, *, sort: str, descending: bool, containing: str | None
    ) -> AsyncIterator[list[UserReport]]:
        """Every user, in batches, for a stream that holds no connection while its reader is slow."""
        after: str | None = None
        while True:
            page, after = await self.usage(
                sort=sort, descending=descending, limit=_BATCH, after=after, containing=containing
            )
            yield page
            if after is None:
                return


def _value(report: UserReport, sort: str) -> Any:
    return getattr(report, sort) if sort in ("files", "open_uploads") else getattr(report.usage, sort)


def _cursor(report: UserReport, sort: str) -> str:
    position = msgspec.json.encode([sort, _value(report, sort), report.usage.user_id])
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _parse_cursor(text: str, sort: str) -> tuple[Any, str]:
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        column, value, user_id = msgspec.json.decode(decoded, type=tuple[str, int | str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise InvalidRequest.field("after", "is not a cursor of this list") from error
    fits = isinstance(value, str) if sort == "user_id" else isinstance(value, int) and abs(value) < 2**63
    if column != sort or column not in REPORT_SORTS or not fits:
        raise InvalidRequest.field("after", "is not a cursor of this list")
    return value, user_id
