"""What lies in temp and blobs, found by walking their directories.

Sees only what the server may have made itself. Follows no symlink below the two, and removes nothing.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR

from uploader.storage.base import Found

_YEAR, _MONTH = re.compile(r"[0-9]{4}"), re.compile(r"0[1-9]|1[0-2]")
_UPLOAD = re.compile(r"[0-9a-f]{32}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
# A blob, or the name that the bytes of an upload have before they take a blob's place.
_BLOB = re.compile(r"[0-9a-f]{64}(\.[0-9a-f]{32})?")
_BLOCK_BYTES = 512  # st_blocks, whatever the filesystem's own (inode(7))


def months(root: Path) -> list[str]:
    """The months of temp, such as `2026/11`, the oldest first."""
    years = _directories(root / "temp", _YEAR)
    return sorted(f"{year.name}/{month.name}" for year in years for month in _directories(year, _MONTH))


def upload_directories(root: Path, month: str) -> Iterator[Found]:
    """The directories of uploads in a month."""
    for directory in _directories(root / "temp" / month, _UPLOAD):
        if found := look(root, directory):
            yield found


def blob_files(root: Path) -> Iterator[Found]:
    """The files of blobs, directory by directory."""
    for outer in sorted(_directories(root / "blobs", _FAN_OUT)):
        for inner in sorted(_directories(outer, _FAN_OUT)):
            prefix = outer.name + inner.name
            for entry in _entries(inner):
                if not (_BLOB.fullmatch(entry.name) and entry.name.startswith(prefix)):
                    continue
                if entry.is_file(follow_symlinks=False) and (found := look(root, inner / entry.name)):
                    yield found


def look(root: Path, path: Path) -> Found | None:
    """What is there now; None if it has gone."""
    try:
        own = path.lstat()
        files = [own]
        if S_ISDIR(own.st_mode):
            files = [entry.stat(follow_symlinks=False) for entry in _entries(path)]
    except FileNotFoundError:
        return None
    return Found(
        path=str(path.relative_to(root)),
        changed_at=max(each.st_ctime for each in (own, *files)),
        # Bytes that have another name stay.
        disk_bytes=sum(each.st_blocks * _BLOCK_BYTES for each in files if each.st_nlink == 1),
    )


def _directories(path: Path, names: re.Pattern[str]) -> Iterator[Path]:
    for entry in _entries(path):
        if names.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield path / entry.name


def _entries(path: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except FileNotFoundError:
        return  # it was removed meanwhile
