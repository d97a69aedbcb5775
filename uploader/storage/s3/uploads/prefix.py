"""The hashes of one open upload in one process, and the chunks that wait for them. Nothing of it waits or writes."""

import asyncio
import math
import time
from contextlib import suppress

from uploader.domain.upload import Upload
from uploader.storage.base import Body
from uploader.storage.hashes import PrefixHashes, states_are_portable

# Whoever waits for a gap that nobody fills gives way after that.
_STALLED_SECONDS = 5.0
# A sender waits while so much of its upload waits to be hashed; for so long at most.
_FAR_BYTES, _PATIENCE_SECONDS = 64 << 20, 5.0
# What comes farther ahead would have to wait for more than a process keeps, and take the memory of what comes next.
_NEAR_BYTES = 128 << 20
# Whoever has come further lately goes on doing so.
_SHARED_SECONDS = 2.0


class OfferedPart:
    """A chunk on its way to S3. It may be hashed from its body before its row is there."""

    def __init__(self, number: int, body: Body) -> None:
        self.number = number
        self.body = body
        # None: the digests do not wait for this chunk.
        self.prefix: Prefix | None = None
        # Whether its row is committed.
        self.is_written = False
        # So much of the body is kept for the digests: all or nothing.
        self.held_bytes = 0
        # Whether a thread reads its body now.
        self.is_read = False
        # How far the digests are saved once its row is committed; 0: no further than before.
        self.saved_bytes = 0


class Prefix:
    """The hashes of the chunks that count, and what is offered after them."""

    def __init__(self, upload: Upload, fence: int, hashes: PrefixHashes) -> None:
        self.upload = upload
        self.fence = fence
        self.hashes = hashes
        # With the chunk that follows, which was hashed before its row was committed.
        self.ahead: PrefixHashes | None = None
        self.offers: dict[int, OfferedPart] = {}
        # How far others can go on from what is saved.
        self.saved_bytes = 0
        self.is_forgotten = False
        # Whether somebody looks how far others have come, or tells others.
        self.is_watched = False
        self.is_saving = False
        self._shared_at = -math.inf
        self.advanced_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()

    def takes(self, number: int) -> bool:
        """Whether the digests wait for this chunk."""
        following = self._next_chunk
        if following is None or number < following or number in self.offers:
            return False
        return self.is_shared or (number - following) * self.upload.chunk_size <= _NEAR_BYTES

    @property
    def _next_chunk(self) -> int | None:
        """None at the end."""
        number, rest = divmod(self.hashes.position, self.upload.chunk_size)
        return None if rest else number

    @property
    def following(self) -> OfferedPart | None:
        """The chunk that is next, if it is offered."""
        number = self._next_chunk
        return None if number is None else self.offers.get(number)

    @property
    def waiting(self) -> list[OfferedPart]:
        """The chunks that count, and are still to be hashed."""
        return [offer for offer in self.offers.values() if offer.is_written]

    @property
    def expects_rows(self) -> bool:
        """Whether chunks are on their way."""
        return len(self.waiting) < len(self.offers)

    @property
    def lacks_saving(self) -> bool:
        """Whether others could go on from further on."""
        return self.hashes.position > self.saved_bytes and states_are_portable()

    @property
    def is_shared(self) -> bool:
        """Whether other nodes take chunks of the upload, too."""
        return time.monotonic() - self._shared_at < _SHARED_SECONDS

    @property
    def waits_for_others(self) -> bool:
        """Whether it is somebody else who has the chunk that is next, or nobody."""
        return bool(self.waiting) and self.following is None

    @property
    def told_bytes(self) -> int:
        """How far others can go on from what is saved, or from what is about to be."""
        return max([self.saved_bytes, *(offer.saved_bytes for offer in self.offers.values())])

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def is_stalled(self) -> bool:
        return bool(self.waiting) and not self.is_running and time.monotonic() - self.advanced_at > _STALLED_SECONDS

    def hashed(self, offer: OfferedPart, hashes: PrefixHashes) -> None:
        """The chunk that is next was hashed."""
        if offer.is_written:
            self.advance(hashes)
        else:
            self.ahead = hashes

    def advance(self, hashes: PrefixHashes) -> list[OfferedPart]:
        """Have these hashes, which are further on; gives the offers that nobody waits for any more."""
        self.hashes, self.ahead = hashes, None
        passed = [offer for number, offer in self.offers.items() if number * self.upload.chunk_size < hashes.position]
        for offer in passed:
            del self.offers[offer.number]
        return passed

    def go_on_from(self, hashes: PrefixHashes) -> list[OfferedPart]:
        """As `advance`: others have come further."""
        self._shared_at = time.monotonic()
        passed = self.advance(hashes)
        self.moved()
        return passed

    def drop(self, offer: OfferedPart) -> None:
        """Do not wait for a chunk."""
        if offer is self.following:
            self.ahead = None
        del self.offers[offer.number]

    def moved(self) -> None:
        """Less is left to hash."""
        self.advanced_at = time.monotonic()
        self.look_again()

    def look_again(self) -> None:
        """Let those who wait see for themselves."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def ended(self) -> None:
        """Wait until what can be hashed is."""
        while self.task is not None and not self.task.done():
            await asyncio.wait({self.task})

    async def come_near(self) -> None:
        """Wait until little is left to hash, while something is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while self._comes_nearer and sum(offer.body.length for offer in self.waiting) > _FAR_BYTES:
                    await self._moved.wait()

    @property
    def _comes_nearer(self) -> bool:
        return self.is_running or (self.is_watched and self.is_shared)
