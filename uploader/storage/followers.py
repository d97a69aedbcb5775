"""Brings the digests of open uploads up with their chunks: what all stores have in common, and the followers of those whose
chunks can be read back.

In each process one task, the follower, looks after an upload while its map grows. It hashes large chunks that come in
order from memory, while their writers write them. It reads all others back, small ones many at a time.

Between processes the lock of the saved digests decides, and no follower waits for it: the process that has it also
hashes the chunks that the others have recorded. The merge waits for the follower, and so does a sender that is faster
than it: no upload may come to its end with gigabytes left to hash.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from uploader.domain.upload import Upload
from uploader.errors import UploaderError
from uploader.storage.base import Body, Busy, Digests, Gone, Stopping
from uploader.storage.hashes import PrefixHashes, states_are_portable
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
# Bodies that a process keeps beyond their requests; while it keeps so much, further chunks are read back.
MAX_KEPT_BYTES = 128 << 20
# A thread hashes so much of one upload before another upload has its turn: none waits for another one's hundred gigabytes.
_TURN_BYTES = 32 << 20
# So much at the most on the core of the event loop.
_SHORT_TURN_BYTES = 4 << 20
# A follower gathers small chunks for so long at most.
_GATHER_SECONDS = 0.5
# A sender waits for the digests for so long at most.
_PATIENCE_SECONDS = 5.0
# How long a follower pauses after each look at the digests of another process.
_WATCH_SECONDS = 0.02


class Bodies:
    """The bodies that a process keeps beyond their requests, within a bound."""

    def __init__(self) -> None:
        self._kept_bytes = 0

    def keep(self, body: Body, most_bytes: int) -> bool:
        """Keep a body, unless it would be more than so many bytes with it; whether it is kept."""
        if not self.has_room(body, most_bytes):
            return False
        body.keep()
        self._kept_bytes += body.length
        return True

    def has_room(self, body: Body, most_bytes: int) -> bool:
        """Whether `keep` would keep it."""
        return self._kept_bytes + body.length <= most_bytes

    def hand_over(self, body: Body, others: "Bodies") -> "Bodies":
        """Let a body that is kept be one of `others`, whether there is room or not."""
        self._kept_bytes -= body.length
        others._kept_bytes += body.length
        return others

    def close(self, body: Body) -> None:
        """Give up a body that is kept."""
        self._kept_bytes -= body.length
        body.close()


class Following:
    """An upload whose digests a process brings up with its chunks, and the senders that wait for them."""

    def __init__(self, upload: Upload) -> None:
        self.upload = upload
        self.task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()

    def tell_senders(self) -> None:
        """Let those who wait see for themselves."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def wait_while(self, is_far: Callable[[], bool]) -> None:
        """Wait until the digests are not far behind, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while is_far():
                    await self._moved.wait()

    async def ended(self) -> None:
        """Wait until what can be hashed is."""
        while self.task is not None and not self.task.done():
            await asyncio.wait({self.task})


# Of stores whose chunks can be read back


class LockedPrefix(ABC):
    """The digests of one upload as its store has saved them, locked against other processes. Close it. Runs in threads."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        # Both are there once `load` was called.
        self._finished: Digests | None
        self._hashes: PrefixHashes
        self.close: Callable[[], None]

    def _at_start(self) -> PrefixHashes:
        return PrefixHashes(with_md5=self._upload.needs_md5)

    @property
    def next_chunk(self) -> int | None:
        """The number of the chunk to hash next; None after the last one."""
        if self._finished is not None or self._hashes.position == self._upload.extent:
            return None
        return self._hashes.position // self._upload.chunk_size

    @property
    def position(self) -> int:
        """How far the digests are, in bytes."""
        return self._hashes.position

    def hash_body(self, body: Body) -> None:
        """Hash the next chunk from the body that its writer is storing. Call `save` once the writer put it on the map."""
        self._hashes.update_by(body.pieces, body.length)

    def hash_recorded(
        self, leave: Callable[[int], bool] = lambda _number: False, turn_bytes: int | None = None
    ) -> bool:
        """Hash chunks that are on the map, for one turn, and save. Returns whether the turn ended before the chunks did.

        It stops before a chunk that `leave` names, which the follower hashes from memory. Raises Gone.
        """
        self._check_there()
        start, turn_bytes = self._hashes.position, turn_bytes or _TURN_BYTES
        while (left := start + turn_bytes - self._hashes.position) > 0:
            if not self._hash_next(left, leave):
                break
        if self._hashes.position > start:
            self.save()
        return left <= 0

    def finish(self) -> Digests:
        """The digests of the whole, once they are saved. Raises Busy if a withdrawal took a chunk meanwhile."""
        if self._finished is None and self._hashes.position == self._upload.extent:
            digests = self._hashes.digests()
            self._save_whole(digests)
            self._finished = digests
        if self._finished is None:
            raise Busy(self._upload.id)
        return self._finished

    @abstractmethod
    def load(self) -> None:
        """Go on from what was saved, or start at 0."""

    @abstractmethod
    def save(self) -> None:
        """Save how far the digests are. Whoever loads it believes it only if it is certainly the state of these bytes."""

    @abstractmethod
    def _save_whole(self, digests: Digests) -> None:
        """Make the bytes durable, then save the digests of the whole."""

    @abstractmethod
    def _check_there(self) -> None:
        """Raises Gone if the upload has ended."""

    @abstractmethod
    def _hash_next(self, length: int, leave: Callable[[int], bool]) -> bool:
        """Hash as many of the next chunks as go at once, up to `length`, but one at least; False if the next one is not
        there yet, or is to be left."""


