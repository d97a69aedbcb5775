"""Brings the digests of open uploads up with their chunks.

In each process one task, the follower, looks after an upload while its map grows. It hashes large chunks that come in order
from memory, while their writers write them. It reads all others back from the page cache, small ones many at a time.

Between processes the lock of the digest file decides, and no follower waits for it: the process that has it also hashes the
chunks that the others have recorded. The merge waits for the follower, and so does a sender that is faster than it: no
upload may come to its end with gigabytes left to hash.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial

from uploader.domain.upload import Upload
from uploader.errors import UploaderError
from uploader.storage.base import Body, Busy, Digests, Gone, Stopping
from uploader.storage.hashes import states_are_portable
from uploader.storage.local.digests import DigestFiles, LockedDigests
from uploader.storage.store import Threads
from uploader.tasks import uninterrupted

# Smaller chunks are gathered until there are so many bytes: to take up the digests costs more than to hash one such chunk.
GATHERED_BYTES = 1 << 20
# The sender of a chunk that begins further ahead of the digests waits until they are near, so that little is left to hash
# when the last chunk comes; or until they have come so much nearer.
NEAR_BYTES = 16 << 20
NEARER_BYTES = 128 << 20
# So many looks have to find the digests of another process where they were before the follower takes them to stand still.
LOOKS_IN_VAIN = 10
# Bodies that a process keeps beyond their requests; while it keeps so much, further chunks are read from the page cache.
_MAX_KEPT_BYTES = 128 << 20
# A follower gathers small chunks for so long at most.
_GATHER_SECONDS = 0.5
# A sender waits for the digests for so long at most.
_PATIENCE_SECONDS = 5.0
# How long a follower pauses after each look at the digests of another process.
_WATCH_SECONDS = 0.02


class FollowerState(StrEnum):
    """What a follower does."""

    GATHERING = "gathering"  # it waits until enough bytes came to take up the digests for
    HASHING = "hashing"  # it takes up the digests, if no other process has them, and advances them
    WATCHING = "watching"  # another process has the digests; the follower looks how far they come
    ENDED = "ended"  # it is done, or what it does failed; the next chunk starts another follower


# From each state, the states that may follow. Each may end, because the process stops or the upload is gone.
TRANSITIONS: dict[FollowerState, frozenset[FollowerState]] = {
    FollowerState.GATHERING: frozenset({FollowerState.HASHING, FollowerState.ENDED}),
    FollowerState.HASHING: frozenset({FollowerState.GATHERING, FollowerState.WATCHING, FollowerState.ENDED}),
    FollowerState.WATCHING: frozenset({FollowerState.HASHING, FollowerState.GATHERING, FollowerState.ENDED}),
    FollowerState.ENDED: frozenset(),
}


class Offer:
    """A chunk on its way to the disk. The follower may hash it from `body` while that is kept."""

    def __init__(self, body: Body | None, settled: Callable[["Offer"], None]) -> None:
        self.body = body
        self.written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._settled = settled

    def settle(self, *, written: bool) -> None:
        """The writer says whether it put the chunk on the map, with these bytes. Only its first call counts."""
        if not self.written.done():
            self.written.set_result(written)
            self._settled(self)


def is_gathered(chunk_size: int) -> bool:
    """Whether chunks of this size are gathered; larger ones are hashed from memory while they are written."""
    return chunk_size < GATHERED_BYTES


class FollowerProgress:
    """The state of one follower, and the facts that decide about the next one."""

    def __init__(self) -> None:
        self.state = FollowerState.GATHERING
        # Whether the merge, or the end of the process, waits for the follower to end.
        self.hurried = False
        # How far the digests are, in bytes; None while no process is known to bring them any further.
        self.position: int | None = None
        self._waiting_bytes = 0
        self._looks_in_vain = 0

    def enter(self, state: FollowerState) -> None:
        """The one place where the state changes."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        if state is FollowerState.HASHING:
            self._waiting_bytes = 0  # those are what it hashes now; chunks that come from here on need another round

    def grow(self, length: int) -> None:
        """A chunk was stored, or is about to be."""
        self._waiting_bytes += length

    def has_enough(self) -> bool:
        """Whether a follower that gathers should hash now."""
        return self.hurried or self._waiting_bytes >= GATHERED_BYTES

    def after_hashing(self, *, had_digests: bool) -> FollowerState:
        """What to do after a round of hashing; `had_digests` is False if another process has them."""
        return self._after_round() if had_digests else FollowerState.WATCHING

    def look(self, position: int) -> bool:
        """Note how far another process is; returns whether to try for the digests once more, because they still move."""
        self._looks_in_vain = self._looks_in_vain + 1 if position == self.position else 0
        self.position = position
        return self._looks_in_vain < LOOKS_IN_VAIN and not self.hurried

    def after_watching(self, *, once_more: bool) -> FollowerState:
        return FollowerState.HASHING if once_more else self._after_round()

    def _after_round(self) -> FollowerState:
        return FollowerState.GATHERING if self._waiting_bytes else FollowerState.ENDED

    def keeps_waiting(self, offset: int, begun: int) -> bool:
        """Whether the sender of the chunk at `offset` has to wait on; the digests were at `begun` when it began to."""
        if self.position is None:
            return False
        return offset - self.position > NEAR_BYTES and self.position - begun < NEARER_BYTES


