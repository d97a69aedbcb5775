"""Whether a source can be sent as what changed: it replaces a file that is there, the server tells what that is made of, and
goes on taking instructions. Whatever is in the way, everything is sent."""

import asyncio

from uploader.client.api import Api
from uploader.client.errors import ClientError, ServerProblem
from uploader.client.model import File
from uploader.client.transfers.deltas.known import Known
from uploader.client.transfers.source import Source

# It pays for larger files, as a question and a signature cost more than what they spare of others.
SMALLEST_BYTES = 8 << 20
_SMALLEST_BASE_BYTES = 1 << 20
_PAGE_FILES = 1000
# What is said of instructions, and not of the chunk or its upload.
INSTRUCTIONS_REFUSED = frozenset({"invalid-delta", "base-unusable", "file-not-found", "chunk-length-mismatch"})


class Changes:
    """Of one source. The server is asked when it is to be sent, and once."""

    def __init__(self, api: Api, source: Source, name: str, *, wanted: bool) -> None:
        """`wanted`: whether it replaces what has the name, and nobody asked for all of it to be sent."""
        self._api = api
        self._source = source
        self._name = name
        self._is_possible = wanted and source.size >= SMALLEST_BYTES
        self._base: File | None = None
        self._asking = asyncio.Lock()
        # What the server has of it, if it is known.
        self.known: Known | None = None

    async def look(self) -> None:
        """Find out what is known. Raises FileChanged, Unreadable."""
        async with self._asking:
            if not self._is_possible or self.known is not None:
                return
            base = await self._find_base()
            self.known = None if base is None else await self._ask(base)
            self._is_possible = self.known is not None

    async def can_spare(self) -> bool:
        """Whether there is a file that may have most of it."""
        async with self._asking:
            return self._is_possible and await self._find_base() is not None

    def give_up(self) -> None:
        """Send everything from here on."""
        self._is_possible, self.known = False, None

    async def _find_base(self) -> File | None:
        """The newest of the name."""
        if self._base is None:
            try:
                page = await self._api.page(None, self._name, _PAGE_FILES, one_level=True)
            except ServerProblem:
                return None
            of_name = [file for file in page.files if file.name == self._name and file.size >= _SMALLEST_BASE_BYTES]
            self._base = max(of_name, key=lambda file: file.created_at, default=None)
        return self._base

    async def _ask(self, base: File) -> Known | None:
        try:
            signature = await self._api.signature(base.id)
            return await asyncio.to_thread(Known, self._source, base, signature)
        except (ClientError, ValueError):
            return None
