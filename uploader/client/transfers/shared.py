"""What the uploads of one client share: its settings, its connections, and who sends which content."""

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary


@dataclass(slots=True)
class Shared:
    """What all uploads of a client have in common."""

    connections: int
    hash_first_bytes: int
    chunk_size: int | None
    slots: asyncio.Semaphore = field(init=False)
    _locks: "WeakValueDictionary[str, asyncio.Lock]" = field(init=False, default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.connections)

    def alone(self, md5: str) -> asyncio.Lock:
        """Held by whoever sends this content: the next one of the same content finds it there already."""
        return self._locks.setdefault(md5, asyncio.Lock())
