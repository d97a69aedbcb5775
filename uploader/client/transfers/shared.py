"""What the uploads of one client share: its settings, its connections, what the server can and has room for, and who sends
which content."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from msgspec.structs import asdict

from uploader.client.api import Api
from uploader.client.model import IfExists, Usage
from uploader.client.transfers import plan
from uploader.client.transport import error_of

_PAGE_FILES = 1000


@dataclass(slots=True)
class Shared:
    """What all uploads of a client have in common."""

    connections: int
    hash_first_bytes: int
    chunk_size: int | None
    most_bytes_per_second: float | None = None
    # Whether of a file that replaces another one only what changed is sent.
    delta: bool = True
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


async def check_room(api: Api, name: str, size: int, if_exists: IfExists) -> None:
    """Raises QuotaExceeded for a file that is sure to be refused, so that it is not read in vain."""
    if size <= plan.ASK_FOR_ROOM_BYTES:
        return
    usage = await api.usage()
    if _fits(usage, size) or await _may_fit(api, name, size, if_exists, usage):
        return
    problem = {"code": "quota-exceeded", "detail": "The file does not fit into your total space."}
    raise error_of(problem | asdict(usage) | {"requested": size}, 413)


def _fits(usage: Usage, more_bytes: int) -> bool:
    return more_bytes <= usage.total_space - usage.use_space_finished - usage.reserved


async def _may_fit(api: Api, name: str, size: int, if_exists: IfExists, usage: Usage) -> bool:
    """Whether what needs more space than there is may be taken all the same, as its digests would tell: it may be there
    under this name, be a content of the server that takes the place of others of the name, or be what an open upload has
    reserved."""
    page = await api.page(None, name, _PAGE_FILES, one_level=True)
    of_name = [file for file in page.files if file.name == name]
    freed = sum(file.size for file in of_name) if if_exists == "replace" else 0
    if (
        page.next is not None
        or any(file.size == size for file in of_name)
        or size <= freed
        or _fits(usage, size - freed)
    ):
        return True
    return any(upload.size == size for upload in await api.uploads())
