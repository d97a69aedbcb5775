"""The right to append, by a row: whoever asked last has it.

What the one before still writes is refused or stands, as the rows of its chunks and of the tail decide; it looks now and
then whether it still has the right, and ends if not.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from uploader.domain.upload import Upload
from uploader.errors import Unavailable
from uploader.storage.base import Gone
from uploader.storage.s3.ledger import Ledger
from uploader.storage.s3.uploads.maps import PartMap
from uploader.tasks import ended

_LOOK_SECONDS = 0.5

ReadMap = Callable[[Upload], Awaitable[PartMap]]


class S3Appender:
    """The right of one request."""

    def __init__(self, upload: Upload, ledger: Ledger, token: str, read_map: ReadMap) -> None:
        self._upload = upload
        self._ledger = ledger
        self._token = token
        self._read_map = read_map
        self.is_claimed = False

    async def read_map(self) -> PartMap:
        return await self._read_map(self._upload)

    async def watch(self) -> None:
        """Until somebody else has the right."""
        while not self.is_claimed:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                self.is_claimed = await self._ledger.appender(self._upload.id) != self._token
            except Unavailable:
                continue  # whoever stores the next bytes says so


@asynccontextmanager
async def appending(upload: Upload, ledger: Ledger, read_map: ReadMap) -> AsyncIterator[S3Appender]:
    """Have the right to append. Raises Gone."""
    token = secrets.token_hex(16)
    if not await ledger.claim(upload.id, token):
        raise Gone(upload.id)
    appender = S3Appender(upload, ledger, token, read_map)
    watching = asyncio.create_task(appender.watch(), name=f"appender {upload.id}")
    try:
        yield appender
    finally:
        await ended(watching)
