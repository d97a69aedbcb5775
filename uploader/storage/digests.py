"""The `digest` file of an open upload: both digests of its content, computed once and saved.

The lock on the file keeps two workers from computing them twice. Runs in threads.
"""

import errno
import hashlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.storage import disk
from uploader.storage.base import Busy, Digests, Gone
from uploader.storage.locks import try_lock
from uploader.storage.temp import upload_directory

_READ_BYTES = 1 << 20
_MAX_SAVED_BYTES = 4096
# In the place of the digests, where the data could not be made durable.
_LOST = b"lost"


class DigestFiles:
    """Computes digests, saves and forgets them."""

    def __init__(self, root: disk.Directory, *, durable: bool, check_stopping: Callable[[], None]) -> None:
        """`durable`: every chunk on the map was synced when it came."""
        self._root = root
        self._durable = durable
        self._check_stopping = check_stopping

    def digest(self, upload: Upload, progress: Callable[[int], None]) -> Digests:
        """The digests as saved, or computed and saved. Raises Gone, Busy, Stopping."""
        with upload_directory(self._root, upload) as directory:
            descriptor = directory.open_to_write("digest")
            try:
                if not try_lock(descriptor, 0, 0):
                    raise Busy(upload.id)
                return self._saved(descriptor) or self._compute(directory, descriptor, upload, progress)
            finally:
                disk.close(descriptor)

    def forget(self, upload: Upload) -> None:
        """Durably: the bytes that the digests were of went bad. Raises Gone."""
        with upload_directory(self._root, upload) as directory:
            descriptor = directory.open_to_write("digest", truncate=True)
            try:
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)

    def _saved(self, descriptor: int) -> Digests | None:
        saved = disk.read(descriptor, _MAX_SAVED_BYTES, 0)
        if saved == _LOST:
            raise StorageFailed("The disk lost bytes of this upload: cancel it and send it again.")
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(saved, type=Digests)
        return None

    def _compute(
        self, directory: disk.Directory, descriptor: int, upload: Upload, progress: Callable[[int], None]
    ) -> Digests:
        data = directory.open_to_read("data")
        try:
            self._sync_before_hashing(data, descriptor)
            crash_point("merge.after_data_sync")
            digests = self._hash(data, upload, progress)
        finally:
            disk.close(data)
        disk.write(descriptor, memoryview(msgspec.json.encode(digests)), 0)
        crash_point("merge.after_digest_write")
        disk.sync(descriptor)
        crash_point("merge.after_digest_saved")
        return digests

    def _sync_before_hashing(self, data: int, digest_descriptor: int) -> None:
        """Make the data durable before its digests are believed.

        Where this is the first sync, an error is remembered: a second one would succeed, with the bytes gone from memory
        and not on the disk (https://wiki.postgresql.org/wiki/Fsync_Errors).
        """
        try:
            disk.sync(data)
        except OSError:
            if not self._durable:
                disk.write(digest_descriptor, memoryview(_LOST), 0)
                disk.sync(digest_descriptor)
            raise

    def _hash(self, data: int, upload: Upload, progress: Callable[[int], None]) -> Digests:
        md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
        buffer = memoryview(bytearray(_READ_BYTES))
        done = 0
        while count := disk.read_into(data, buffer, done):
            md5.update(buffer[:count])
            sha256.update(buffer[:count])
            done += count
            progress(done)
            self._check_stopping()
            if disk.is_unlinked(data):
                raise Gone(upload.id)
        if done != upload.size:
            raise OSError(errno.EIO, "the data file does not have the size of its upload")
        return Digests(md5.hexdigest(), sha256.hexdigest())