class _Follower:
    """The task that looks after an upload, and the offers that it may take."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.offers: dict[int | None, Offer] = {}
        self.progress = FollowerProgress()
        self.task: asyncio.Task[None]
        self._enough = asyncio.Event()
        self._moved = asyncio.Event()

    def enter(self, state: FollowerState) -> None:
        self.progress.enter(state)
        if state is FollowerState.HASHING:
            self._enough.clear()

    def grow(self) -> None:
        """Another chunk was stored, or is about to be."""
        self.progress.grow(self.upload.chunk_size)
        self._wake_if_enough()

    def hurry(self) -> None:
        """The merge, or the end of the process, waits for the follower to end."""
        self.progress.hurried = True
        self._wake_if_enough()

    def _wake_if_enough(self) -> None:
        if self.progress.has_enough():
            self._enough.set()

    async def gather(self) -> None:
        """Wait until enough chunks came, but not for long."""
        if self.progress.has_enough():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                await self._enough.wait()

    def move(self, position: int | None) -> None:
        """Note how far the digests are; None if no process is known to bring them any further."""
        self.progress.position = position
        self._tell_senders()

    def look(self, position: int) -> bool:
        """Note how far another process is; returns whether to try for the digests once more."""
        once_more = self.progress.look(position)
        self._tell_senders()
        return once_more

    def _tell_senders(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def come_near(self, offset: int) -> None:
        """Wait until the digests are near the chunk at `offset`, or much nearer, while a process brings them further."""
        begun = self.progress.position
        if begun is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while self.progress.keeps_waiting(offset, begun):
                    await self._moved.wait()


class Followers:
    """Follows the open uploads of this process."""

    def __init__(self, files: DigestFiles, threads: Threads, check_stopping: Callable[[], None]) -> None:
        self._files = files
        self._threads = threads
        self._check_stopping = check_stopping
        self._followers: dict[str, _Follower] = {}
        self._kept_bytes = 0

    # Chunks come

    def offer(self, upload: Upload, number: int, body: Body) -> Offer:
        """Before a writer stores a chunk, it offers the body here. Afterwards it has to settle the offer, in any case."""

        def settled(offer: Offer) -> None:
            if offer.body is None:
                self.follow(upload)

        if is_gathered(upload.chunk_size):
            return Offer(None, settled)
        follower = self.follow(upload)
        if follower is None or number in follower.offers or self._kept_bytes + body.length > _MAX_KEPT_BYTES:
            return Offer(None, settled)
        body.keep()
        self._kept_bytes += body.length
        offer = follower.offers[number] = Offer(body, settled)
        return offer

    def follow(self, upload: Upload) -> _Follower | None:
        """Look after an upload: its map has grown, or is about to; or its MD5 was told, and what is there has to be read
        again."""
        if not states_are_portable() or upload.extent <= min(upload.chunk_size, GATHERED_BYTES):
            return None  # the merge hashes all of it at one go; of one small chunk, the merge is the next thing to come
        follower = self._followers.get(upload.id)
        if follower is None:
            follower = self._followers[upload.id] = _Follower(upload)
            follower.task = asyncio.create_task(self._run(follower), name=f"frontier {upload.id}")
        elif upload.needs_md5:
            follower.upload = upload  # it may have been told since
        follower.grow()
        return follower

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """The sender of a stored chunk waits until the digests are near it, while a process brings them there."""
        follower = self._followers.get(upload.id)
        if follower is not None:
            await follower.come_near(number * upload.chunk_size)

    # The follower

    async def _run(self, follower: _Follower) -> None:
        """Errors end it in silence: the storage has logged them where they happened, and the merge meets them again."""
        try:
            with suppress(Gone, Stopping, UploaderError):
                while (state := await self._act(follower)) is not FollowerState.ENDED:
                    follower.enter(state)
        finally:
            follower.enter(FollowerState.ENDED)
            self._let_go(follower, *follower.offers)
            del self._followers[follower.upload.id]
            follower.move(None)

    async def _act(self, follower: _Follower) -> FollowerState:
        """Do what the state says; returns the next state."""
        progress = follower.progress
        if progress.state is FollowerState.GATHERING:
            await follower.gather()
            return FollowerState.HASHING
        if progress.state is FollowerState.HASHING:
            had_digests = await self._advance(follower)
            if had_digests:
                follower.move(None)
            return progress.after_hashing(had_digests=had_digests)
        assert progress.state is FollowerState.WATCHING
        once_more = follower.look(await self._threads.hashing.run(self._files.position, follower.upload))
        await asyncio.sleep(_WATCH_SECONDS)
        return progress.after_watching(once_more=once_more)

    async def _advance(self, follower: _Follower) -> bool:
        """Advance the digests up to the first gap; False if another process has them."""
        if is_gathered(follower.upload.chunk_size):
            return await self._advance_by_turns(follower)
        async with self._locked(follower.upload) as digests:
            while digests is not None:
                follower.move(digests.position)
                if not await self._advance_once(follower, digests):
                    break
                self._check_stopping()
            # No offered chunk is next. The chunk that is next may never come, so the follower keeps no bodies until then.
            self._let_go(follower, *follower.offers)
        return digests is not None

    async def _advance_by_turns(self, follower: _Follower) -> bool:
        """Advance over chunks on the map alone: one hop to a thread for each turn, where `_locked` takes three."""
        turn = await self._threads.hashing.run(partial(self._files.advance, short=True), follower.upload)
        while turn is not None and turn.more:
            follower.move(turn.position)
            self._check_stopping()
            turn = await self._threads.long_hashing.run(self._files.advance, follower.upload)
        return turn is not None

    async def _advance_once(self, follower: _Follower, digests: LockedDigests) -> bool:
        """Hash the chunk that is next, or those that are on the map; returns whether there may be more."""
        number = digests.next_chunk
        offer = follower.offers.get(number)
        if offer is None:
            more = await self._threads.long_hashing.run(digests.hash_recorded, follower.offers.__contains__)
            return more or digests.next_chunk in follower.offers
        await self._threads.long_hashing.run(digests.hash_body, offer.body)
        # No deadlock: the chunk's writer has the lock of its record, and waits for nothing but the disk.
        written = await offer.written
        await self._threads.hashing.run(digests.save if written else digests.load)
        self._let_go(follower, number)
        return True

    def _let_go(self, follower: _Follower, *numbers: int | None) -> None:
        for number in numbers:
            offer = follower.offers.pop(number)
            assert offer.body is not None
            self._kept_bytes -= offer.body.length
            offer.body.close()
            offer.body = None

    @asynccontextmanager
    async def _locked(self, upload: Upload) -> AsyncIterator[LockedDigests | None]:
        """The digests as they were saved; None if another process has them."""
        digests = await self._threads.hashing.run(self._files.try_lock, upload)
        try:
            yield digests
        finally:
            if digests is not None:
                # In a thread: whoever closes a large unlinked file last waits until the kernel has freed its blocks.
                await uninterrupted(self._threads.long_hashing.run(digests.close))

    # Finishing

    async def digest(self, upload: Upload) -> Digests:
        """The merge takes the digests of the whole. Raises Gone, Busy, Stopping."""
        follower = self._followers.get(upload.id)
        if follower is not None:
            follower.hurry()
            await asyncio.wait({follower.task})
        self._check_stopping()
        if upload.size <= GATHERED_BYTES:
            return await self._threads.hashing.run(self._files.finish, upload)
        async with self._locked(upload) as digests:
            if digests is None:
                raise Busy(upload.id)
            while await self._threads.long_hashing.run(digests.hash_recorded):
                self._check_stopping()
            return await self._threads.hashing.run(digests.finish)

    async def drain(self) -> None:
        """Wait until every follower of this process has ended."""
        while self._followers:
            for follower in self._followers.values():
                follower.hurry()
            await asyncio.wait({follower.task for follower in self._followers.values()})
