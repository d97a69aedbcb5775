"""The `digest` file of an open upload: the digests of its contiguous prefix, advanced as chunks come, and saved.

The process that has the lock of the file advances the digests, over chunks that are on the map and no others. It goes on
from a saved state only if that is certainly the state of these bytes; to start again at 0 is always right. So it does where
an MD5 is told of an upload that came without. Runs in threads.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

# The CRC-32 of zlib, by instructions for it: in a fraction of the time.
from isal.isal_zlib import crc32

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload, chunk_count
from uploader.errors import StorageFailed
from uploader.storage import disk
from uploader.storage.base import Busy, Digests, Gone
from uploader.storage.disk import try_lock
from uploader.storage.followers import LockedPrefix
from uploader.storage.hashes import PrefixHashes, is_without_md5
from uploader.storage.local import chunks
from uploader.storage.local.chunks import shape_of
from uploader.storage.local.directories import upload_directory

_READ_BYTES = 1 << 20

_memory = threading.local()


def _buffer() -> memoryview:
    """Memory that this thread reads into and never frees: to get fresh memory costs more than to read into it."""
    if not hasattr(_memory, "buffer"):
        _memory.buffer = memoryview(bytearray(_READ_BYTES))
    buffer: memoryview = _memory.buffer
    return buffer


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

    def open(self, upload: Upload) -> int:
        """A descriptor to take the lock by. Raises Gone."""
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
        with disk.opened(self.open(upload)) as descriptor:
            return _read(descriptor)

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


class LockedDigests(LockedPrefix):
    """The digests of one upload, the lock of their file held. Close it."""

    def __init__(self, upload: Upload, digest: int, chunk_map: int, data: int, *, boot_id: str) -> None:
        super().__init__(upload)
        self._digest, self._map, self._data = digest, chunk_map, data
        self._boot_id = boot_id
        self._generation = upload.generation
        self._count = chunk_count(upload.extent, upload.chunk_size)

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

    def save(self) -> None:
        """Save the state, without a sync: after a power cut the digests start at 0, or at a state that was saved earlier,
        of chunks that are on the disk."""
        record = chunks.SavedProgress(self._generation, self._boot_id, self._hashes.position, self._hashes.state())
        disk.write(self._digest, memoryview(chunks.digest_record(record)), 0)
        crash_point("frontier.after_save")

    def _check_there(self) -> None:
        if disk.is_unlinked(self._map):
            raise Gone(self._upload.id)

    def _hash_next(self, length: int, leave: Callable[[int], bool]) -> bool:
        checksums = self._next_recorded(length, leave)
        if checksums:
            self._hash_chunks(checksums)
        return bool(checksums)

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

    def _save_whole(self, digests: Digests) -> None:
        """The digest file needs no sync: after a power cut the merge hashes again."""
        self._sync_data()
        crash_point("merge.after_data_sync")
        record = chunks.Finished(self._generation, digests.md5, digests.sha256)
        disk.write(self._digest, memoryview(chunks.digest_record(record)), 0)
        crash_point("merge.after_digest_write")

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
