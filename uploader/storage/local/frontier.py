"""Digests that keep up with the chunks: large ones that come in order are hashed from memory while they are written, all
others are caught up from the page cache, small ones many at a time.

The merge waits for this, and so does who sends faster than it goes: an upload may not come to its end with gigabytes left
to hash. In a process at most one task follows an upload; between processes the lock of the digest file decides, which
nobody waits for: who has it advances over what the others have recorded.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from uploader.domain.upload import Upload
from uploader.errors import UploaderError
from uploader.storage.base import Body, Busy, Digests, Gone, Stopping
from uploader.storage.hashes import states_are_portable
from uploader.storage.local.digests import DigestFiles, LockedDigests
from uploader.tasks import uninterrupted

T = TypeVar("T")

# Bodies that outlive their requests in a process; what comes while there are so many is caught up from the page cache.
_MAX_KEPT_BYTES = 128 << 20
# Chunks of less are gathered until there is so much, or for so long: to take up the digests costs more than to hash one.
_GATHERED_BYTES = 1 << 20
_GATHER_SECONDS = 0.5
# A chunk that begins further ahead of the digests is answered once they are near, so that little is left to hash when the
# last one comes; or once they have come so much nearer, or after so long.
_NEAR_BYTES = 16 << 20
_NEARER_BYTES = 128 << 20
_PATIENCE_SECONDS = 5.0
# How often a process looks how far another one has come with the digests, and how often it has to see it stand still.
_WATCH_SECONDS = 0.02
_WATCHES = 10


class InThread(Protocol):
    """Runs work in a thread of the pool for hashing."""

    async def __call__(self, work: Callable[..., T], *arguments: object) -> T: ...


class Offer:
    """A chunk on its way to the disk. While `body` is kept, it may be hashed from there."""

    def __init__(self, body: Body | None, settled: Callable[["Offer"], None]) -> None:
        self.body = body
        self.written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._settled = settled

    def settle(self, *, written: bool) -> None:
        """Say whether the chunk is now on the map, with these bytes. The first word stands."""
        if not self.written.done():
            self.written.set_result(written)
            self._settled(self)


class _Following:
    """An upload that a task is looking after, and the offers that it may take."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.offers: dict[int | None, Offer] = {}
        self.again = False
        self.hurried = False
        self.task: asyncio.Task[None]
        self._enough = asyncio.Event()
        self._waiting_bytes = 0
        self._position: int | None = None
        self._moved = asyncio.Event()
        self._watches = 0

    def grow(self) -> None:
        """There is, or will be, another chunk."""
        self.again = True
        self._waiting_bytes += self.upload.chunk_size
        if self._waiting_bytes >= _GATHERED_BYTES:
            self._enough.set()

    def hurry(self) -> None:
        """Somebody waits for its end."""
        self.hurried = True
        self._enough.set()

    async def gather(self) -> None:
        """Wait until there is enough to go on with, or nothing more comes."""
        if not self.hurried:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_SECONDS):
                    await self._enough.wait()
        self._enough.clear()
        self._waiting_bytes = 0
        self.again = False

    def move(self, position: int | None) -> None:
        """The digests are so far; None if nothing brings them any further."""
        self._position = position
        self._moved.set()
        self._moved = asyncio.Event()

    def watch(self, position: int) -> None:
        """Another process has the digests, which are so far; to be tried again, as long as they move."""
        self._watches = self._watches + 1 if position == self._position else 0
        self.move(position)
        if self._watches < _WATCHES and not self.hurried:
            self.again = True
            self._enough.set()

    async def come_near(self, offset: int) -> None:
        """Wait until the digests are near or have come nearer, as long as they come any further."""
        begun = self._position
        if begun is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while (
                    self._position is not None
                    and offset - self._position > _NEAR_BYTES
                    and self._position - begun < _NEARER_BYTES
                ):
                    await self._moved.wait()


