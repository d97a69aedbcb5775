"""What lies among the blobs and has no row. A crash may have left it; or it belongs to another database than this one, which
was lost, forgotten in the settings, or restored from before. Nothing here can tell which.
"""

from collections.abc import AsyncIterator
from datetime import datetime

from uploader.database import queries
from uploader.database.engine import Database
from uploader.storage.base import Found, Housekeeping

# An opening makes its directory before its row, and a merge its blob: what has neither may still get one.
_SETTLED_SECONDS = 3600.0


def is_settled(found: Found, now: datetime) -> bool:
    """Whether nothing is on its way there any more."""
    return found.changed_at < now.timestamp() - _SETTLED_SECONDS


async def stray_blobs(database: Database, storage: Housekeeping, now: datetime) -> AsyncIterator[list[Found]]:
    """The settled files of blobs that have no row, in batches. Raises Stopping, Unavailable."""
    async for batch in storage.list_blobs():
        settled = [found for found in batch if is_settled(found, now)]
        if settled:
            known = await _known(database, [found.name for found in settled])
            yield [found for found in settled if found.name not in known]


async def _known(database: Database, sha256s: list[str]) -> set[str]:
    return await database.read(lambda connection: queries.known_blobs(connection, sha256s))
