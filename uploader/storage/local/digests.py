"""The `digest` file of an open upload: the digests of its contiguous prefix, advanced as chunks come, and saved.

The process that has the lock of the file advances the digests, over chunks that are on the map and no others. It goes on
from a saved state only if that is certainly the state of these bytes; to start again at 0 is always right. So it does where
an MD5 is told of an upload that came without. Runs in threads.
"""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_count
from uploader.errors import StorageFailed, UploaderError
from uploader.storage import disk
from uploader.storage.base import Body, Busy, Digests, Gone, Stopping
from uploader.storage.disk import try_lock
from uploader.storage.hashes import PrefixHashes, is_without_md5, states_are_portable
from uploader.storage.local import chunks
from uploader.storage.local.chunks import shape_of
from uploader.storage.local.directories import upload_directory
from uploader.storage.store import Threads
from uploader.tasks import uninterrupted

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.


_READ_BYTES = 1 << 20
# A thread hashes so much of one upload before another upload has its turn: none waits for another one's hundred gigabytes.
_TURN_BYTES = 32 << 20
# So much at the most on the core of the event loop.
_SHORT_TURN_BYTES = 4 << 20


_memory = threading.local()


def _buffer() -> memoryview:
    """Memory that this thread reads into and never frees: to get fresh memory costs more than to read into it."""
    if not hasattr(_memory, "buffer"):
        _memory.buffer = memoryview(bytearray(_READ_BYTES))
    buffer: memoryview = _memory.buffer
    return buffer


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a turn ended, in bytes, and whether there was more to hash."""

    more: bool
    position: int


class DigestFiles:
    """Opens digest files."""

    def __init__(self, root: disk.Directory, *, boot_id: str) -> None:
        self._root = root
        self._boot_id = boot_id

    def try_lock(self, upload: Upload) -> "LockedDigests | None":
        """The digests as they were saved; None if another process has their lock. Raises Gone, and StorageFailed if the
        disk lost bytes."""
        with upload_directory(self._root, upload) as directory, ExitStack() as opened:
            digest = _open(directory)
            opened.callback(disk.close, digest)
            if not try_lock(digest, 0, 0):
                return None
            chunk_map = directory.open_to_read("map")
            opened.callback(disk.close, chunk_map)
            if not upload.length_known:
                _check_unsettled(chunk_map, upload)
            data = directory.open_to_read("data")
            opened.callback(disk.close, data)
            locked = LockedDigests(upload, digest, chunk_map, data, boot_id=self._boot_id)
            locked.load()
            locked.close = opened.pop_all().close
        return locked

    def advance(self, upload: Upload, *, short: bool = False) -> Turn | None:
        """Lock, hash for one turn, which may be a `short` one, unlock; None if another process has the lock. Raises Gone."""
        locked = self.try_lock(upload)
        if locked is None:
            return None
        try:
            return Turn(
                more=locked.hash_recorded(turn_bytes=_SHORT_TURN_BYTES if short else None), position=locked.position
            )
        finally:
            locked.close()

    def finish(self, upload: Upload) -> Digests:
        """Lock, hash all that is left, unlock: the digests of the whole. Raises Gone, Busy, StorageFailed."""
        locked = self.try_lock(upload)
        if locked is None:
            raise Busy(upload.id)
        try:
            while locked.hash_recorded():
                pass
            return locked.finish()
        finally:
            locked.close()

    def open(self, upload: Upload) -> int:
        """A descriptor to take the lock by. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return _open(directory)

    def forget(self, upload: Upload, *, checked: bool = False) -> None:
        """Let the digests start again at 0; but where the disk lost bytes, only if what it has was `checked` since. Raises
        Gone, Busy."""
        descriptor = self.open(upload)
        try:
            if not try_lock(descriptor, 0, 0):
                raise Busy(upload.id)
            if checked or not isinstance(_read(descriptor), chunks.DataLost):
                self.forget_locked(descriptor, upload.generation)
        finally:
            disk.close(descriptor)

    def forget_locked(self, digest: int, generation: int) -> None:
        """As `forget`, where the caller has the lock, and the digests are of `generation` from here on.

        Needs no sync: what a power cut brings back is of another boot or of an older generation, so `load` does not believe
        it.
        """
        known = _read(digest)
        if isinstance(known, (chunks.SavedProgress, chunks.Finished)):
            generation = max(generation, known.generation)
        record = chunks.SavedProgress(generation, self._boot_id, 0, b"")
        disk.write(digest, memoryview(chunks.digest_record(record)), 0)

    def check(self, upload: Upload, sha256: str) -> None:
        """Raises Busy if what was computed last is not this, because the digests were forgotten since; the caller holds all
        locks of the map. A file that is damaged says nothing. Raises Gone."""
        saved = self._saved(upload)
        if saved is not None and not (isinstance(saved, chunks.Finished) and saved.sha256 == sha256):
            raise Busy(upload.id)

    def _saved(self, upload: Upload) -> chunks.DigestRecord | None:
        with upload_directory(self._root, upload) as directory:
            descriptor = _open(directory)
        try:
            return _read(descriptor)
        finally:
            disk.close(descriptor)

    def position(self, upload: Upload) -> int:
        """How far the digests were when they were saved last, in bytes. Raises Gone."""
        match saved := self._saved(upload):
            case chunks.SavedProgress():
                is_current = saved.generation >= upload.generation and saved.boot_id == self._boot_id
                lacks_md5 = upload.needs_md5 and is_without_md5(saved.state)
                return saved.position if is_current and not lacks_md5 else 0
            case chunks.Finished():
                return 0 if upload.needs_md5 and saved.md5 is None else upload.size
            case chunks.DataLost() | None:
                return 0


