"""What the uploads of one client share: its settings, its connections, what the server can, and who sends which content."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from uploader.client.api import Api


@dataclass(slots=True)
class Shared:
    """What all uploads of a client have in common."""

    connections: int
    hash_first_bytes: int
    chunk_size: int | None
    slots: asyncio.Semaphore = field(init=False)
    _locks: "WeakValueDictionary[str, asyncio.Lock]" = field(init=False, default_factory=WeakValueDictionary)
    _asking: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    _at_once_bytes: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.connections)

    def alone(self, md5: str) -> asyncio.Lock:
        """Held by whoever sends this content: the next one of the same content finds it there already."""
        return self._locks.setdefault(md5, asyncio.Lock())

    async def at_once_bytes(self, api: Api) -> int:
        """Up to which size a file goes in one request: a chunk. 0: the server is too old for that, and for batches,
        times and a choice among equal names, which came with it. Asked once."""
        async with self._asking:
            if self._at_once_bytes is None:
                self._at_once_bytes = await self._ask(api)
        return self._at_once_bytes

    async def _ask(self, api: Api) -> int:
        if not await api.takes_batches():
            return 0
        offered = (await api.config()).chunk_size
        return min(self.chunk_size or offered.default, offered.max)
