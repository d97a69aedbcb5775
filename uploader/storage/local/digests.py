"""The digests of open uploads on a disk: the `digest` file, and the followers that bring the digests up with the chunks.

In each process one task per upload, the follower, works while the map of the upload grows. It hashes large chunks that come
in order from memory, while they are written. It reads all other chunks back, many small chunks at a time.

Between processes the lock of the `digest` file decides, and no follower waits for it. The process with the lock hashes the
recorded chunks of the other processes, too, but never a chunk that is not on the map. It goes on from a saved state only if
this is certainly the state of the stored bytes. To start again at 0 is always right, and happens when an MD5 is told for an
upload that came without one.

The merge waits for the follower, and so does a sender that is faster than the follower: no upload should end with gigabytes
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

# Smaller chunks are gathered until there are this many bytes: to open and lock the digests costs more than to hash one small
# chunk. Larger chunks are hashed from memory while they are written.
GATHERED_BYTES = 1 << 20
# The sender of a chunk that begins further ahead of the digests has to wait. The wait ends when the digests are this near,
# or NEARER_BYTES further than at its beginning. So little is left to hash when the last chunk comes.
NEAR_BYTES = 16 << 20
NEARER_BYTES = 128 << 20
# After this many looks without progress, the follower takes the digests of another process to stand still.
LOOKS_IN_VAIN = 10
# Bytes of one upload that a thread hashes before another upload has a turn.
_TURN_BYTES = 32 << 20
# The longest turn on the core of the event loop.
_SHORT_TURN_BYTES = 4 << 20
# The longest time for which a follower gathers small chunks.
_GATHER_SECONDS = 0.5
# The pause of a follower after each look at the digests of another process.
_WATCH_SECONDS = 0.02


@dataclass(eq=False)
class Offer:
    """A chunk on its way to the disk. The follower may hash `body` as long as the body is kept."""

    upload: Upload
    body: Body | None = None
    # True if the writer put the chunk on the map, with these bytes.
    written: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False)
class Follower(Following):
    """The task that follows an upload, the offered chunks, and the facts that decide the next step."""

    offers: dict[int | None, Offer] = field(default_factory=dict)
    # The position of the digests, in bytes; None while no process is known to advance them.
    position: int | None = None
    # Bytes of chunks that came since the last round began, and need another round.
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
        """Note that the merge, or the end of the process, waits for this follower."""
        self.is_hurried = True
        self._enough.set()

    def has_enough(self) -> bool:
        return self.is_hurried or self.waiting_bytes >= GATHERED_BYTES

    async def gather(self) -> None:
        """Wait until enough bytes came, but not for long."""
        if self.has_enough():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_GATHER_SECONDS):
                await self._enough.wait()

    def move(self, position: int | None) -> None:
        """Note the position of the digests; None if no process is known to advance them."""
        self.position = position
        self.tell_senders()

    def look(self, position: int) -> bool:
        """Note the position of another process. Return whether to try for the lock again, because the digests still
        advance."""
        self._looks_in_vain = self._looks_in_vain + 1 if position == self.position else 0
        self.move(position)
        return self._looks_in_vain < LOOKS_IN_VAIN and not self.is_hurried

    def keeps_waiting(self, offset: int, begun: int, near_bytes: int) -> bool:
        """Return whether the sender of the chunk at `offset` has to wait on, because the digests are still far behind.
        `begun`: the position of the digests when the sender began to wait."""
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
        """Offer a body to the follower before its chunk is written. Settle the offer afterwards, even after an error."""
        offer = Offer(upload)
        if upload.chunk_size >= GATHERED_BYTES:
            follower = self._follow(upload)
            if follower and number not in follower.offers and self._bodies.keep(body, MAX_KEPT_BYTES):
                offer.body = body
                follower.offers[number] = offer
        return offer

    def _settle_offer(self, offer: Offer, *, written: bool) -> None:
        """Say whether the chunk is on the map with these bytes. Chunks without a kept body are read back."""
        if not offer.written.done():
            offer.written.set_result(written)
            if offer.body is None:
                self._follow(offer.upload)

    def follow(self, upload: Upload) -> None:
        self._follow(upload)

    def _follow(self, upload: Upload) -> Follower | None:
        """Start the follower of an upload, or note more work for it. The map has grown or is about to, or an MD5 was told
        and the stored chunks have to be read again."""
        if not states_are_portable() or upload.extent <= min(upload.chunk_size, GATHERED_BYTES):
            return None  # the merge hashes it at one go; after one small chunk the merge comes next anyway
        follower = self._followers.get(upload.id)
        if follower is None:
            follower = self._followers[upload.id] = Follower(upload)
            follower.task = asyncio.create_task(self._follow_chunks(follower), name=f"frontier {upload.id}")
        elif upload.needs_md5:
            follower.upload = upload  # the MD5 may have been told since
        follower.grow(upload.chunk_size)
        return follower

    async def keep_pace(self, upload: Upload, number: int) -> None:
        follower, offset = self._followers.get(upload.id), number * upload.chunk_size
        if follower is not None and (begun := follower.position) is not None:
            await follower.wait_while(lambda: follower.keeps_waiting(offset, begun, self._near_bytes(upload)))

    def _near_bytes(self, upload: Upload) -> int:
        """Return how far ahead of the digests a chunk may begin. All uploads share the memory for bodies. The share of an
        upload has to hold two chunks already: the chunk being hashed, and the next chunk, which comes meanwhile."""
        if upload.chunk_size < GATHERED_BYTES:
            return NEAR_BYTES  # bodies of small chunks are not kept
        share = MAX_KEPT_BYTES // max(len(self._followers), 1) - 2 * upload.chunk_size
        return min(NEAR_BYTES, max(share, 0))

    # The follower

    async def _follow_chunks(self, follower: Follower) -> None:
        """Gather, then hash, or watch another process that has the digests. Errors end the follower in silence: the store
        has logged them where they happened, and the merge meets them again."""
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
        """Advance the digests up to the first gap. Return False if another process has the lock."""
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
                # The next chunk is not offered and may never come, so the follower keeps no bodies until then.
                self._drop_offers(follower, *follower.offers)
        if has_digests:
            follower.move(None)
        return has_digests

    async def _advance_by_turns(self, follower: Follower) -> bool:
        """Advance over chunks on the map only. Each turn takes one hop to a thread; `_taken_up` takes three."""
        most = 1 if follower.is_hurried else len(self._followers)
        turn = await self._company.take(partial(self._turn, follower.upload, _SHORT_TURN_BYTES), most)
        while turn is not None and turn[0]:
            follower.move(turn[1])
            self.check_stopping()
            turn = await self.threads.long_hashing.run(self._hash_turn, follower.upload)
        return turn is not None

    async def _advance_once(self, follower: Follower, digests: "LockedDigests") -> bool:
        """Hash the next chunk from memory, or the next chunks on the map. Return whether there may be more."""
        number = digests.next_chunk
        offer = follower.offers.get(number)
        if offer is None:
            more = await self.threads.digesting.run(digests.hash_recorded, follower.offers.__contains__)
            return more or digests.next_chunk in follower.offers
        await self.threads.digesting.run(digests.hash_body, offer.body)
        # No deadlock: the writer of the chunk has its record locked, and waits for nothing but the disk.
        written = await offer.written
        await self.threads.hashing.run(digests.save if written else digests.load)
        self._drop_offers(follower, number)
        return True

    async def _watch_others(self, follower: Follower) -> bool:
        """Look at the position of another process. Return whether to try for the lock once more."""
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
                # In a thread: the last close of a large unlinked file waits until the kernel has freed the blocks.
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
        """Lock, hash for one turn, unlock. Return whether there was more to hash, and the position at the end, in bytes;
        None if another process has the lock. Raises Gone."""
        locked = self._digests.try_lock(upload)
        if locked is None:
            return None
        with closing(locked):
            return (yield from locked.turn(room, turn_bytes)), locked.position

    def _finish_digests(self, upload: Upload) -> Digests:
        """Lock, hash all that is left, unlock. Return the digests of the whole content. Raises Gone, Busy, StorageFailed."""
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
    _root: disk.Directory
    _boot_id: str

    def try_lock(self, upload: Upload) -> "LockedDigests | None":
        """Lock the digests of an upload and load the saved state. Return None if another process has the lock. Raises Gone,
        and StorageFailed if the disk lost bytes."""
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
                    # The length was told meanwhile: the last chunk may be shorter than the caller believes.
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
        """Return a descriptor of the digest file, to lock it. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            return _open(directory)

    def forget(self, upload: Upload, *, checked: bool = False) -> None:
        """Let the digests start again at 0. If the disk lost bytes, do this only if the stored bytes were `checked` since.
        Raises Gone, Busy."""
        with disk.opened(self.open(upload)) as descriptor:
            if not try_lock(descriptor, 0, 0):
                raise Busy(upload.id)
            if checked or not isinstance(_read(descriptor), chunks.DataLost):
                self.forget_locked(descriptor, upload.generation)

    def forget_locked(self, digest: int, generation: int) -> None:
        """Let the digests start again at 0, as digests of `generation`; the caller has the lock.

        Needs no sync: a power cut may bring an older record back, but `load` does not use a record of another boot or an
        older generation.
        """
        known = _read(digest)
        if isinstance(known, (chunks.SavedProgress, chunks.Finished)):
            generation = max(generation, known.generation)
        _write(digest, chunks.SavedProgress(generation, self._boot_id, 0, b""))

    def check(self, upload: Upload, sha256: str) -> None:
        """Raises Busy if the saved digests are not finished with this SHA-256, because they were forgotten since; Gone. A
        damaged file passes. The caller holds all locks of the map."""
        saved = self._saved(upload)
        if saved is not None and not (isinstance(saved, chunks.Finished) and saved.sha256 == sha256):
            raise Busy(upload.id)

    def _saved(self, upload: Upload) -> chunks.DigestRecord | None:
        with disk.opened(self.open(upload)) as descriptor:
            return _read(descriptor)

    def position(self, upload: Upload) -> int:
        """Return the position of the saved digests, in bytes. Raises Gone."""
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
    """Return the digest file. Make a lost one again, unless the map is lost, too: an ending upload loses the map first."""
    with suppress(FileNotFoundError):
        return directory.open_to_write("digest")
    directory.status("map")
    with suppress(FileNotFoundError):
        directory.make_way("digest")
    with suppress(FileExistsError):
        directory.create_empty("digest")
    return directory.open_to_write("digest")


