"""Finds files of an installation that other accounts may access, and closes them.

The start closes them. `uploader doctor` looks at all of them and changes nothing. Neither follows a symlink.
"""

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from uploader.storage import disk

logger = logging.getLogger(__name__)

_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# The right to pass through a directory, of the group or of all accounts.
_PASSING = stat.S_IXGRP | stat.S_IXOTH
# Entries between two looks at the clock.
_ENTRIES = 256
_SHOWN = 3


def close_to_others(paths: Iterable[Path]) -> bool:
    """Take all rights of other accounts to these files and directories away. Log one line about the closed paths, and
    another line about paths that belong to others or can't be changed. Skip missing paths and symlinks. Return whether any
    path was closed."""
    closed: list[str] = []
    open_still: list[str] = []
    for path in paths:
        with suppress(FileNotFoundError):
            is_closed = _close_to_others(path)
            if is_closed is not None:
                (closed if is_closed else open_still).append(str(path))
    if closed:
        logger.warning(f"other accounts of this machine had access to {', '.join(closed)}: not any more")
    if open_still:
        logger.warning(
            f"other accounts of this machine have access to {', '.join(open_still)}, and it can't be taken away"
        )
    return bool(closed)


def _close_to_others(path: Path) -> bool | None:
    """Return True if the path is closed now, False if it is still open, None if it was closed before."""
    try:
        # O_PATH opens no file: closing a file that SQLite has open would drop SQLite's locks.
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        return False
    with disk.opened(descriptor):
        found = os.fstat(descriptor)
        if stat.S_ISLNK(found.st_mode) or not found.st_mode & _OF_OTHERS:
            return None
        if found.st_uid != os.geteuid():
            return False
        try:
            Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(found.st_mode) & ~_OF_OTHERS)
        except OSError:
            return False
        return not os.fstat(descriptor).st_mode & _OF_OTHERS


@dataclass(slots=True)
class Tally:
    """A count of paths, with the first few of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, path: str) -> None:
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(path)

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return ", ".join(self.first) + (f" and {more} more" if more else "")


@dataclass(slots=True)
class Access:
    """The paths whose modes let other accounts in: `open` paths can be reached, `closed_above` paths lie below a closed
    directory. `foreign` paths have another owner. `hidden` paths could not be looked at. `is_whole`: there was time for
    all."""

    seen: int = 0
    is_whole: bool = True
    open: Tally = field(default_factory=Tally)
    closed_above: Tally = field(default_factory=Tally)
    foreign: Tally = field(default_factory=Tally)
    hidden: Tally = field(default_factory=Tally)


class _OutOfTime(Exception):
    """The time to look is over."""


@dataclass(slots=True)
class _Look:
    owner: int
    ends_at: float
    access: Access = field(default_factory=Access)

    def note(self, path: str, found: os.stat_result, *, reachable: bool) -> None:
        access = self.access
        access.seen += 1
        if access.seen % _ENTRIES == 0 and time.monotonic() > self.ends_at:
            raise _OutOfTime
        if found.st_mode & _OF_OTHERS:
            (access.open if reachable else access.closed_above).add(path)
        if found.st_uid != self.owner:
            access.foreign.add(path)

    def walk(self, path: str, parent: int | None, *, reachable: bool) -> None:
        """Look at everything below a directory. `parent`: the open directory that contains it; None: open it by its path."""
        name = path if parent is None else path.rpartition("/")[2]
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            return
        except OSError:
            self.access.hidden.add(path)
            return
        with disk.opened(descriptor), os.scandir(descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    self.look(f"{path}/{entry.name}", entry.stat(follow_symlinks=False), descriptor, reachable)

    def look(self, path: str, found: os.stat_result, parent: int | None, reachable: bool) -> None:
        if stat.S_ISLNK(found.st_mode):
            return
        self.note(path, found, reachable=reachable)
        if stat.S_ISDIR(found.st_mode):
            self.walk(path, parent, reachable=reachable and bool(found.st_mode & _PASSING))


def look_at_access(data: Path, ours: Iterable[Path], *, owns_all: bool, seconds: float) -> Access:
    """Look at a data directory and at everything below `ours`, in this order, until the time is over. `ours`: the paths of
    an installation, here or elsewhere. `owns_all`: the data directory holds nothing else, and its mode counts, too."""
    found = data.stat()
    looking = _Look(found.st_uid, time.monotonic() + seconds)
    try:
        if owns_all:
            looking.note(str(data), found, reachable=True)
        for path, status in _there(ours, looking.access):
            is_within = path.is_relative_to(data)
            looking.look(str(path), status, None, not is_within or bool(found.st_mode & _PASSING))
    except _OutOfTime:
        looking.access.is_whole = False
    return looking.access


def _there(paths: Iterable[Path], access: Access) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        try:
            yield path, path.lstat()
        except FileNotFoundError:
            continue
        except OSError:
            access.hidden.add(str(path))


def is_readable_to_others(path: Path) -> bool:
    """Return whether the mode of a file lets any account read, or others than the owner write. A mount by itself and a file
    in memory are how containers get secrets: no other account is there."""
    mode = path.stat().st_mode
    if not mode & (stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        return False
    mount = disk.mount_of(path.resolve(), disk.mounts())
    return mount is None or (mount.point != path.resolve() and mount.kind not in ("tmpfs", "ramfs"))


def umask() -> int:
    """Return the umask of this process without changing it (`proc_pid_status(5)`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return _OF_OTHERS  # before Linux 4.7: not told
