"""The directories of open uploads, `temp/YYYY/MM/<upload_id>`: made, entered, removed. Their files are kept open from chunk
to chunk, because opening them takes longer than a small chunk.

The first upload of a month makes its directory. The cleanup removes an empty one, at any moment. Each holder of open files
has descriptors of its own, because locks and errors of syncs belong to a descriptor, not to the file. If two holders shared
a descriptor, only the first would be told that bytes of the other are lost.
"""

import asyncio
import errno
import logging
import re
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from stat import S_ISDIR

from uploader.domain.upload import Upload
from uploader.errors import Unverified
from uploader.runtime.crashpoints import crash_point
from uploader.storage import disk
from uploader.storage.base import Found, Gone
from uploader.storage.disk import Directory

logger = logging.getLogger(__name__)

_MAKE_ATTEMPTS = 100
# A new directory of a blob is empty until the blob is placed, and should not be removed before.
_EMPTY_SECONDS = 3600.0
FILES = ("map", "digest", "data", "checksums")
# Open pairs of files in a process, and for how long: removed files take space until every process has closed them.
_MAX_KEPT = 64
_KEPT_SECONDS = 2.0


def month_path(moment: datetime) -> str:
    """Return the directory in `temp` for the month (UTC) of `moment`, such as `2026/11`."""
    moment = moment.astimezone(UTC)
    return f"{moment.year:04}/{moment.month:02}"  # strftime pads no year


@contextmanager
def upload_directory(root: Directory, upload: Upload) -> Iterator[Directory]:
    """Yield the directory of an upload. Raises Gone if a file is missing in it."""
    try:
        with root.enter(upload.place) as directory:
            yield directory
    except FileNotFoundError as error:
        raise Gone(upload.id) from error


@contextmanager
def new_upload_directory(root: Directory, upload: Upload) -> Iterator[Directory]:
    """Yield a new directory to fill, durable at the end. After an error nothing of it is left."""
    path, _, name = upload.place.rpartition("/")
    with _make(root, path, name) as month:
        try:
            crash_point("open.after_mkdir")
            with month.enter(name) as directory:
                yield directory
                directory.sync()
            crash_point("open.after_directory_sync")
            month.sync()
        except OSError:
            _remove(month, name)
            raise


@contextmanager
def made_upload_directory(root: Directory, upload: Upload) -> Iterator[Directory]:
    """Yield the directory of an upload, made if need be. New files in it are durable at the end. Raises Gone if it is
    removed meanwhile."""
    path, _, name = upload.place.rpartition("/")
    try:
        with suppress(FileExistsError):
            _make(root, path, name).close()
        with root.enter(path) as month:
            with month.enter(name) as directory:
                yield directory
                directory.sync()
            month.sync()
    except FileNotFoundError as error:
        raise Gone(upload.id) from error


def _make(root: Directory, path: str, name: str) -> Directory:
    """Make the directory of an upload. Return the directory of its month."""
    for _ in range(_MAKE_ATTEMPTS):
        with suppress(FileNotFoundError):  # the month was removed at this moment
            return _make_once(root, path, name)
    return _make_once(root, path, name)


def _make_once(root: Directory, path: str, name: str) -> Directory:
    month = made(root, path)
    try:
        month.make_directory(name)
    except OSError:
        month.close()
        raise
    return month


def made(root: Directory, path: str) -> Directory:
    """Make a directory below a top directory, which has to exist."""
    top, _, rest = path.partition("/")
    with root.enter(top) as directory:
        return directory.make(rest)


def is_there(root: Directory, upload: Upload) -> bool:
    path, _, name = upload.place.rpartition("/")
    try:
        with root.enter(path) as month:
            month.status(name)
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


def discard(root: Directory, upload: Upload) -> bool:
    path, _, name = upload.place.rpartition("/")
    try:
        with root.enter(path) as month:
            _remove(month, name)
    except FileNotFoundError:
        return False
    return True


