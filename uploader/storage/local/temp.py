"""The directories of open uploads, `temp/YYYY/MM/<upload_id>`: made, entered and removed.

A month's directory comes with its first upload, and goes by the cleanup when it is empty, at any moment in between.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage.base import Gone
from uploader.storage.disk import Directory

_MAKE_ATTEMPTS = 100
FILES = ("map", "digest", "data")


@contextmanager
def upload_directory(root: Directory, upload: Upload) -> Iterator[Directory]:
    """The directory of an upload; whatever is missed within raises Gone."""
    try:
        with root.enter(upload.temp_path) as directory:
            yield directory
    except FileNotFoundError as error:
        raise Gone(upload.id) from error


@contextmanager
def new_upload_directory(root: Directory, upload: Upload) -> Iterator[Directory]:
    """A directory to fill, durable by the end; an error leaves nothing of it."""
    path, _, name = upload.temp_path.rpartition("/")
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


def _make(root: Directory, path: str, name: str) -> Directory:
    """Make the directory of an upload; returns that of its month."""
    for _ in range(_MAKE_ATTEMPTS):
        with suppress(FileNotFoundError):  # the month was removed at this moment
            return _make_once(root, path, name)
    return _make_once(root, path, name)


def _make_once(root: Directory, path: str, name: str) -> Directory:
    temp, _, months = path.partition("/")
    with root.enter(temp) as top:
        month = top.make(months)
    try:
        month.make_directory(name)
    except OSError:
        month.close()
        raise
    return month


def is_there(root: Directory, upload: Upload) -> bool:
    """Whether anything is left of the directory of an upload, or the disk does not tell."""
    path, _, name = upload.temp_path.rpartition("/")
    try:
        with root.enter(path) as month:
            month.status(name)
    except OSError as error:
        return error.errno != errno.ENOENT
    return True


def discard(root: Directory, upload: Upload) -> bool:
    """Remove the directory of an upload, with its files; whether this call did it."""
    path, _, name = upload.temp_path.rpartition("/")
    try:
        with root.enter(path) as month:
            _remove(month, name)
    except FileNotFoundError:
        return False
    return True


def _remove(month: Directory, name: str) -> None:
    with month.enter(name) as directory:
        # The map goes first: a writer that waits for its lock sees by it that the upload is gone.
        for file in FILES:
            directory.unlink(file)
            crash_point("discard.after_unlink")
    month.remove_directory(name)
