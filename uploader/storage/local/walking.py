"""What lies in temp and blobs, found by walking their directories; and removed, where it is still what was found.

Sees only what the server may have made itself. Runs in threads.
"""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from stat import S_ISDIR

from uploader.crashpoints import crash_point
from uploader.domain.upload import MAX_CHUNK_COUNT
from uploader.storage import disk
from uploader.storage.base import Found
from uploader.storage.disk import Directory
from uploader.storage.local import formats
from uploader.storage.local.temp import FILES

logger = logging.getLogger(__name__)

_YEAR, _MONTH = re.compile(r"[0-9]{4}"), re.compile(r"0[1-9]|1[0-2]")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
# A blob, or a name that no row has.
_BLOB = re.compile(r"[0-9a-f]{64}(\.([0-9a-f]{32}|signature))?")
# The name that bytes have before they take a blob's place, and that of what is kept beside a blob.
_DRAFT = re.compile(r"[0-9a-f]{64}\.([0-9a-f]{32}|signature)")
_TRASHED_BLOB = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{32}")
_TRASHED_UPLOAD = re.compile(r"[0-9a-f]{32}\.[0-9a-f]{32}")
_MAX_MAP_BYTES = formats.MAP_RECORDS_OFFSET + formats.MAP_RECORD_LENGTH * MAX_CHUNK_COUNT
BLOCK_BYTES = 512  # st_blocks, whatever the filesystem's own (inode(7))


def months(root: Directory) -> list[str]:
    """The months of temp, such as `2026/11`, the oldest first."""
    years = _directories(root, "temp", _YEAR)
    return sorted(f"{year}/{month}" for year in years for month in _directories(root, f"temp/{year}", _MONTH))


def upload_directories(root: Directory, month: str) -> Iterator[Found]:
    """The directories of uploads in a month."""
    path = f"temp/{month}"
    for name in _directories(root, path, _UPLOAD):
        if found := _look_if_it_can_be_read(root, f"{path}/{name}"):
            yield found


def blob_files(root: Directory) -> Iterator[Found]:
    """The files of blobs, by their names; what is kept beside a blob is met where the blob is gone."""
    for outer in sorted(_directories(root, "blobs", _FAN_OUT)):
        for inner in sorted(_directories(root, f"blobs/{outer}", _FAN_OUT)):
            path = f"blobs/{outer}/{inner}"
            names = set(_listed(root, path, Directory.files, _BLOB))
            for name in sorted(names - {signature_name(name) for name in names}):
                if name.startswith(outer + inner) and (found := _look_if_it_can_be_read(root, f"{path}/{name}")):
                    yield found


def _look_if_it_can_be_read(root: Directory, path: str) -> Found | None:
    """As `look`. A damaged part is left alone, and the walk goes on."""
    try:
        return look(root, path)
    except OSError as error:
        _leave_what_is_damaged(path, error)
        return None


def _leave_what_is_damaged(path: str, error: OSError) -> None:
    """Raises the error again, unless it is of this part alone."""
    if error.errno not in disk.DAMAGED:
        raise error
    logger.error("a part of the disk can't be read and is left", extra={"path": path}, exc_info=error)


def signature_name(sha256: str) -> str:
    """Of the file beside a blob that has its signature."""
    return f"{sha256}.signature"


def unlink_blob(directory: Directory, name: str) -> bool:
    """Take the name of a blob away, with what is kept beside it; False if there is none."""
    directory.unlink(signature_name(name))
    return directory.unlink(name)


def look(root: Directory, path: str) -> Found | None:
    """What is there now; None if it has gone."""
    parent, _, name = path.rpartition("/")
    try:
        with root.enter(parent) as directory:
            own = directory.status(name)
            files = _statuses(directory, name) if S_ISDIR(own.st_mode) else [own]
    except FileNotFoundError:
        return None
    return Found(
        name=name,
        place=path,
        inode=own.st_ino,
        changed_at=max(each.st_ctime for each in (own, *files)),
        # Bytes that have another name stay.
        disk_bytes=sum(each.st_blocks * BLOCK_BYTES for each in files if each.st_nlink == 1),
        is_draft=_DRAFT.fullmatch(name) is not None,
        size=own.st_size,
    )


def _statuses(parent: Directory, name: str) -> list[os.stat_result]:
    with parent.enter(name) as directory:
        return [directory.status(file) for file in directory.names()]


def holds_chunks(root: Directory, found: Found) -> bool:
    """Whether the map in an upload directory names a chunk."""
    try:
        with root.enter(found.place) as directory:
            descriptor = directory.open_to_read("map")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # there is none, or something that is not ours
            return False
        raise
    try:
        return formats.holds_chunks(disk.read(descriptor, _MAX_MAP_BYTES, 0))
    finally:
        disk.close(descriptor)


def is_still(root: Directory, found: Found) -> bool:
    """Whether at its place is what was found, unchanged."""
    now = look(root, found.place)
    return now is not None and (now.inode, now.changed_at) == (found.inode, found.changed_at)


def remove(root: Directory, found: Found) -> bool:
    """Remove what a walk found, unless it changed since; whether this call did it."""
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
    """Remove a month's directory if it is empty, and its year's."""
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


def trashed(root: Directory, name: str | None = None) -> Iterator[Found]:
    """What lies in the trash; of one content or upload, if its name is given."""
    for fan in sorted(_directories(root, "trash/blobs", _FAN_OUT)) if name is None else [name[:2]]:
        yield from _trashed_in(root, f"trash/blobs/{fan}", Directory.files, _TRASHED_BLOB, name)
    yield from _trashed_in(root, "trash/uploads", Directory.directories, _TRASHED_UPLOAD, name)


def _trashed_in(
    root: Directory,
    path: str,
    listing: Callable[[Directory], list[str]],
    pattern: re.Pattern[str],
    name: str | None,
) -> Iterator[Found]:
    """Without the suffix that makes a name unique there."""
    for unique in _listed(root, path, listing, pattern):
        own = unique.partition(".")[0]
        if name in (None, own) and (found := _look_if_it_can_be_read(root, f"{path}/{unique}")):
            yield replace(found, name=own, is_draft=False, in_trash=True)


def _directories(root: Directory, path: str, pattern: re.Pattern[str]) -> list[str]:
    return _listed(root, path, Directory.directories, pattern)


def _listed(
    root: Directory, path: str, listing: Callable[[Directory], list[str]], pattern: re.Pattern[str]
) -> list[str]:
    """All names at once, so that a walk that nobody ends holds no descriptor."""
    try:
        with root.enter(path) as directory:
            return list(filter(pattern.fullmatch, listing(directory)))
    except FileNotFoundError:
        return []  # it was removed meanwhile
    except OSError as error:
        _leave_what_is_damaged(path, error)
        return []