class SavedPrefixes(Protocol):
    """Where a store saves how far the digests are, by upload. In threads."""

    def try_lock(self, upload: Upload) -> LockedPrefix | None:
        """The digests as they were saved; None if another process has their lock. Raises Gone, StorageFailed."""

    def position(self, upload: Upload) -> int:
        """How far they were when they were saved last, in bytes. Raises Gone."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a turn ended, in bytes, and whether there was more to hash."""

    more: bool
    position: int


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


class Follower(Following):
    """The task that looks after an upload, the offers that it may take, and the facts that decide what it does next."""

    def __init__(self, upload: Upload) -> None:
        super().__init__(upload)
        self.state = FollowerState.GATHERING
        self.offers: dict[int | None, Offer] = {}
        # How far the digests are, in bytes; None while no process is known to bring them any further.
        self.position: int | None = None
        # Whether the merge, or the end of the process, waits for the follower to end.
        self._is_hurried = False
        self._waiting_bytes = 0
        self._looks_in_vain = 0
        self._enough = asyncio.Event()

    def enter(self, state: FollowerState) -> None:
        """The one place where the state changes."""
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state
        if state is FollowerState.HASHING:
            self._waiting_bytes = 0  # those are what it hashes now; chunks that come from here on need another round
            self._enough.clear()

    def grow(self, length: int) -> None:
        """A chunk was stored, or is about to be."""
        self._waiting_bytes += length
        if self.has_enough():
            self._enough.set()

    def hurry(self) -> None:
        """The merge, or the end of the process, waits for the follower to end."""
        self._is_hurried = True
        self._enough.set()

    def has_enough(self) -> bool:
        """Whether a follower that gathers should hash now."""
        return self._is_hurried or self._waiting_bytes >= GATHERED_BYTES

    async def gather(self) -> None:
        """Wait until enough chunks came, but not for long."""
        if self.has_enough():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                await self._enough.wait()

    def after_hashing(self, *, had_digests: bool) -> FollowerState:
        """What to do after a round of hashing; `had_digests` is False if another process has them."""
        return self._after_round() if had_digests else FollowerState.WATCHING

    def after_watching(self, *, once_more: bool) -> FollowerState:
        return FollowerState.HASHING if once_more else self._after_round()

    def _after_round(self) -> FollowerState:
        return FollowerState.GATHERING if self._waiting_bytes else FollowerState.ENDED

    def move(self, position: int | None) -> None:
        """Note how far the digests are; None if no process is known to bring them any further."""
        self.position = position
        self.tell_senders()

    def look(self, position: int) -> bool:
        """Note how far another process is; returns whether to try for the digests once more, because they still move."""
        self._looks_in_vain = self._looks_in_vain + 1 if position == self.position else 0
        self.move(position)
        return self._looks_in_vain < LOOKS_IN_VAIN and not self._is_hurried

    def keeps_waiting(self, offset: int, begun: int) -> bool:
        """Whether the sender of the chunk at `offset` has to wait on; the digests were at `begun` when it began to."""
        if self.position is None:
            return False
        return offset - self.position > NEAR_BYTES and self.position - begun < NEARER_BYTES


