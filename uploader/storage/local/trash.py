"""The trash: bytes that lost their place, `trash/blobs/ab/<sha256>.<token>` and `trash/uploads/<upload_id>.<token>`.

A file gets its name here before it loses its own, so that no crash loses it. What lies here is as old as its ctime, which a
link and a rename renew.
"""

import errno
import secrets
import time
from stat import S_ISDIR

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage.base import Found
from uploader.storage.disk import Directory
from uploader.storage.local import walking

# How long its size is believed, at least, and in terms of how long it took to find out: where room is short, it is walked
# anyway.
_FRESH_SECONDS = 60.0
_FRESH_WALKS = 50


class Trash:
    """Everything under `trash`."""

    def __init__(self, root: Directory, *, keeps: bool) -> None:
        """`keeps`: whether anything is kept at all."""
        self._root = root
        self.keeps = keeps
        # On the disk, by a walk of a moment ago and what this process did since.
        self.held_bytes = 0
        self._walk_begun = 0.0
        self._known_until = float("-inf")

    # On the event loop

    def begin_walk(self) -> bool:
        """Whether it is time to find out again how much it holds; meanwhile others take the old figure."""
        self._walk_begun = time.monotonic()
        if self._walk_begun < self._known_until:
            return False
        self._known_until = self._walk_begun + _FRESH_SECONDS
        return True

    def end_walk(self, held_bytes: int) -> None:
        self.held_bytes = held_bytes
        now = time.monotonic()
        self._known_until = now + max(_FRESH_SECONDS, _FRESH_WALKS * (now - self._walk_begun))

    # In threads

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
