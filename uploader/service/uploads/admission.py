"""Whether the disk has room for one more file: the floor, and what open uploads were promised.

To add up what was promised is a look at every user. So what is far from the floor is admitted by figures that are a
moment old; refused is only by those of now. It is approximate in any case, which the floor absorbs. What the trash holds
counts as free: it gives way when it is needed.
"""

from dataclasses import replace

from uploader.clock import Clock
from uploader.database import queries
from uploader.database.engine import Database
from uploader.domain.room import Room, floor_of
from uploader.errors import StorageFull, StorageTooSmall
from uploader.service.contents.trash import TrashKeeping
from uploader.settings import Settings
from uploader.storage.base import Bounded, Space

_MOMENT_SECONDS = 1.0
# What a store without a bound is taken to have: more than anybody will ever send, and still a number of every database.
UNBOUNDED = Space(total=1 << 62, free=1 << 62, trash=0)


class Admission:
    """The room of the disk, as this process knows it."""

    def __init__(
        self, settings: Settings, database: Database, storage: Bounded, trash: TrashKeeping, clock: Clock
    ) -> None:
        self._floor_bytes = settings.free_space_floor_bytes
        self._database = database
        self._storage = storage
        self._trash = trash
        self._clock = clock
        self._known: Room | None = None
        self._known_at = 0.0

    async def room(self, promised_bytes: int) -> Room:
        """The room there is now, if so much was promised."""
        space = await self._storage.space() or UNBOUNDED
        return Room(
            total_bytes=space.total,
            free_bytes=space.free,
            trash_bytes=space.trash,
            floor_bytes=floor_of(space.total, self._floor_bytes),
            promised_bytes=promised_bytes,
        )

    async def check(self, size: int) -> None:
        """Raises StorageFull if there is no room for a file of this size."""
        if self._known is not None and self._is_recent() and self._known.lacking_bytes(size) == 0:
            return
        looked_at = self._clock.monotonic()
        self._known = await self.room(await self._database.read(queries.promised_bytes))
        self._known_at = looked_at
        if not self._known.fits(size):
            raise _refusal(self._known, size)
        await self._trash_gives_way(self._known.lacking_bytes(size))

    async def _trash_gives_way(self, lacking_bytes: int) -> None:
        if not lacking_bytes:
            return
        self._known = None
        purged = await self._trash.make_room(lacking_bytes)
        if purged.disk_bytes < lacking_bytes:
            raise StorageFull("The disk has no room for a file of this size at the moment; try again soon.")

    async def keep_floor(self) -> None:
        """Have the trash give way where something else has filled the disk. Raises Unavailable."""
        room = await self.room(0)
        lacking_bytes = min(room.lacking_bytes(0), room.trash_bytes)
        if lacking_bytes:
            await self._trash.make_room(lacking_bytes)

    def _is_recent(self) -> bool:
        return self._clock.monotonic() - self._known_at < _MOMENT_SECONDS

    def promise(self, size: int) -> None:
        """A file of this size was opened."""
        if self._known is not None:
            self._known = replace(self._known, promised_bytes=self._known.promised_bytes + size)


def _refusal(room: Room, size: int) -> StorageFull:
    if size > room.limit_bytes:
        return StorageTooSmall(requested=size, limit=room.limit_bytes)
    return StorageFull(
        "The disk has no room for a file of this size; try again later.", requested=size, available=room.available_bytes
    )
