"""The files of uploads that are being written, kept open from chunk to chunk: to open them takes longer than a small chunk.

Each holder has descriptors of its own, because locks and the errors of syncs belong to a descriptor, not to the file: where
two share one, one is told that the other's bytes are lost, and the other is told nothing.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import Callable
from itertools import islice

from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.base import Gone
from uploader.storage.disk import Directory
from uploader.storage.local.temp import upload_directory

logger = logging.getLogger(__name__)

# How many pairs a process keeps, and for how long: what another process removes takes room until it is closed here, too.
_MAX_KEPT = 64
_KEPT_SECONDS = 2.0


class OpenFiles:
    """The map and the data of one upload, for one holder at a time. They are closed with their last user, at the latest."""

    def __init__(self, root: Directory, upload: Upload) -> None:
        """Raises Gone."""
        self.upload_id = upload.id
        self.kept_since = 0.0
        self._root = root
        self._map_path = f"{upload.temp_path}/map"
        with upload_directory(root, upload) as directory:
            self.map = directory.open_to_write("map")
            try:
                self._map_status = disk.status(self.map)
                self.data = directory.open_to_write("data")
            except BaseException:
                disk.close(self.map)
                raise
        self.close = weakref.finalize(self, _close, self.map, self.data)

    def check(self) -> None:
        """Raises Gone if they are not the upload's any more. To be asked under a lock: who removes them has all of those."""
        if not self._root.has(self._map_path, self._map_status) or disk.is_unlinked(self.data):
            raise Gone(self.upload_id)


def _close(map_descriptor: int, data_descriptor: int) -> None:
    try:
        disk.close(map_descriptor)
    finally:
        disk.close(data_descriptor)


def close_files(gone: list[OpenFiles]) -> None:
    """In a thread: the last to close a large file that was unlinked waits until its blocks are free."""
    for files in gone:
        try:
            files.close()
        except OSError:
            logger.warning("files of an upload did not close", extra={"upload_id": files.upload_id}, exc_info=True)


class KeptFiles:
    """Open files that nobody holds and nothing is locked by. Lives on the event loop."""

    def __init__(self, close: Callable[[list[OpenFiles]], None]) -> None:
        """`close` is told what is not kept any longer."""
        self._close = close
        # In the order in which they were kept: all, and those of each upload.
        self._all: dict[OpenFiles, None] = {}
        self._of_upload: dict[str, list[OpenFiles]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, files: OpenFiles) -> None:
        """Take files in, for the next chunk."""
        files.kept_since = time.monotonic()
        self._all[files] = None
        self._of_upload.setdefault(files.upload_id, []).append(files)
        if len(self._all) > _MAX_KEPT:
            self._let_go(*islice(self._all, 1 + _MAX_KEPT // 4))  # many in one hop, where it goes round many uploads
        if self._timer is None:
            self._close_later(_KEPT_SECONDS)

    def take(self, upload_id: str) -> OpenFiles | None:
        """The files of an upload that were kept last, if any are: the caller's from now on."""
        kept = self._of_upload.get(upload_id)
        return None if kept is None else self._forget(kept[-1])

    def take_all(self, upload_id: str | None = None) -> list[OpenFiles]:
        """All that are kept, or all of one upload."""
        kept = self._all if upload_id is None else self._of_upload.get(upload_id, ())
        return [self._forget(files) for files in list(kept)]

    def _close_later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._close_old)

    def _close_old(self) -> None:
        self._timer = None
        oldest = time.monotonic() - _KEPT_SECONDS
        self._let_go(*(files for files in self._all if files.kept_since <= oldest))
        if self._all:
            self._close_later(_KEPT_SECONDS / 2)

    def _let_go(self, *gone: OpenFiles) -> None:
        if gone:
            self._close([self._forget(files) for files in gone])

    def _forget(self, files: OpenFiles) -> OpenFiles:
        del self._all[files]
        kept = self._of_upload[files.upload_id]
        kept.remove(files)
        if not kept:
            del self._of_upload[files.upload_id]
        return files