def _remove(month: Directory, name: str) -> None:
    with month.enter(name) as directory:
        # The map goes first: a writer waiting for its lock then sees that the upload is gone.
        for file in FILES:
            with suppress(FileNotFoundError):
                if directory.make_way(file):
                    directory.unlink(file)
            crash_point("discard.after_unlink")
        try:
            month.remove_directory(name)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            for file in directory.names():  # of a whole
                directory.unlink(file)
            month.remove_directory(name)


# Open files


class OpenFiles:
    """The map and the data of one upload, open for one holder at a time. Closed with their last user at the latest."""

    def __init__(self, root: Directory, upload: Upload) -> None:
        """Raises Gone; and Unverified if the map has lost its data, and is wrong."""
        self.upload_id = upload.id
        self.kept_since = 0.0
        self._root = root
        self._map_path = f"{upload.place}/map"
        with upload_directory(root, upload) as directory:
            self.map = directory.open_to_write("map")
            try:
                self._map_status = disk.status(self.map)
                self.data = directory.open_to_write("data")
            except BaseException as error:
                disk.close(self.map)
                if isinstance(error, FileNotFoundError):
                    raise Unverified() from error
                raise
        self.close = weakref.finalize(self, _close, self.map, self.data)

    def check(self) -> None:
        """Raises Gone if these files do not belong to the upload any more. The caller holds a lock of the map: to remove the
        files takes all locks."""
        if not self._root.has(self._map_path, self._map_status) or disk.is_unlinked(self.data):
            raise Gone(self.upload_id)


def _close(map_descriptor: int, data_descriptor: int) -> None:
    with disk.opened(data_descriptor):
        disk.close(map_descriptor)


def close_files(gone: list[OpenFiles]) -> None:
    """Close files, in a thread: the last close of a large unlinked file waits until the kernel has freed its blocks."""
    for files in gone:
        try:
            files.close()
        except OSError:
            logger.warning("files of an upload did not close", extra={"upload_id": files.upload_id}, exc_info=True)


@dataclass(eq=False)
class KeptFiles:
    """Open files without a holder and without a lock, for the next chunk. Lives on the event loop."""

    # Gets the files that are no longer kept.
    _close: Callable[[list[OpenFiles]], None]
    # In the order of keeping: all, and those of each upload.
    _all: dict[OpenFiles, None] = field(default_factory=dict)
    _of_upload: dict[str, list[OpenFiles]] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None

    def keep(self, files: OpenFiles) -> None:
        files.kept_since = time.monotonic()
        self._all[files] = None
        self._of_upload.setdefault(files.upload_id, []).append(files)
        if len(self._all) > _MAX_KEPT:
            gone = list(islice(self._all, 1 + _MAX_KEPT // 4))  # many in one hop, if there are many uploads
            self._close([self._forget(files) for files in gone])
        if self._timer is None:
            self._close_later(_KEPT_SECONDS)

    def take(self, upload_id: str) -> OpenFiles | None:
        """Return the files of an upload that were kept last, if there are any. They belong to the caller now."""
        kept = self._of_upload.get(upload_id)
        return None if kept is None else self._forget(kept[-1])

    def drop(self, files: OpenFiles) -> None:
        self._close([files])

    def take_all(self, upload_id: str | None = None) -> list[OpenFiles]:
        kept = self._all if upload_id is None else self._of_upload.get(upload_id, ())
        return [self._forget(files) for files in list(kept)]

    def _close_later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._close_old)

    def _close_old(self) -> None:
        self._timer = None
        oldest = time.monotonic() - _KEPT_SECONDS
        if gone := [files for files in self._all if files.kept_since <= oldest]:
            self._close([self._forget(files) for files in gone])
        if self._all:
            self._close_later(_KEPT_SECONDS / 2)

    def _forget(self, files: OpenFiles) -> OpenFiles:
        del self._all[files]
        kept = self._of_upload[files.upload_id]
        kept.remove(files)
        if not kept:
            del self._of_upload[files.upload_id]
        return files


# Walks through temp and blobs, and removes entries that have not changed since.
#
# Sees only files and directories that the server may have made. In threads.


_YEAR, _MONTH = re.compile(r"[0-9]{4}"), re.compile(r"0[1-9]|1[0-2]")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
# A blob, or a file beside blobs without a row.
_BLOB = re.compile(r"[0-9a-f]{64}(\.([0-9a-f]{32}|signature|checksums))?")
# Bytes before they take a blob's place, or a file that belongs to a blob.
_DRAFT = re.compile(r"[0-9a-f]{64}\.([0-9a-f]{32}|signature|checksums)")
_TRASHED_BLOB = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}(\.checksums)?")
_TRASHED_UPLOAD = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{32}")
BLOCK_BYTES = 512  # st_blocks, whatever the filesystem's own (inode(7))