class Frontiers:
    """Follows the open uploads of this process."""

    def __init__(self, files: DigestFiles, in_thread: InThread, check_stopping: Callable[[], None]) -> None:
        self._files = files
        self._in_thread = in_thread
        self._check_stopping = check_stopping
        self._following: dict[str, _Following] = {}
        self._kept_bytes = 0

    # Advancing

    def offer(self, upload: Upload, number: int, body: Body) -> Offer:
        """Say that a chunk is about to be stored, before it is. Settle it afterwards, in any case."""

        def settled(offer: Offer) -> None:
            if offer.body is None:
                self.follow(upload)

        if upload.chunk_size < _GATHERED_BYTES:
            return Offer(None, settled)
        following = self.follow(upload)
        if following is None or number in following.offers or self._kept_bytes + body.length > _MAX_KEPT_BYTES:
            return Offer(None, settled)
        body.keep()
        self._kept_bytes += body.length
        offer = following.offers[number] = Offer(body, settled)
        return offer

    def follow(self, upload: Upload) -> _Following | None:
        """Look after an upload: its map has grown, or is about to."""
        if not states_are_portable() or upload.size <= min(upload.chunk_size, _GATHERED_BYTES):
            return None  # all is hashed by the merge, at one go; of one small chunk it is the next thing to come
        following = self._following.get(upload.id)
        if following is None:
            following = self._following[upload.id] = _Following(upload)
            following.task = asyncio.create_task(self._run(following), name=f"frontier {upload.id}")
        following.grow()
        return following

    async def _run(self, following: _Following) -> None:
        """What goes wrong here is logged where it happens, and met again by the merge."""
        try:
            with suppress(Gone, Stopping, UploaderError):
                while following.again:
                    await following.gather()
                    if await self._advance(following):
                        following.move(None)
                    else:
                        await self._watch(following)
        finally:
            self._let_go(following, *following.offers)
            del self._following[following.upload.id]
            following.move(None)

    async def _advance(self, following: _Following) -> bool:
        """As far as there is no gap; False if another worker has the digests."""
        if following.upload.chunk_size < _GATHERED_BYTES:
            return await self._advance_gathered(following)
        async with self._locked(following.upload) as digests:
            while digests is not None:
                following.move(digests.position)
                if not await self._advance_once(following, digests):
                    break
                self._check_stopping()
            # None of these is next, and nobody waits for a chunk that may never come.
            self._let_go(following, *following.offers)
        return digests is not None

    async def _advance_gathered(self, following: _Following) -> bool:
        while (turn := await self._in_thread(self._files.advance, following.upload)) is not None and turn.more:
            following.move(turn.position)
            self._check_stopping()
        return turn is not None

    async def _advance_once(self, following: _Following, digests: LockedDigests) -> bool:
        """Whether it came any further, or may."""
        number = digests.next_chunk
        offer = following.offers.get(number)
        if offer is None:
            more = await self._in_thread(digests.hash_recorded, following.offers.__contains__)
            return more or digests.next_chunk in following.offers
        await self._in_thread(digests.hash_body, offer.body)
        # Its writer has the lock of its record, and waits for nothing but the disk.
        written = await offer.written
        await self._in_thread(digests.save if written else digests.load)
        self._let_go(following, number)
        return True

    async def _watch(self, following: _Following) -> None:
        """See how far another process has come, and whether it still comes any further."""
        following.watch(await self._in_thread(self._files.position, following.upload))
        await asyncio.sleep(_WATCH_SECONDS)

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """Wait until the digests are near a chunk that was stored, unless nothing brings them there."""
        following = self._following.get(upload.id)
        if following is not None:
            await following.come_near(number * upload.chunk_size)

    def _let_go(self, following: _Following, *numbers: int | None) -> None:
        for number in numbers:
            offer = following.offers.pop(number)
            assert offer.body is not None
            self._kept_bytes -= offer.body.length
            offer.body.close()
            offer.body = None

    @asynccontextmanager
    async def _locked(self, upload: Upload) -> AsyncIterator[LockedDigests | None]:
        """The digests as they were saved; None if another worker has them."""
        digests = await self._in_thread(self._files.try_lock, upload)
        try:
            yield digests
        finally:
            if digests is not None:
                # In a thread: the last to close a large file that was unlinked waits until its blocks are free.
                await uninterrupted(self._in_thread(digests.close))

    # Finishing

    async def digest(self, upload: Upload) -> Digests:
        """Raises Gone, Busy, Stopping."""
        following = self._following.get(upload.id)
        if following is not None:
            following.hurry()
            await asyncio.wait({following.task})
        self._check_stopping()
        if upload.size <= _GATHERED_BYTES:
            return await self._in_thread(self._files.finish, upload)
        async with self._locked(upload) as digests:
            if digests is None:
                raise Busy(upload.id)
            while await self._in_thread(digests.hash_recorded):
                self._check_stopping()
            return await self._in_thread(digests.finish)

    async def drain(self) -> None:
        """Wait until nothing is left to do for now."""
        while self._following:
            for following in self._following.values():
                following.hurry()
            await asyncio.wait({following.task for following in self._following.values()})