def _open_checksums(directory: disk.Directory) -> int | None:
    """Return the list of block checksums, made if it is missing; None if that fails: the scrub makes the list later."""
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
    """The list of block checksums of an open upload. It grows with the digests, and its pages get their checksums at the
    end. The holder of the digests' lock writes here before it saves the digests."""

    descriptor: int

    def write(self, block: int, checksums: bytes) -> bool:
        """Write the checksums of the blocks from this one on. Return False if this failed."""
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
        """Complete the list with the last checksums."""
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
    """The digests of one upload, with the lock of their file. Close them after use."""

    # Set by `load`.
    _finished: Digests | None
    _hashes: PrefixHashes
    close: Callable[[], None]

    def __init__(
        self, upload: Upload, digest: int, chunk_map: int, data: int, checksums: int | None, *, boot_id: str
    ) -> None:
        """`checksums`: the list of block checksums; None if nobody wants a list, or there is no place for one."""
        self._upload = upload
        self._digest, self._map, self._data = digest, chunk_map, data
        self._checksums = None if checksums is None else ListDraft(checksums)
        self._boot_id = boot_id
        self._generation = upload.generation
        self._count = chunk_count(upload.extent, upload.chunk_size)

    def load(self) -> None:
        """Go on from the saved state, or start at 0. Raises StorageFailed if the disk lost bytes.

        A later generation than the caller's was saved after a withdrawal that the caller has not heard of. That state is
        used, and this process saves with the later generation, too.
        """
        saved, needs_md5 = _read(self._digest), self._upload.needs_md5
        self._finished, self._hashes = None, PrefixHashes(with_md5=needs_md5, blocks=self._blocks_from(0, 0))
        match saved:
            case chunks.DataLost():
                raise StorageFailed("The disk lost bytes of this upload; what it still has is looked at.")
            # A saved MD5 is welcome even if this process needs none: another process may have been told one.
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
        """Return whether `position` is the end of a chunk, and the map has all chunks before it."""
        count, rest = divmod(position, self._upload.chunk_size)
        if rest and position == self._upload.extent:
            count, rest = count + 1, 0
        if rest or not 0 <= count <= self._count:
            return False
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * count, chunks.MAP_RECORDS_OFFSET)
        return chunks.are_present(records, count)

    def save(self) -> None:
        """Save the state without a sync. After a power cut the digests start at 0 or at an earlier state, and the chunks of
        that state are on the disk."""
        state, partial = self._hashes.state(), self._save_checksums()
        saved = chunks.SavedProgress(self._generation, self._boot_id, self._hashes.position, state, partial)
        _write(self._digest, saved)
        crash_point("frontier.after_save")

    def _save_checksums(self) -> int | None:
        """Write the checksums of whole blocks. Return the checksum of the block after them; None if the list can't be
        written."""
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
        """Hash the next chunk from the writer's body. Call `save` once the chunk is on the map."""
        self._hashes.update_by(body.pieces, body.length)

    def hash_recorded(self, leave: Callable[[int], bool] = lambda _number: False) -> bool:
        """Hash chunks on the map for one long turn, as `turn` does. Raises Gone."""
        return take(self.turn(room(), _TURN_BYTES, leave))

    def turn(
        self, room: memoryview, turn_bytes: int, leave: Callable[[int], bool] = lambda _number: False
    ) -> Turn[bool]:
        """Yield bytes of the next chunks on the map to be hashed, for one turn; then save. Return whether the turn ended
        before the chunks did.

        Stop before a chunk for which `leave` is true, because the follower hashes this chunk from memory. Raises Gone.
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
        """Return the checksums of the chunks to hash at one go: as many chunks as fit into `length`, and at least one."""
        number = self.next_chunk
        if number is None:
            return []
        chunk_size = self._upload.chunk_size
        at_once = min(max(min(length, READ_BYTES) // chunk_size, 1), self._count - number)
        # Read the map before asking `leave`: a writer offers its chunk before the chunk gets on the map, so `leave` knows
        # the offers of all chunks found here.
        records = disk.read(self._map, chunks.MAP_RECORD_LENGTH * at_once, chunks.map_record_offset(number))
        checksums = chunks.leading_checksums(records)
        ours = next((n for n in range(len(checksums)) if leave(number + n)), len(checksums))
        return checksums[:ours]

    def _read_chunks(self, checksums: list[int], room: memoryview) -> Iterator[tuple[PrefixHashes, memoryview]]:
        """Yield the bytes of the next chunks. Raises OSError if the disk does not give back the bytes with these
        checksums."""
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
        """Return the digests of the whole content, after saving them. Raises Busy if a withdrawal took a chunk meanwhile."""
        if self._finished is None and self._hashes.position == self._upload.extent:
            digests = self._hashes.digests()
            if self._checksums is not None and self._hashes.blocks is not None:
                self._checksums.end(digests.sha256, self._upload.size, self._hashes.blocks.end())
            self._sync_data()
            crash_point("merge.after_data_sync")
            # Needs no sync: after a power cut the merge hashes again.
            _write(self._digest, chunks.Finished(self._generation, digests.md5, digests.sha256))
            crash_point("merge.after_digest_write")
            self._finished = digests
        if self._finished is None:
            raise Busy(self._upload.id)
        return self._finished

    def _sync_data(self) -> None:
        """Make the data durable before anybody uses its digests. If the writers synced each chunk, nothing is left to do.

        If the sync fails, the digest file says so until the next boot: a second sync would succeed, although the bytes are
        neither in memory nor on the disk (https://wiki.postgresql.org/wiki/Fsync_Errors).
        """
        if not chunks.parse_boot_id(disk.read(self._map, chunks.BOOT_ID_LENGTH, chunks.BOOT_ID_OFFSET)):
            return
        try:
            disk.sync_data(self._data)
        except OSError:
            _write(self._digest, chunks.DataLost())
            raise
