"""Deleting below a folder here: what was seen there, and nothing else. Blocking."""

import errno
import os
from pathlib import Path

from uploader.client import FileChanged, LeadsOutside, Unwritable


def delete_file(root: Path, path: str, seen: os.stat_result) -> None:
    """Raises FileChanged if it is not what was seen any more, LeadsOutside, Unwritable. That it is gone is fine."""
    here = _inside(root, path)
    try:
        now = here.lstat()
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (seen.st_ino, seen.st_size, seen.st_mtime_ns):
            raise FileChanged(f"{here} changed meanwhile, and is not deleted")
        here.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise Unwritable(f"{here}: {error.strerror}") from error


def delete_folder(root: Path, path: str) -> bool:
    """Whether it was empty, and is gone. Raises LeadsOutside, Unwritable."""
    here = _inside(root, path)
    try:
        here.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise Unwritable(f"{here}: {error.strerror}") from error
    return True


def _inside(root: Path, path: str) -> Path:
    """Raises LeadsOutside: what was a folder may be a symbolic link now."""
    directory = root
    *folders, last = path.split("/")
    for folder in folders:
        directory /= folder
        if directory.is_symlink():
            raise LeadsOutside(f"{directory} is a symbolic link: {path} would be elsewhere")
    return directory / last
