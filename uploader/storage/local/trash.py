"""The trash: bytes that lost their place, `trash/blobs/ab/<sha256>.<token>` and `trash/uploads/<upload_id>.<token>`.

A file gets its name here before it loses its own, so that no crash loses it. What lies here is as old as its ctime, which a
link and a rename renew.
"""

import errno
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from stat import S_ISDIR

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage.contents import Found, OpenBlob
from uploader.storage.disk import Directory
from uploader.storage.local import walking
from uploader.tasks import Pool

# How long its size is believed, at least, and in terms of how long it took to find out: where room is short, it is walked
# anyway.
_FRESH_SECONDS = 60.0
_FRESH_WALKS = 50


class TrashFiles:
    """Everything under `trash`. Runs in threads."""

    def __init__(self, root: Directory, *, keeps: bool) -> None:
        """`keeps`: whether anything is kept at all."""
        self._root = root
        self.keeps = keeps
        # On the disk, by a walk of a moment ago and what this process did since.
        self.held_bytes = 0

    def keep(self, directory: Directory, name: str, sha256: str) -> None:
        """Give a file that is about to lose its name another one here, durably."""
        if not self.keeps:
            return
        with self._make(f"blobs/{sha256[:2]}") as trash:
            directory.link(name, trash, _unique(sha256))
            trash.sync()
        self.held_bytes += directory.status(name).st_blocks * walking.BLOCK_BYTES
        crash_point("trash.after_link")

    def put_away(self, found: Found) -> bool:
        """Move what was found here, unless it changed since; whether this call did it."""
        if not self.keeps or found.is_draft:
            return walking.remove(self._root, found)
        if not walking.is_still(self._root, found):
            return False
        parent, _, name = found.place.rpartition("/")
        try:
            with self._root.enter(parent) as directory:
                if S_ISDIR(directory.status(name).st_mode):
                    self._move_directory(directory, name)
                    self.held_bytes += found.disk_bytes
                else:
                    if directory.make_way(name):
                        self.keep(directory, name, found.name)
                    walking.unlink_blob(directory, name)  # a power cut may undo it: then it has both names
        except FileNotFoundError:
            return False  # somebody else was faster
        return True

    def _move_directory(self, parent: Directory, name: str) -> None:
        with self._make("uploads") as trash:
            parent.rename(name, _unique(name), trash)
            trash.sync()
        crash_point("trash.after_rename")

    def _make(self, path: str) -> Directory:
        with self._root.enter("trash") as top:
            return top.make(path)

    def restore_upload(self, found: Found, upload: Upload) -> bool:
        """Move the directory of an upload back, unless it has one; whether this call did it."""
        parent, _, name = upload.place.rpartition("/")
        trash, _, unique = found.place.rpartition("/")
        try:
            with self._root.enter(trash) as source, self._root.make(parent) as target:
                source.rename(unique, name, target)
                target.sync()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True


def _unique(name: str) -> str:
    return f"{name}.{secrets.token_hex(16)}"


class LocalTrash:
    """The trash of `storage/base.py`: gives it threads."""

    def __init__(
        self,
        root: Directory,
        files: TrashFiles,
        restore_blob: Callable[[Found], None],
        open_found: Callable[[Found], OpenBlob],
        disk: Pool,
        in_batches: Callable[[Iterator[Found]], AsyncIterator[list[Found]]],
    ) -> None:
        self.keeps = files.keeps
        self._root = root
        self._files = files
        self._restore_blob = restore_blob
        self._open_found = open_found
        self._disk = disk
        self._in_batches = in_batches
        self._known_until = float("-inf")

    async def put_away(self, found: Found) -> bool:
        return await self._disk.run(self._files.put_away, found)

    def list_all(self) -> AsyncIterator[list[Found]]:
        return self._in_batches(walking.trashed(self._root))

    async def copies(self, sha256: str) -> list[Found]:
        found = await self._disk.run(lambda: list(walking.trashed(self._root, sha256)))
        return sorted(found, key=lambda each: each.changed_at, reverse=True)

    async def put_away_of(self, upload: Upload) -> list[Found]:
        return await self._disk.run(lambda: list(walking.trashed_uploads(self._root, upload.id)))

    async def open(self, found: Found) -> OpenBlob:
        return await self._disk.run(self._open_found, found)

    async def restore_blob(self, found: Found) -> None:
        await self._disk.run(self._restore_blob, found)

    async def restore_upload(self, found: Found, upload: Upload) -> bool:
        return await self._disk.run(self._files.restore_upload, found, upload)

    async def remove(self, found: Found) -> bool:
        done = await self._disk.run(walking.remove, self._root, found)
        self._files.held_bytes -= done * found.disk_bytes
        return done

    async def size_bytes(self) -> int:
        """What it holds."""
        if time.monotonic() >= self._known_until:
            begun = time.monotonic()
            self._known_until = begun + _FRESH_SECONDS  # meanwhile others take the old figure
            self._files.held_bytes = sum([found.disk_bytes async for batch in self.list_all() for found in batch])
            walked = time.monotonic() - begun
            self._known_until = time.monotonic() + max(_FRESH_SECONDS, _FRESH_WALKS * walked)
        return max(0, self._files.held_bytes)
