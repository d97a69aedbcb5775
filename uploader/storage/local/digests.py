"""The digests of open uploads on a disk: the `digest` file, and the followers that bring them up with the chunks.

In each process one task, the follower, looks after an upload while its map grows. It hashes large chunks that come in
order from memory, while their writers write them. It reads all others back, small ones many at a time.

Between processes the lock of the file decides, and no follower waits for it: the process that has it also hashes the chunks
that the others have recorded, and none that is not on the map. It goes on from a saved state only if that is certainly the
state of these bytes; to start again at 0 is always right. So it does where an MD5 is told of an upload that came without.

The merge waits for the follower, and so does a sender that is faster than it: no upload may come to its end with gigabytes
left to hash.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial

from isal.isal_zlib import crc32

from uploader.domain.upload import Upload, chunk_count
from uploader.errors import StorageFailed, UploaderError
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.tasks import uninterrupted
from uploader.storage import disk
from uploader.storage.base import Body, Busy, Digests, Gone, Stopping
from uploader.storage.disk import try_lock
from uploader.storage.hashes import (
    BLOCK_BYTES,
    BLOCK_CHECKSUM,
    LIST_HEADER_LENGTH,
    LIST_PAGE_BYTES,
    LIST_PAGE_CHECKSUMS,
    MAX_KEPT_BYTES,
    READ_BYTES,
    BlockChecksums,
    Bodies,
    Following,
    PrefixHashes,
    Turn,
    are_blocks_listed,
    is_without_md5,
    list_of,
    list_offset,
    room,
    states_are_portable,
    take,
)
from uploader.storage.local import chunks
from uploader.storage.local.chunks import shape_of
from uploader.storage.local.directories import upload_directory
from uploader.storage.local.turns import Company
from uploader.storage.store import Store

logger = logging.getLogger(__name__)

# Smaller chunks are gathered until there are so many bytes: to take up the digests costs more than to hash one such chunk.
# Larger ones are hashed from memory while they are written.
GATHERED_BYTES = 1 << 20
# The sender of a chunk that begins further ahead of the digests waits until they are near, so that little is left to hash
# when the last chunk comes; or until they have come so much nearer.
NEAR_BYTES = 16 << 20
NEARER_BYTES = 128 << 20
# So many looks have to find the digests of another process where they were before the follower takes them to stand still.
LOOKS_IN_VAIN = 10
# A thread hashes so much of one upload before another upload has its turn: none waits for another one's hundred gigabytes.
_TURN_BYTES = 32 << 20
# So much at the most on the core of the event loop.
_SHORT_TURN_BYTES = 4 << 20
# A follower gathers small chunks for so long at most.
_GATHER_SECONDS = 0.5
# How long a follower pauses after each look at the digests of another process.
_WATCH_SECONDS = 0.02


@dataclass(eq=False)
class Offer:
    """A chunk on its way to the disk. The follower may hash it from `body` while that is kept."""

    upload: Upload
    body: Body | None = None
    # Whether its writer put it on the map, with these bytes.
    written: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class Follower(Following):
    """The task that looks after an upload, the offers that it may take, and the facts that decide what it does next."""

    offers: dict[int | None, Offer] = field(default_factory=dict)
    # How far the digests are, in bytes; None while no process is known to bring them any further.
    position: int | None = None
    # Of chunks that came since it began to hash, and need another round.
    waiting_bytes: int = 0
    is_hurried: bool = False
    _looks_in_vain: int = 0
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_round(self) -> None:
        self.waiting_bytes = 0
        self._enough.clear()

    def grow(self, length: int) -> None:
        """Note that a chunk was stored, or is about to be."""
        self.waiting_bytes += length
        if self.has_enough():
            self._enough.set()

    def hurry(self) -> None:
        """Note that the merge, or the end of the process, waits for the follower to end."""
        self.is_hurried = True
        self._enough.set()

    def has_enough(self) -> bool:
        return self.is_hurried or self.waiting_bytes >= GATHERED_BYTES

    async def gather(self) -> None:
        """Wait until enough chunks came, but not for long."""
        if self.has_enough():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                await self._enough.wait()

    def move(self, position: int | None) -> None:
        """Note how far the digests are; None if no process is known to bring them any further."""
        self.position = position
        self.tell_senders()

    def look(self, position: int) -> bool:
        """Note how far another process is; returns whether to try for the digests once more, because they still move."""
        self._looks_in_vain = self._looks_in_vain + 1 if position == self.position else 0
        self.move(position)
        return self._looks_in_vain < LOOKS_IN_VAIN and not self.is_hurried

    def keeps_waiting(self, offset: int, begun: int, near_bytes: int) -> bool:
        """Return whether the sender of the chunk at `offset` has to go on waiting, as the digests are still far behind it;
        they were at `begun` when it began to wait."""
        if self.position is None:
            return False
        return offset - self.position > near_bytes and self.position - begun < NEARER_BYTES


class LocalDigests(Store):
    """Follows the open uploads of this process."""

    _digests: "DigestFiles"
    _followers: dict[str, Follower]
    _company: Company
    _bodies: Bodies

    # Chunks come

    def _offer(self, upload: Upload, number: int, body: Body) -> Offer:
        """Before a writer stores a chunk, it offers the body here. Afterwards it has to settle the offer, in any case."""
        offer = Offer(upload)
        if upload.chunk_size >= GATHERED_BYTES:
            follower = self._follow(upload)
            if follower and number not in follower.offers and self._bodies.keep(body, MAX_KEPT_BYTES):
                offer.body = body
                follower.offers[number] = offer
        return offer

    def _settle_offer(self, offer: Offer, *, written: bool) -> None:
        """Say whether the chunk is on the map, with these bytes. What the follower does not have it reads back."""
        if not offer.written.done():
            offer.written.set_result(written)
            if offer.body is None:
                self._follow(offer.upload)

    def follow(self, upload: Upload) -> None:
        self._follow(upload)

    def _follow(self, upload: Upload) -> Follower | None:
        """Look after an upload: its map has grown, or is about to; or its MD5 was told, and what is there has to be read
        again."""
        if not states_are_portable() or upload.extent <= min(upload.chunk_size, GATHERED_BYTES):
            return None  # the merge hashes all of it at one go; of one small chunk, the merge is the next thing to come
        follower = self._followers.get(upload.id)
        if follower is None:
            follower = self._followers[upload.id] = Follower(upload)
            follower.task = asyncio.create_task(self._follow_chunks(follower), name=f"frontier {upload.id}")
        elif upload.needs_md5:
            follower.upload = upload  # it may have been told since
        follower.grow(upload.chunk_size)
        return follower

    async def keep_pace(self, upload: Upload, number: int) -> None:
        follower, offset = self._followers.get(upload.id), number * upload.chunk_size
        if follower is not None and (begun := follower.position) is not None:
            await follower.wait_while(lambda: follower.keeps_waiting(offset, begun, self._near_bytes(upload)))

    def _near_bytes(self, upload: Upload) -> int:
        """Return how far ahead a chunk may begin. Each of many uploads has a share of the bodies that are kept: a chunk that
        is hashed, and one that comes meanwhile, are in it before anybody is ahead."""
        if upload.chunk_size < GATHERED_BYTES:
            return NEAR_BYTES  # its bodies are not kept
        share = MAX_KEPT_BYTES // max(len(self._followers), 1) - 2 * upload.chunk_size
        return min(NEAR_BYTES, max(share, 0))

    # The follower

    async def _follow_chunks(self, follower: Follower) -> None:
        """Gather, then hash, or watch another process that has the digests. Errors end it in silence: the storage has logged
        them where they happened, and the merge meets them again."""
        try:
            with suppress(Gone, Stopping, UploaderError):
                is_growing = True
                while is_growing:
                    await follower.gather()
                    while not await self._advance_digests(follower):
                        if not await self._watch_others(follower):
                            break
                    is_growing = follower.waiting_bytes > 0
        finally:
            self._drop_offers(follower, *follower.offers)
            del self._followers[follower.upload.id]
            follower.move(None)

    async def _advance_digests(self, follower: Follower) -> bool:
        """Advance the digests up to the first gap; False if another process has them."""
        follower.begin_round()
        if follower.upload.chunk_size < GATHERED_BYTES:
            has_digests = await self._advance_by_turns(follower)
        else:
            async with self._taken_up(follower.upload) as digests:
                has_digests = digests is not None
                while digests is not None:
                    follower.move(digests.position)
                    if not await self._advance_once(follower, digests):
                        break
                    self.check_stopping()
                # No offered chunk is next. The chunk that is next may never come, so the follower keeps no bodies until
                # then.
                self._drop_offers(follower, *follower.offers)
        if has_digests:
            follower.move(None)
        return has_digests

    async def _advance_by_turns(self, follower: Follower) -> bool:
        """Advance over chunks on the map alone: one hop to a thread for each turn, where `_taken_up` takes three."""
        most = 1 if follower.is_hurried else len(self._followers)
        turn = await self._company.take(partial(self._turn, follower.upload, _SHORT_TURN_BYTES), most)
        while turn is not None and turn[0]:
            follower.move(turn[1])
            self.check_stopping()
            turn = await self.threads.long_hashing.run(self._hash_turn, follower.upload)
        return turn is not None

    async def _advance_once(self, follower: Follower, digests: "LockedDigests") -> bool:
        """Hash the chunk that is next, or those that are on the map; returns whether there may be more."""
        number = digests.next_chunk
        offer = follower.offers.get(number)
        if offer is None:
            more = await self.threads.digesting.run(digests.hash_recorded, follower.offers.__contains__)
            return more or digests.next_chunk in follower.offers
        await self.threads.digesting.run(digests.hash_body, offer.body)
        # No deadlock: the chunk's writer has the lock of its record, and waits for nothing but the disk.
        written = await offer.written
        await self.threads.hashing.run(digests.save if written else digests.load)
        self._drop_offers(follower, number)
        return True

    async def _watch_others(self, follower: Follower) -> bool:
        """Look how far another process is; returns whether to try for the digests once more."""
        once_more = follower.look(await self.threads.hashing.run(self._digests.position, follower.upload))
        await asyncio.sleep(_WATCH_SECONDS)
        return once_more

    def _drop_offers(self, follower: Follower, *numbers: int | None) -> None:
        for number in numbers:
            offer = follower.offers.pop(number)
            assert offer.body is not None
            self._bodies.close(offer.body)
            offer.body = None

    @asynccontextmanager
    async def _taken_up(self, upload: Upload) -> AsyncIterator["LockedDigests | None"]:
        digests = await self.threads.hashing.run(self._digests.try_lock, upload)
        try:
            yield digests
        finally:
            if digests is not None:
                # In a thread: the last close of a large unlinked file waits until the kernel has freed its blocks.
                await uninterrupted(self.threads.long_hashing.run(digests.close))

    # Their readers

    async def digested_bytes(self, upload: Upload) -> int:
        return await self.threads.disk.run(self._digests.position, upload)

    async def forget_digests(self, upload: Upload) -> None:
        await self.threads.disk.run(lambda: self._digests.forget(upload, checked=True))

    async def digest(self, upload: Upload) -> Digests:
        follower = self._followers.get(upload.id)
        if follower is not None:
            follower.hurry()
            self._company.hurry()
            await follower.ended()
        self.check_stopping()
        if upload.size <= GATHERED_BYTES:
            return await self.threads.hashing.run(self._finish_digests, upload)
        async with self._taken_up(upload) as digests:
            if digests is None:
                raise Busy(upload.id)
            while await self.threads.digesting.run(digests.hash_recorded):
                self.check_stopping()
            return await self.threads.hashing.run(digests.finish)

    async def drain(self) -> None:
        while self._followers:
            for follower in self._followers.values():
                follower.hurry()
            self._company.hurry()
            for follower in list(self._followers.values()):
                await follower.ended()

    # In threads

    def _hash_turn(self, upload: Upload) -> tuple[bool, int] | None:
        return take(self._turn(upload, _TURN_BYTES, room()))

    def _turn(self, upload: Upload, turn_bytes: int, room: memoryview) -> Turn[tuple[bool, int] | None]:
        """Lock, hash for one turn, unlock. Returns whether there was more, and where the turn ended, in bytes; None if
        another process has the lock. Raises Gone."""
        locked = self._digests.try_lock(upload)
        if locked is None:
            return None
        with closing(locked):
            return (yield from locked.turn(room, turn_bytes)), locked.position

    def _finish_digests(self, upload: Upload) -> Digests:
        """Lock, hash all that is left, unlock: the digests of the whole. Raises Gone, Busy, StorageFailed."""
        locked = self._digests.try_lock(upload)
        if locked is None:
            raise Busy(upload.id)
        with closing(locked):
            while locked.hash_recorded():
                pass
            return locked.finish()


# In threads


@dataclass(frozen=True)
class DigestFiles:
    """Opens digest files."""

    _root: disk.Directory
    _boot_id: str

    def try_lock(self, upload: Upload) -> "LockedDigests | None":
        """Lock, and return, the digests as they were saved; None if another process has their lock. Raises Gone, and
        StorageFailed if the disk lost bytes."""
        with upload_directory(self._root, upload) as directory, ExitStack() as opened:
            digest = _open(directory)
            opened.callback(disk.close, digest)
            if not try_lock(digest, 0, 0):
                return None
            chunk_map = directory.open_to_read("map")
            opened.callback(disk.close, chunk_map)
            if not upload.length_known:
                header = disk.read(chunk_map, chunks.MAP_RECORDS_OFFSET, 0)
                if chunks.boot_id_of(header, shape_of(upload)) is None:
                    # The length was told meanwhile: the last chunk may be a shorter one than the caller knows of.
                    raise Gone(upload.id)
            data = directory.open_to_read("data")
            opened.callback(disk.close, data)
            checksums = _open_checksums(directory) if are_blocks_listed(upload.extent) else None
            if checksums is not None:
                opened.callback(disk.close, checksums)
            locked = LockedDigests(upload, digest, chunk_map, data, checksums, boot_id=self._boot_id)
            locked.load()
            locked.close = opened.pop_all().close
        return locked

    def open(self, upload: Upload) -> int:
        """Return a descriptor to take the lock by. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return _open(directory)

    def forget(self, upload: Upload, *, checked: bool = False) -> None:
        """Let the digests start again at 0; but where the disk lost bytes, only if what it has was `checked` since. Raises
        Gone, Busy."""
        with disk.opened(self.open(upload)) as descriptor:
            if not try_lock(descriptor, 0, 0):
                raise Busy(upload.id)
            if checked or not isinstance(_read(descriptor), chunks.DataLost):
                self.forget_locked(descriptor, upload.generation)

    def forget_locked(self, digest: int, generation: int) -> None:
        """Forget as `forget`, where the caller has the lock, and the digests are of `generation` from here on.

        Needs no sync: what a power cut brings back is of another boot or of an older generation, so `load` does not believe
        it.
        """
        known = _read(digest)
        if isinstance(known, (chunks.SavedProgress, chunks.Finished)):
            generation = max(generation, known.generation)
        _write(digest, chunks.SavedProgress(generation, self._boot_id, 0, b""))

    def check(self, upload: Upload, sha256: str) -> None:
        """Raises Busy if what was computed last is not this, because the digests were forgotten since; the caller holds all
        locks of the map. A file that is damaged says nothing. Raises Gone."""
        saved = self._saved(upload)
        if saved is not None and not (isinstance(saved, chunks.Finished) and saved.sha256 == sha256):
            raise Busy(upload.id)

    def _saved(self, upload: Upload) -> chunks.DigestRecord | None:
        with disk.opened(self.open(upload)) as descriptor:
            return _read(descriptor)

    def position(self, upload: Upload) -> int:
        """Return how far the digests were when they were saved last, in bytes. Raises Gone."""
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
    """Return the digest file; made anew where it was lost. The map goes first where an upload ends."""
    with suppress(FileNotFoundError):
        return directory.open_to_write("digest")
    directory.status("map")
    with suppress(FileNotFoundError):
        directory.make_way("digest")
    with suppress(FileExistsError):
        directory.create_empty("digest")
    return directory.open_to_write("digest")