class Followers:
    """Follows the open uploads of this process."""

    def __init__(self, saved: SavedPrefixes, threads: Threads, check_stopping: Callable[[], None]) -> None:
        self._saved = saved
        self._threads = threads
        self._check_stopping = check_stopping
        self._followers: dict[str, Follower] = {}
        self._bodies = Bodies()

    # Chunks come

    def offer(self, upload: Upload, number: int, body: Body) -> Offer:
        """Before a writer stores a chunk, it offers the body here. Afterwards it has to settle the offer, in any case."""

        def settled(offer: Offer) -> None:
            if offer.body is None:
                self.follow(upload)

        if is_gathered(upload.chunk_size):
            return Offer(None, settled)
        follower = self.follow(upload)
        if follower is None or number in follower.offers or not self._bodies.keep(body, MAX_KEPT_BYTES):
            return Offer(None, settled)
        offer = follower.offers[number] = Offer(body, settled)
        return offer

    def follow(self, upload: Upload) -> Follower | None:
        """Look after an upload: its map has grown, or is about to; or its MD5 was told, and what is there has to be read
        again."""
        if not states_are_portable() or upload.extent <= min(upload.chunk_size, GATHERED_BYTES):
            return None  # the merge hashes all of it at one go; of one small chunk, the merge is the next thing to come
        follower = self._followers.get(upload.id)
        if follower is None:
            follower = self._followers[upload.id] = Follower(upload)
            follower.task = asyncio.create_task(self._run(follower), name=f"frontier {upload.id}")
        elif upload.needs_md5:
            follower.upload = upload  # it may have been told since
        follower.grow(upload.chunk_size)
        return follower

    async def keep_pace(self, upload: Upload, number: int) -> None:
        """The sender of a stored chunk waits until the digests are near it, or much nearer, while a process brings them
        there."""
        follower, offset = self._followers.get(upload.id), number * upload.chunk_size
        if follower is not None and (begun := follower.position) is not None:
            await follower.wait_while(lambda: follower.keeps_waiting(offset, begun))

    # The follower

    async def _run(self, follower: Follower) -> None:
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

    async def _act(self, follower: Follower) -> FollowerState:
        """Do what the state says; returns the next state."""
        if follower.state is FollowerState.GATHERING:
            await follower.gather()
            return FollowerState.HASHING
        if follower.state is FollowerState.HASHING:
            had_digests = await self._advance(follower)
            if had_digests:
                follower.move(None)
            return follower.after_hashing(had_digests=had_digests)
        assert follower.state is FollowerState.WATCHING
        once_more = follower.look(await self._threads.hashing.run(self._saved.position, follower.upload))
        await asyncio.sleep(_WATCH_SECONDS)
        return follower.after_watching(once_more=once_more)

    async def _advance(self, follower: Follower) -> bool:
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

    async def _advance_by_turns(self, follower: Follower) -> bool:
        """Advance over chunks on the map alone: one hop to a thread for each turn, where `_locked` takes three."""
        turn = await self._threads.hashing.run(partial(self.advance, short=True), follower.upload)
        while turn is not None and turn.more:
            follower.move(turn.position)
            self._check_stopping()
            turn = await self._threads.long_hashing.run(self.advance, follower.upload)
        return turn is not None

    async def _advance_once(self, follower: Follower, digests: LockedPrefix) -> bool:
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

    def _let_go(self, follower: Follower, *numbers: int | None) -> None:
        for number in numbers:
            offer = follower.offers.pop(number)
            assert offer.body is not None
            self._bodies.close(offer.body)
            offer.body = None

    @asynccontextmanager
    async def _locked(self, upload: Upload) -> AsyncIterator[LockedPrefix | None]:
        """The digests as they were saved; None if another process has them."""
        digests = await self._threads.hashing.run(self._saved.try_lock, upload)
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
            await follower.ended()
        self._check_stopping()
        if upload.size <= GATHERED_BYTES:
            return await self._threads.hashing.run(self.finish, upload)
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
            for follower in list(self._followers.values()):
                await follower.ended()

    # In threads

    def advance(self, upload: Upload, *, short: bool = False) -> Turn | None:
        """Lock, hash for one turn, which may be a `short` one, unlock; None if another process has the lock. Raises Gone."""
        locked = self._saved.try_lock(upload)
        if locked is None:
            return None
        with closing(locked):
            more = locked.hash_recorded(turn_bytes=_SHORT_TURN_BYTES if short else None)
            return Turn(more=more, position=locked.position)

    def finish(self, upload: Upload) -> Digests:
        """Lock, hash all that is left, unlock: the digests of the whole. Raises Gone, Busy, StorageFailed."""
        locked = self._saved.try_lock(upload)
        if locked is None:
            raise Busy(upload.id)
        with closing(locked):
            while locked.hash_recorded():
                pass
            return locked.finish()