def months(root: Directory) -> list[str]:
    """Return the months of temp, such as `2026/11`, the oldest first."""
    years = _listed(root, "temp", _YEAR)
    return sorted(f"{year}/{month}" for year in years for month in _listed(root, f"temp/{year}", _MONTH))


def upload_directories(root: Directory, month: str) -> Iterator[Found]:
    path = f"temp/{month}"
    for name in _listed(root, path, _UPLOAD):
        if found := _look_if_it_can_be_read(root, f"{path}/{name}"):
            yield found


def blob_files(root: Directory, after: str = "") -> Iterator[Found]:
    """Yield the files of blobs after a name, by name. A file beside a blob is yielded if its blob is gone."""
    for outer, inner in blob_directories(root, after):
        path = f"blobs/{outer}/{inner}"
        names = set(_listed(root, path, _BLOB, Directory.files))
        beside = {name_beside(name) for name in names for name_beside in (signature_name, checksums_name)}
        for name in sorted(names - beside):
            is_wanted = name > after and name.startswith(outer + inner)
            if is_wanted and (found := _look_if_it_can_be_read(root, f"{path}/{name}")):
                yield found


def blob_directories(root: Directory, after: str = "") -> Iterator[tuple[str, str]]:
    """Yield the directories of blobs, but none whose blobs all come before a name."""
    for outer in sorted(_listed(root, "blobs", _FAN_OUT)):
        if outer >= after[:2]:
            for inner in sorted(_listed(root, f"blobs/{outer}", _FAN_OUT)):
                if outer + inner >= after[:4]:
                    yield outer, inner


def _look_if_it_can_be_read(root: Directory, path: str) -> Found | None:
    """Look as `look` does. A damaged part of the disk is left alone, and the walk goes on."""
    try:
        return look(root, path)
    except OSError as error:
        _leave_what_is_damaged(path, error)
        return None


def _leave_what_is_damaged(path: str, error: OSError) -> None:
    """Log the error of a damaged part of the disk; raise any other error again."""
    if error.errno not in disk.DAMAGED:
        raise error
    logger.error("a part of the disk can't be read and is left", extra={"path": path}, exc_info=error)


def signature_name(sha256: str) -> str:
    return f"{sha256}.signature"


CHECKSUMS = ".checksums"


def checksums_name(sha256: str) -> str:
    return f"{sha256}{CHECKSUMS}"


def unlink_blob(directory: Directory, name: str) -> bool:
    """Unlink a blob and the files beside it. Return False if there is no blob. The blob goes first: an open blob never lacks
    its checksums."""
    done = directory.unlink(name)
    for name_beside in (signature_name, checksums_name):
        directory.unlink(name_beside(name))
    return done


def look(root: Directory, path: str) -> Found | None:
    """Look at an entry as it is now; None if it has gone."""
    parent, _, name = path.rpartition("/")
    try:
        with root.enter(parent) as directory:
            own = directory.status(name)
            files = [own]
            if S_ISDIR(own.st_mode):
                with directory.enter(name) as inside:
                    files = [inside.status(file) for file in inside.names()]
    except FileNotFoundError:
        return None
    return Found(
        name=name,
        place=path,
        inode=own.st_ino,
        changed_at=max(each.st_ctime for each in (own, *files)),
        # Bytes with another name stay on the disk.
        disk_bytes=sum(each.st_blocks * BLOCK_BYTES for each in files if each.st_nlink == 1),
        is_draft=_DRAFT.fullmatch(name) is not None,
        size=own.st_size,
    )