def _open(directory: disk.Directory) -> int:
    """The digest file; made anew where it was lost. The map goes first where an upload ends."""
    with suppress(FileNotFoundError):
        return directory.open_to_write("digest")
    directory.status("map")
    with suppress(FileNotFoundError):
        directory.make_way("digest")
    with suppress(FileExistsError):
        directory.create_empty("digest")
    return directory.open_to_write("digest")


def _check_unsettled(chunk_map: int, upload: Upload) -> None:
    """Raises Gone if the length was told meanwhile: the last chunk may be a shorter one than the caller knows of."""
    header = disk.read(chunk_map, chunks.MAP_RECORDS_OFFSET, 0)
    if chunks.boot_id_of(header, shape_of(upload)) is None:
        raise Gone(upload.id)


def _read(digest: int) -> chunks.DigestRecord | None:
    return chunks.parse_digest_record(disk.read(digest, chunks.DIGEST_RECORD_LENGTH, 0))


class LockedDigests:
    """The digests of one upload, the lock of their file held. Close it."""

    def __init__(self, upload: Upload, digest: int, chunk_map: int, data: int, *, boot_id: str) -> None:
        self._upload = upload
        self._digest, self._map, self._data = digest, chunk_map, data
        self._boot_id = boot_id
        self._generation = upload.generation
        self._count = chunk_count(upload.extent, upload.chunk_size)
        self._finished: Digests | None = None
        self._hashes = self._at_start()
        self.close: Callable[[], None]

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

    def load(self) -> None:
        """Go on from what was saved, or start at 0. Raises StorageFailed if the disk lost bytes.

        What is of a later generation than the caller knows of was saved after a withdrawal that the caller has not heard of:
        it is believed, and what this process saves is of that generation, too.
        """
        saved = _read(self._digest)
        self._finished, self._hashes = None, self._at_start()
        match saved:
            case chunks.DataLost():
                raise StorageFailed("The disk lost bytes of this upload; what it still has is looked at.")
            case chunks.Finished() if saved.generation == self._generation and self._is_enough(saved.md5 is not None):
                self._finished = Digests(md5=saved.md5, sha256=saved.sha256)
            case chunks.SavedProgress() if saved.generation >= self._generation and saved.boot_id == self._boot_id:
                self._generation = saved.generation
                restored = PrefixHashes.restore(saved.position, saved.state)
                if restored and self._is_enough(restored.has_md5) and self._are_recorded(saved.position):
                    self._hashes = restored

    def _at_start(self) -> PrefixHashes:
        return PrefixHashes(with_md5=self._upload.needs_md5)

    def _is_enough(self, has_md5: bool) -> bool:
        """More than what this process knows to be needed is enough: an MD5 may have been told to another one."""
        return has_md5 or not self._upload.needs_md5

    def _are_recorded(self, position: int) -> bool:
        """Whether a position is the end of a chunk, and all chunks before it are on the map."""
        count, rest = divmod(position, self._upload.chunk_size)
        if rest and position == self._upload.extent:
            count, rest = count + 1, 0
        if rest or not 0 <= count <= self._count:
            return False
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * count, chunks.MAP_RECORDS_OFFSET)
        return chunks.are_present(records, count)

    def hash_body(self, body: Body) -> None:
        """Hash the next chunk from the body that its writer is storing. Call `save` once the writer put it on the map."""
        self._hashes.update_by(body.pieces, body.length)

    def save(self) -> None:
        """Save the state, without a sync: after a power cut the digests start at 0, or at a state that was saved earlier,
        of chunks that are on the disk."""
        record = chunks.SavedProgress(self._generation, self._boot_id, self._hashes.position, self._hashes.state())
        disk.write(self._digest, memoryview(chunks.digest_record(record)), 0)
        crash_point("frontier.after_save")

    def hash_recorded(
        self, leave: Callable[[int], bool] = lambda _number: False, turn_bytes: int | None = None
    ) -> bool:
        """Hash chunks that are on the map, for one turn, and save. Returns whether the turn ended before the chunks did.

        It stops before a chunk that `leave` names, which the follower hashes from memory. Raises Gone.
        """
        if disk.is_unlinked(self._map):
            raise Gone(self._upload.id)
        start, turn_bytes = self._hashes.position, turn_bytes or _TURN_BYTES
        while (left := start + turn_bytes - self._hashes.position) > 0:
            checksums = self._next_recorded(left, leave)
            if not checksums:
                break
            self._hash_chunks(checksums)
        if self._hashes.position > start:
            self.save()
        return left <= 0

    def _next_recorded(self, length: int, leave: Callable[[int], bool]) -> list[int]:
        """The checksums of the chunks that can be hashed at one go: as many as fit into `length`, and one at least."""
        number = self.next_chunk
        if number is None:
            return []
        chunk_size = self._upload.chunk_size
        at_once = min(max(min(length, _READ_BYTES) // chunk_size, 1), self._count - number)
        # Read the map before asking `leave`: a writer offers its chunk before it puts it on the map, so that no chunk found
        # here comes from an offer that `leave` does not know.
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * at_once, chunks.map_record_offset(number))
        checksums = chunks.leading_checksums(records)
        ours = next((n for n in range(len(checksums)) if leave(number + n)), len(checksums))
        return checksums[:ours]

    def _hash_chunks(self, checksums: list[int]) -> None:
        """Hash the next chunks, which were stored with these checksums; other bytes than those are an error of the disk."""
        chunk_size = self._upload.chunk_size
        expected = dict(enumerate(checksums, self._hashes.position // chunk_size))
        end = min((max(expected) + 1) * chunk_size, self._upload.extent)
        buffer, checksum = _buffer(), 0
        while (position := self._hashes.position) < end:
            piece = buffer[: end - position]
            count = disk.read_into(self._data, piece, position)
            if not count:
                raise OSError(errno.EIO, "the data file does not have the size of its upload")
            for number, part, is_last in self._by_chunks(piece[:count], position):
                checksum = crc32(part, checksum)
                if is_last and checksum != expected[number]:
                    raise OSError(errno.EIO, f"chunk {number} of upload {self._upload.id} does not have its checksum")
                checksum = 0 if is_last else checksum
            self._hashes.update(piece[:count])

    def _by_chunks(self, piece: memoryview, position: int) -> Iterator[tuple[int, memoryview, bool]]:
        """The parts of a piece that are of different chunks, each with the number of its chunk, and whether it ends it."""
        while len(piece):
            number = position // self._upload.chunk_size
            end = min((number + 1) * self._upload.chunk_size, self._upload.extent)
            part = piece[: end - position]
            position += len(part)
            yield number, part, position == end
            piece = piece[len(part) :]

    def finish(self) -> Digests:
        """The digests of the whole, once its data is durable. Raises Busy if a withdrawal took a chunk meanwhile.

        The digest file needs no sync: after a power cut the merge hashes again.
        """
        if self._finished is None and self._hashes.position == self._upload.extent:
            self._sync_data()
            crash_point("merge.after_data_sync")
            digests = self._hashes.digests()
            record = chunks.Finished(self._generation, digests.md5, digests.sha256)
            disk.write(self._digest, memoryview(chunks.digest_record(record)), 0)
            crash_point("merge.after_digest_write")
            self._finished = digests
        if self._finished is None:
            raise Busy(self._upload.id)
        return self._finished

    def _sync_data(self) -> None:
        """Make the data durable before anybody believes its digests, unless the writers synced each chunk.

        If the sync fails, the digest file says so for as long as this machine runs: a second sync would succeed, with the
        bytes gone from memory and not on the disk (https://wiki.postgresql.org/wiki/Fsync_Errors).
        """
        if not chunks.parse_boot_id(disk.read(self._map, chunks.BOOT_ID_LENGTH, chunks.BOOT_ID_OFFSET)):
            return
        try:
            disk.sync_data(self._data)
        except OSError:
            disk.write(self._digest, memoryview(chunks.digest_record(chunks.DataLost())), 0)
            raise


# Brings the digests of open uploads up with their chunks.
#
# In each process one task, the follower, looks after an upload while its map grows. It hashes large chunks that come in
# order from memory, while their writers write them. It reads all others back from the page cache, small ones many at a
# time.
#
# Between processes the lock of the digest file decides, and no follower waits for it: the process that has it also
# hashes the chunks that the others have recorded. The merge waits for the follower, and so does a sender that is faster
# than it: no upload may come to its end with gigabytes left to hash.


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