def _open_checksums(directory: disk.Directory) -> int | None:
    """Return the list of the blocks' checksums, new where it is not there; None where that can't be: it is made later."""
    try:
        with suppress(FileNotFoundError):
            return directory.open_to_write("checksums")
        with suppress(FileNotFoundError):
            directory.make_way("checksums")
        return directory.create_to_write("checksums")
    except OSError:
        _tell_of_no_list()
        return None


def _read(digest: int) -> chunks.DigestRecord | None:
    return chunks.parse_digest_record(disk.read(digest, chunks.DIGEST_RECORD_LENGTH, 0))


def _write(digest: int, record: chunks.DigestRecord) -> None:
    disk.write(digest, memoryview(chunks.digest_record(record)), 0)


@dataclass(eq=False)
class ListDraft:
    """The list of an open upload, which grows with its digests: until the end no page has a checksum. It has the lock of the
    digests, and says what it wrote before they do."""

    descriptor: int

    def write(self, block: int, checksums: bytes) -> bool:
        """Write the checksums of the blocks from this one on; False if they can't be."""
        try:
            while checksums:
                page = checksums[: (LIST_PAGE_CHECKSUMS - block % LIST_PAGE_CHECKSUMS) * BLOCK_CHECKSUM.size]
                disk.write(self.descriptor, memoryview(page), list_offset(block))
                block, checksums = block + len(page) // BLOCK_CHECKSUM.size, checksums[len(page) :]
        except OSError:
            _tell_of_no_list()
            return False
        return True

    def end(self, sha256: str, size: int, checksums: bytes) -> None:
        """Make it whole with the last checksums."""
        try:
            written = -(-size // BLOCK_BYTES) - len(checksums) // BLOCK_CHECKSUM.size
            content = disk.read(self.descriptor, list_offset(written) - LIST_HEADER_LENGTH, LIST_HEADER_LENGTH)
            length = LIST_PAGE_CHECKSUMS * BLOCK_CHECKSUM.size
            before = b"".join(content[at : at + length] for at in range(0, len(content), LIST_PAGE_BYTES))
            made = list_of(sha256, size, before + checksums)
            disk.write(self.descriptor, memoryview(made), 0)
            disk.resize(self.descriptor, len(made))
        except OSError:
            _tell_of_no_list()


def _tell_of_no_list() -> None:
    logger.warning("the checksums of blocks can't be written: the scrub will make them", exc_info=True)


class LockedDigests:
    """The digests of one upload, the lock of their file held. Close it."""

    # They are there once `load` was called.
    _finished: Digests | None
    _hashes: PrefixHashes
    close: Callable[[], None]

    def __init__(
        self, upload: Upload, digest: int, chunk_map: int, data: int, checksums: int | None, *, boot_id: str
    ) -> None:
        """`checksums`: None, if nobody wants those of its blocks, or there is no place for them."""
        self._upload = upload
        self._digest, self._map, self._data = digest, chunk_map, data
        self._checksums = None if checksums is None else ListDraft(checksums)
        self._boot_id = boot_id
        self._generation = upload.generation
        self._count = chunk_count(upload.extent, upload.chunk_size)

    def load(self) -> None:
        """Go on from what was saved, or start at 0. Raises StorageFailed if the disk lost bytes.

        What is of a later generation than the caller knows of was saved after a withdrawal that the caller has not heard of:
        it is believed, and what this process saves is of that generation, too.
        """
        saved, needs_md5 = _read(self._digest), self._upload.needs_md5
        self._finished, self._hashes = None, PrefixHashes(with_md5=needs_md5, blocks=self._blocks_from(0, 0))
        match saved:
            case chunks.DataLost():
                raise StorageFailed("The disk lost bytes of this upload; what it still has is looked at.")
            # More than what this process knows to be needed is enough: an MD5 may have been told to another one.
            case chunks.Finished() if saved.generation == self._generation and (saved.md5 or not needs_md5):
                self._finished = Digests(md5=saved.md5, sha256=saved.sha256)
            case chunks.SavedProgress() if saved.generation >= self._generation and saved.boot_id == self._boot_id:
                self._generation = saved.generation
                restored = PrefixHashes.restore(saved.position, saved.state, needs_md5=needs_md5)
                if restored is not None and self._are_recorded(saved.position):
                    restored.blocks = self._blocks_from(saved.position, saved.partial)
                    self._hashes = restored

    def _blocks_from(self, position: int, partial: int | None) -> BlockChecksums | None:
        return None if self._checksums is None or partial is None else BlockChecksums(position, partial)

    def _are_recorded(self, position: int) -> bool:
        """Return whether a position is the end of a chunk, and all chunks before it are on the map."""
        count, rest = divmod(position, self._upload.chunk_size)
        if rest and position == self._upload.extent:
            count, rest = count + 1, 0
        if rest or not 0 <= count <= self._count:
            return False
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * count, chunks.MAP_RECORDS_OFFSET)
        return chunks.are_present(records, count)

    def save(self) -> None:
        """Save the state, without a sync: after a power cut the digests start at 0, or at a state that was saved earlier,
        of chunks that are on the disk."""
        state, partial = self._hashes.state(), self._save_checksums()
        saved = chunks.SavedProgress(self._generation, self._boot_id, self._hashes.position, state, partial)
        _write(self._digest, saved)
        crash_point("frontier.after_save")

    def _save_checksums(self) -> int | None:
        """Write those of the blocks that are whole; return that of what there is of the next one, None if they are lost."""
        computing = self._hashes.blocks
        if self._checksums is None or computing is None or not self._checksums.write(*computing.take()):
            self._hashes.blocks = None
            return None
        return computing.partial

    @property
    def next_chunk(self) -> int | None:
        """The number of the chunk to hash next; None after the last one."""
        if self._finished is not None or self._hashes.position == self._upload.extent:
            return None
        return self._hashes.position // self._upload.chunk_size

    @property
    def position(self) -> int:
        return self._hashes.position

    def hash_body(self, body: Body) -> None:
        """Hash the next chunk from the body that its writer is storing. Call `save` once the writer put it on the map."""
        self._hashes.update_by(body.pieces, body.length)

    def hash_recorded(self, leave: Callable[[int], bool] = lambda _number: False) -> bool:
        """Hash chunks as `turn` says, for a long one. Raises Gone."""
        return take(self.turn(room(), _TURN_BYTES, leave))

    def turn(
        self, room: memoryview, turn_bytes: int, leave: Callable[[int], bool] = lambda _number: False
    ) -> Turn[bool]:
        """Yield what is to be hashed next of the chunks that are on the map, for one turn, then save. Returns whether the
        turn ended before the chunks did.

        It stops before a chunk that `leave` names, which the follower hashes from memory. Raises Gone.
        """
        if disk.is_unlinked(self._map):
            raise Gone(self._upload.id)
        start = self._hashes.position
        end = start + turn_bytes
        while (left := end - self._hashes.position) > 0:
            checksums = self._next_recorded(left, leave)
            if not checksums:
                break
            yield from self._read_chunks(checksums, room)
        if self._hashes.position > start:
            self.save()
        return left <= 0

    def _next_recorded(self, length: int, leave: Callable[[int], bool]) -> list[int]:
        """Return the checksums of the chunks that can be hashed at one go: as many as fit into `length`, and one at
        least."""
        number = self.next_chunk
        if number is None:
            return []
        chunk_size = self._upload.chunk_size
        at_once = min(max(min(length, READ_BYTES) // chunk_size, 1), self._count - number)
        # Read the map before asking `leave`: a writer offers its chunk before it puts it on the map, so that no chunk found
        # here comes from an offer that `leave` does not know.
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * at_once, chunks.map_record_offset(number))
        checksums = chunks.leading_checksums(records)
        ours = next((n for n in range(len(checksums)) if leave(number + n)), len(checksums))
        return checksums[:ours]

    def _read_chunks(self, checksums: list[int], room: memoryview) -> Iterator[tuple[PrefixHashes, memoryview]]:
        """Yield the next chunks, which were stored with these checksums; other bytes than those are an error of the disk."""
        chunk_size = self._upload.chunk_size
        expected = dict(enumerate(checksums, self._hashes.position // chunk_size))
        end = min((max(expected) + 1) * chunk_size, self._upload.extent)
        checksum = 0
        while (position := self._hashes.position) < end:
            piece = room[: end - position]
            count = disk.read_into(self._data, piece, position)
            if not count:
                raise OSError(errno.EIO, "the data file does not have the size of its upload")
            left = piece[:count]
            while len(left):
                number = position // chunk_size
                chunk_end = min((number + 1) * chunk_size, self._upload.extent)
                part = left[: chunk_end - position]
                left, position = left[len(part) :], position + len(part)
                checksum = crc32(part, checksum)
                if position == chunk_end:
                    if checksum != expected[number]:
                        raise OSError(
                            errno.EIO, f"chunk {number} of upload {self._upload.id} does not have its checksum"
                        )
                    checksum = 0
            yield self._hashes, piece[:count]

    def finish(self) -> Digests:
        """Return the digests of the whole, once they are saved. Raises Busy if a withdrawal took a chunk meanwhile."""
        if self._finished is None and self._hashes.position == self._upload.extent:
            digests = self._hashes.digests()
            if self._checksums is not None and self._hashes.blocks is not None:
                self._checksums.end(digests.sha256, self._upload.size, self._hashes.blocks.end())
            self._sync_data()
            crash_point("merge.after_data_sync")
            # It needs no sync: after a power cut the merge hashes again.
            _write(self._digest, chunks.Finished(self._generation, digests.md5, digests.sha256))
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
            _write(self._digest, chunks.DataLost())
            raise