def is_still(root: Directory, found: Found) -> bool:
    now = look(root, found.place)
    return now is not None and (now.inode, now.changed_at) == (found.inode, found.changed_at)


def remove(root: Directory, found: Found) -> bool:
    """Remove an entry of a walk, unless it has changed since. Return whether this call did it."""
    if not is_still(root, found):
        return False
    parent, _, name = found.place.rpartition("/")
    try:
        with root.enter(parent) as directory:
            if not S_ISDIR(directory.status(name).st_mode):
                return unlink_blob(directory, name)
            _remove_directory(directory, name)
    except FileNotFoundError:
        return False  # somebody else was faster
    return True


def _remove_directory(parent: Directory, name: str) -> None:
    with parent.enter(name) as directory:
        # In the order in which every upload ends.
        for file in (*FILES, *directory.names()):
            directory.unlink(file)
            crash_point("remove.after_unlink")
    parent.remove_directory(name)


def remove_month(root: Directory, month: str) -> None:
    """Remove the directory of a month if it is empty, and the directory of its year."""
    year, _, name = month.partition("/")
    try:
        with root.enter(f"temp/{year}") as directory:
            directory.remove_directory(name)
        crash_point("month.after_rmdir")
        with root.enter("temp") as directory:
            directory.remove_directory(year)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def remove_empty(root: Directory, parts: Iterable[tuple[str, str]]) -> None:
    """Remove directories of blobs that have been empty for a while, with their parents."""
    for outer, inner in parts:
        try:
            with root.enter(f"blobs/{outer}") as directory:
                if directory.status(inner).st_mtime < time.time() - _EMPTY_SECONDS:
                    directory.remove_directory(inner)
                    with root.enter("blobs") as blobs:
                        blobs.remove_directory(outer)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def trashed(root: Directory, name: str | None = None) -> Iterator[Found]:
    fans = sorted(_listed(root, "trash/blobs", _FAN_OUT)) if name is None else [name[:2]]
    blobs = [(f"trash/blobs/{fan}", _TRASHED_BLOB, Directory.files) for fan in fans]
    for path, pattern, listing in (*blobs, ("trash/uploads", _TRASHED_UPLOAD, Directory.directories)):
        names = _listed(root, path, pattern, listing)
        beside = {checksums_name(name) for name in names}
        for unique in (name for name in names if name not in beside):
            own = unique.partition(".")[0]  # without the suffix that makes a name unique there
            if name in (None, own) and (found := _look_if_it_can_be_read(root, f"{path}/{unique}")):
                yield replace(found, name=own, is_draft=False, in_trash=True)


def copies_of(root: Directory, sha256s: Collection[str]) -> Iterator[Found]:
    """Yield what is in the trash of some contents; each directory is listed once."""
    for path in sorted({f"trash/blobs/{sha256[:2]}" for sha256 in sha256s}):
        names = _listed(root, path, _TRASHED_BLOB, Directory.files)
        beside = {checksums_name(name) for name in names}
        for unique in (name for name in names if name not in beside and name.partition(".")[0] in sha256s):
            if found := _look_if_it_can_be_read(root, f"{path}/{unique}"):
                yield replace(found, name=unique.partition(".")[0], is_draft=False, in_trash=True)


def _listed(
    root: Directory,
    path: str,
    pattern: re.Pattern[str],
    listing: Callable[[Directory], list[str]] = Directory.directories,
) -> list[str]:
    """Return all names at once: an unfinished walk then holds no descriptor."""
    try:
        with root.enter(path) as directory:
            return list(filter(pattern.fullmatch, listing(directory)))
    except FileNotFoundError:
        return []  # it was removed meanwhile
    except OSError as error:
        _leave_what_is_damaged(path, error)
        return []
