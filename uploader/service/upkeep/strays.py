"""What lies among the blobs and has no row. A crash may have left it; or it belongs to another database than this one, which
was lost, forgotten in the settings, or restored from before. Nothing here can tell which.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from uploader.database import contents, meta
from uploader.database.engine import Database
from uploader.storage.base import Housekeeping
from uploader.storage.contents import Found

# An opening makes its directory before its row, and a merge its blob: what has neither may still get one.
_SETTLED_SECONDS = 3600.0
_FACT = "kept strays"


def is_settled(found: Found, now: datetime) -> bool:
    """Whether nothing is on its way there any more."""
    return found.changed_at < now.timestamp() - _SETTLED_SECONDS


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of all files of blobs: how many; of those without a row, how many somebody touched lately, and the others."""

    total: int
    unsettled: int
    strays: list[Found]


async def stray_blobs(database: Database, storage: Housekeeping, now: datetime) -> AsyncIterator[Batch]:
    """The files of blobs, in batches, with those that have no row. Raises Stopping, Unavailable."""
    async for found in storage.list_blobs():
        known = await _known(database, [each.name for each in found])
        unknown = [each for each in found if each.name not in known]
        strays = [each for each in unknown if is_settled(each, now)]
        yield Batch(len(found), len(unknown) - len(strays), strays)


async def _known(database: Database, sha256s: list[str]) -> set[str]:
    return await database.read(lambda connection: contents.known_blobs(connection, sha256s))


async def remember_kept_strays(database: Database, count: int) -> None:
    """Say to all processes how many blobs without a row the last cleanup left where they are. Raises Unavailable."""
    if count != await kept_strays(database):
        await database.transact(lambda connection: meta.replace_fact(connection, _FACT, str(count)))


async def kept_strays(database: Database) -> int:
    """As `remember_kept_strays` was told. Raises Unavailable."""
    return int(await database.read(lambda connection: meta.fact(connection, _FACT)) or 0)
