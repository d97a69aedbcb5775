"""Access to the files of a store. Each call names an entry of an open directory, and no call follows a symlink.

A symlink that somebody plants below the data directory leads nowhere: its use is an error. An entry that is no regular file
counts as missing, and no call waits for it. This module knows how to make bytes durable and how to lock a range of a file.
Its users decide when.
"""

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import re
import struct
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from types import TracebackType
from typing import Self
from uuid import uuid4

from uploader.errors import ConfigurationError, StorageFailed, StorageFull, StorageReadOnly, UploaderError
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import Trouble

logger = logging.getLogger(__name__)

# Errors of a damaged part of a disk, and of nothing else.
DAMAGED = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
# Errors of a disk without free space.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors that may end without a change of the settings.
PASSING = FULL | {*(errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT), errno.EMFILE, errno.ENFILE}
# Errors of opening a directory, or a socket or a device that can't be opened.
_NO_FILE = frozenset({errno.EISDIR, errno.ENXIO, errno.ENODEV})
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
# Bytes of one write. For a longer write the page cache takes larger blocks of memory, which are cold. This is worst in a
# virtual machine that gives free blocks back to its host: there each new block is a fault (docs/capacity.md).
_WRITE_BYTES = 512 << 10
_COMPARED_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW
# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi4x")


class SyncFailed(OSError):
    """The bytes of a file could not be made durable. Writes may still work."""


class Directory:
    """An open directory. Close it after use, or use `with`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    # Directories

    def enter(self, path: str) -> "Directory":
        """Open a directory below this one, name by name."""
        name, _, rest = path.partition("/")
        child = Directory(self._open(name, os.O_RDONLY | os.O_DIRECTORY))
        if not rest:
            return child
        with child:
            return child.enter(rest)

    def make(self, path: str) -> "Directory":
        """Open a directory as `enter` does, and make the missing ones.

        Each directory is durable in its parent before this returns. An existing one is synced, too, because its maker may
        have died before the sync.
        """
        name, _, rest = path.partition("/")
        with suppress(FileExistsError):
            self.make_directory(name)
            crash_point("directory.after_mkdir")
        self.sync()
        child = self.enter(name)
        if not rest:
            return child
        with child:
            return child.make(rest)

    def make_unsynced(self, path: str) -> "Directory":
        """Make directories as `make` does, but sync nothing: a `sync_all` must follow."""
        try:
            return self.enter(path)
        except FileNotFoundError:
            name, _, rest = path.partition("/")
            with suppress(FileExistsError):
                self.make_directory(name)
            if not rest:
                return self.enter(name)
            with self.enter(name) as child:
                return child.make_unsynced(rest)

    def make_directory(self, name: str) -> None:
        os.mkdir(_checked(name), _DIRECTORY_MODE, dir_fd=self._descriptor)

    def remove_directory(self, name: str) -> None:
        os.rmdir(_checked(name), dir_fd=self._descriptor)

    @property
    def is_removed(self) -> bool:
        return is_unlinked(self._descriptor)

    def names(self) -> list[str]:
        return os.listdir(self._descriptor)  # noqa: PTH208 (names)

    def files(self) -> list[str]:
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def directories(self) -> list[str]:
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def sync_all(self) -> None:
        """Make everything durable that any process wrote to the filesystem (syncfs(2)). Raises an error of any write since
        this directory was opened, also if the error was reported to others."""
        if _libc.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    # Files

    def open_to_read(self, name: str) -> int:
        """Return a descriptor of a file. Raises FileNotFoundError, also if the entry is not a regular file."""
        return self._open_file(name, os.O_RDONLY)

    def open_to_write(self, name: str) -> int:
        """Return a descriptor to read and write a file that exists. Raises as `open_to_read`."""
        return self._open_file(name, os.O_RDWR)

    def read_whole(self, name: str) -> bytes:
        with opened(self.open_to_read(name)) as descriptor:
            return read(descriptor, status(descriptor).st_size, 0)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes. Raises as `open_to_read`."""
        found = self.status(name)
        if not S_ISREG(found.st_mode):
            raise _no_file(name)
        return found.st_size

    def open_unnamed(self) -> int:
        """Return the descriptor of a new file without a name. The file goes with its descriptor."""
        return os.open(".", os.O_TMPFILE | os.O_RDWR | _SAFE, _FILE_MODE, dir_fd=self._descriptor)

    def create(self, name: str, content: bytes) -> None:
        """Create a file. The bytes are durable before this returns, the name with the next `sync`."""
        with opened(self.create_to_write(name)) as descriptor:
            write(descriptor, memoryview(content), 0)
            sync_data(descriptor)

    def create_to_write(self, name: str) -> int:
        """Return a descriptor of a new file. Raises FileExistsError."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def create_empty(self, name: str, size_bytes: int = 0) -> None:
        """Create a file that is one hole. The name is durable with the next `sync`, the size when the bytes are synced."""
        with opened(self.create_to_write(name)) as descriptor:
            if size_bytes:
                resize(descriptor, size_bytes)

    def link(self, name: str, directory: "Directory", new_name: str) -> None:
        """Give a file a second name. Raises FileExistsError."""
        os.link(
            _checked(name),
            _checked(new_name),
            src_dir_fd=self._descriptor,
            dst_dir_fd=directory._descriptor,
            follow_symlinks=False,
        )

    def link_open(self, descriptor: int, name: str) -> None:
        """Give an open file a name in this directory. Raises FileExistsError."""
        os.link(f"/proc/self/fd/{descriptor}", _checked(name), dst_dir_fd=self._descriptor, follow_symlinks=True)

    def rename(self, name: str, new_name: str, directory: "Directory | None" = None) -> None:
        """Rename an entry, within this directory or into another one. A file with the new name is replaced."""
        target = (directory or self)._descriptor
        os.rename(_checked(name), _checked(new_name), src_dir_fd=self._descriptor, dst_dir_fd=target)

    def unlink(self, name: str) -> bool:
        try:
            os.unlink(_checked(name), dir_fd=self._descriptor)
        except FileNotFoundError:
            return False
        return True

    def make_way(self, name: str) -> bool:
        """Remove an entry that is not a regular file; a directory only if it is empty. Return whether the entry is a regular
        file. Raises FileNotFoundError if there is no entry."""
        kind = self.status(name).st_mode
        if S_ISDIR(kind):
            self.remove_directory(name)
        elif not S_ISREG(kind):
            self.unlink(name)
        return S_ISREG(kind)

    def status(self, name: str) -> os.stat_result:
        return os.stat(_checked(name), dir_fd=self._descriptor, follow_symlinks=False)

    def has(self, path: str, opened: os.stat_result, *, unchanged: bool = False) -> bool:
        """Return whether a path below this directory leads to the file with the status `opened`. The path may lead through a
        symlink, because nothing is opened. `unchanged`: and nobody wrote, linked or unlinked the file since. Ask for this if
        the file was closed, because another file may have its inode number by now."""
        try:
            found = os.stat(path, dir_fd=self._descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, opened) and not (unchanged and found.st_ctime_ns != opened.st_ctime_ns)

    def _open_file(self, name: str, flags: int) -> int:
        try:
            descriptor = self._open(name, flags | os.O_NONBLOCK)  # do not wait for a named pipe
        except OSError as error:
            if error.errno in _NO_FILE:
                raise _no_file(name) from error
            raise
        try:
            if not S_ISREG(os.fstat(descriptor).st_mode):
                raise _no_file(name)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _open(self, name: str, flags: int) -> int:
        return os.open(_checked(name), flags | _SAFE, _FILE_MODE, dir_fd=self._descriptor)


class Root(Directory):
    """The data directory, the only one opened by a path. Symlinks in the path are followed: the administrator chose it."""

    def __init__(self, path: Path) -> None:
        super().__init__(-1)
        self.path = path

    def open(self) -> None:
        """Make the directory if needed, and hold it open. Repeatable."""
        if self._descriptor >= 0:
            return
        _make_path(self.path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Closed with the last user, because a thread may outlive the store by a moment.
        weakref.finalize(self, os.close, self._descriptor)

    def figures(self) -> os.statvfs_result:
        return os.statvfs(self._descriptor)


def _make_path(path: Path) -> None:
    if not path.is_dir():
        _make_path(path.parent)
        with suppress(FileExistsError):
            path.mkdir(_DIRECTORY_MODE)
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with Directory(parent) as opened:
            opened.sync()


def _checked(name: str) -> str:
    if name in ("", ".", "..") or "/" in name:
        raise OSError(errno.EINVAL, "not the name of an entry", name)
    return name


def _no_file(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "not a regular file", name)


# Open files


def close(descriptor: int) -> None:
    os.close(descriptor)


class Reserve:
    """An open file of `size_bytes` that reserves disk space until somebody shortens the file. Closed with its last user."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._size_bytes = size_bytes
        weakref.finalize(self, os.close, descriptor)

    @property
    def is_used(self) -> bool:
        """Return whether the file was shortened. This takes one system call, because each chunk asks."""
        return os.fstat(self.descriptor).st_size < self._size_bytes


def check_room(reserve: Reserve | None) -> None:
    """Raises StorageFull while the reserve is used: the free space is then for requests that free more."""
    if reserve is not None and reserve.is_used:
        raise full()


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        close(descriptor)


def write(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all bytes, piece by piece, also if the disk takes only some of them at a time."""
    while len(content):
        written = os.pwrite(descriptor, content[:_WRITE_BYTES], offset)
        content, offset = content[written:], offset + written
    for trouble in (_WRITES, _ALL):
        if trouble.is_open:
            trouble.worked()


def read(descriptor: int, length_bytes: int, offset: int) -> bytes:
    content = os.pread(descriptor, length_bytes, offset)
    if _ALL.is_open:
        _ALL.worked()
    return content


def read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer. Return the number of bytes that were read."""
    return os.preadv(descriptor, [buffer], offset)


def room_for(length_bytes: int) -> memoryview:
    """Return memory to read files into, aligned to a page. An AMD EPYC takes five times as long to copy a page into a
    bytearray, because its bytes begin 16 bytes after a page."""
    return memoryview(mmap.mmap(-1, length_bytes))


def holds(descriptor: int, pieces: Iterable[memoryview], offset: int, length_bytes: int) -> bool:
    """Return whether the file has, at `offset`, the first `length_bytes` of these pieces."""
    for piece in pieces:
        for start in range(0, min(len(piece), length_bytes), _COMPARED_BYTES):
            part = piece[start : min(start + _COMPARED_BYTES, length_bytes)]
            if read(descriptor, len(part), offset + start) != part:
                return False
        offset, length_bytes = offset + len(piece), length_bytes - len(piece)
        if length_bytes <= 0:
            break
    return True


def resize(descriptor: int, length_bytes: int) -> None:
    os.ftruncate(descriptor, length_bytes)


def sync_data(descriptor: int) -> None:
    """Make the bytes of a file durable, and the metadata that reading them takes."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        raise SyncFailed(*error.args) from error
    for trouble in (_SYNCS, _WRITES, _ALL):
        if trouble.is_open:
            trouble.worked()


def drop_cache(descriptor: int) -> None:
    """Let the next reads of a file go to the disk."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def status(descriptor: int) -> os.stat_result:
    return os.fstat(descriptor)


def is_unlinked(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink == 0


# Locks of open file descriptions, on ranges of bytes (`fcntl(2)`, F_OFD_SETLK): the descriptor is the holder. Unlike the
# locks of `lockf`, they conflict between descriptors of one process, and closing another descriptor does not drop them. No
# call waits for a lock, so no thread is blocked: the caller tries again later.


def try_lock(descriptor: int, start: int, length: int) -> bool:
    """Lock a range for this descriptor. Return False if another descriptor has locked any of it. A length of 0 reaches to
    the end of the file and beyond."""
    return _set_lock(descriptor, fcntl.F_WRLCK, start, length)


def unlock_all(descriptor: int) -> None:
    _set_lock(descriptor, fcntl.F_UNLCK, 0, 0)


def unlock(descriptor: int, start: int, length: int) -> None:
    _set_lock(descriptor, fcntl.F_UNLCK, start, length)


def is_locked(descriptor: int, start: int, length: int) -> bool:
    """Return whether another descriptor has locked any of the range. This takes no lock, so no other process has to wait."""
    lock = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != fcntl.F_UNLCK


def _set_lock(descriptor: int, kind: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


# Faults that last: of syncs, of writes, and of all that may fail.
_SYNCS, _WRITES, _ALL = Trouble("disk, syncs"), Trouble("disk, writes"), Trouble("disk")


def refusal(error: OSError) -> UploaderError:
    """Translate an error of the disk into StorageFull, StorageReadOnly or StorageFailed. The log has a lasting error
    once."""
    if error.errno in FULL:
        return full()
    meant: UploaderError
    if error.errno == errno.EROFS:
        meant, note = StorageReadOnly(), partial(_WRITES.note, "the disk can only be read", path=error.filename)
    else:
        trouble = _SYNCS if isinstance(error, SyncFailed) else _ALL
        meant, note = StorageFailed(), partial(trouble.note, "the disk reports an error", trace=error)
    meant.is_told = note(kind=str(error.errno), level=logging.ERROR)
    return meant


def unfit(path: Path, error: OSError) -> UploaderError:
    """Translate an error at a start: as `refusal` does if the error may pass, else into ConfigurationError."""
    reason = f"UPLOADER_DATA: {path} cannot be written: {error.strerror}"
    if error.errno not in PASSING:
        return ConfigurationError(reason)
    meant = refusal(error)
    meant.inside = reason
    return meant


def full() -> StorageFull:
    error = StorageFull()
    error.is_told = _WRITES.note("the disk is full", kind="full", level=logging.WARNING)
    return error


def begin_anew() -> None:
    """Forget the faults that an earlier store of this process met."""
    global _SYNCS, _WRITES, _ALL
    _SYNCS, _WRITES, _ALL = Trouble("disk, syncs"), Trouble("disk, writes"), Trouble("disk")


def boot_id() -> str:
    """Return an id that changes with every boot of the machine (`proc_sys_kernel(5)`, random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# Tests of a filesystem, before anything is stored: they do what the store will do. In threads.


# Filesystems that keep locks or caches coherent on one machine at best, or whose syncs are not known to be durable.
_DOUBTFUL = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|ceph|glusterfs|9p|virtiofs|fuse(\..*|blk)?|lustre|ocfs2|gfs2?|gpfs|afs|beegfs|orangefs|pvfs2|vboxsf"
)
# Errors for a call, or for a flag of a call, that a filesystem does not have.
_LACKING = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EISDIR, errno.ENOENT, errno.ENOLCK, errno.EPERM}
)


def check_names(directories: dict[str, Directory]) -> None:
    """Check that files can be linked from the first directory to each of the others, and renamed there. Raises
    ConfigurationError. One filesystem may be mounted in two places, and nothing moves between them (link(2), EXDEV)."""
    (first_name, first), *others = directories.items()
    probe, second = f"probe.{uuid4().hex}", f"probe.{uuid4().hex}"
    first.create_empty(probe)
    try:
        for name, directory in others:
            try:
                first.link(probe, directory, probe)
                directory.rename(probe, second)
            except OSError as error:
                if error.errno not in (errno.EXDEV, *_LACKING):
                    raise
                is_other = error.errno == errno.EXDEV
                reason = "they are not on one filesystem, in one mount" if is_other else error.strerror
                raise ConfigurationError(
                    f"UPLOADER_DATA: no file can be linked from {first_name} to {name}: {reason}"
                ) from error
            finally:
                for each in (probe, second):
                    with suppress(OSError):
                        directory.unlink(each)
        _check_locks(first, probe)
    finally:
        with suppress(OSError):
            first.unlink(probe)


def _check_locks(directory: Directory, name: str) -> None:
    """Check that a lock keeps another descriptor out. Raises ConfigurationError."""
    with opened(directory.open_to_write(name)) as one:
        try:
            with opened(directory.open_to_write(name)) as other:
                excludes = try_lock(one, 0, 1) and not try_lock(other, 0, 1) and is_locked(other, 0, 1)
        except OSError as error:
            if error.errno not in _LACKING:
                raise
            excludes = False
    if not excludes:
        raise ConfigurationError(
            "UPLOADER_DATA: its filesystem has no locks of open files (fcntl(2), F_OFD_SETLK): use a local one, such as ext4"
        )


def check_unnamed(directory: Directory) -> None:
    """Check that files without a name can be made. Raises ConfigurationError."""
    try:
        close(directory.open_unnamed())
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        raise ConfigurationError(
            "UPLOADER_DATA: its filesystem has no files without a name (open(2), O_TMPFILE): use a local one, such as ext4"
        ) from error


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount, as in `proc_pid_mountinfo(5)`: the place, the type of the filesystem, and the options of both."""

    point: Path
    kind: str
    options: frozenset[str]


def mounts() -> list[Mount]:
    """Return the mounts that this process sees, in their order; none if the kernel does not tell."""
    try:
        return parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines())
    except OSError:
        return []


def parse_mounts(lines: Iterable[str]) -> list[Mount]:
    """Parse mountinfo. Skip lines of another format."""
    found = []
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields, (kind, *more) = before.split(" "), after.split(" ")
        if separator and len(fields) >= 6:
            point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
            options = [each for text in (fields[5], *more[1:]) for each in text.split(",")]
            found.append(Mount(point, kind, frozenset(options)))
    return found


def mount_of(path: Path, among: Iterable[Mount]) -> Mount | None:
    """Return the mount of an absolute path without symlinks; None if there is none. Of two mounts in the same place, the
    later covers the earlier."""
    found: Mount | None = None
    for mount in among:
        is_deeper = found is None or len(mount.point.parts) >= len(found.point.parts)
        if is_deeper and path.is_relative_to(mount.point):
            found = mount
    return found


def doubt_about(path: Path) -> str | None:
    """Return a warning if the type of the path's filesystem is doubtful, else None."""
    mount = mount_of(path.resolve(), mounts())
    if mount is None or not _DOUBTFUL.fullmatch(mount.kind):
        return None
    return f"UPLOADER_DATA lies on {mount.kind}: bytes are safe on a local filesystem only, such as ext4 or XFS"


@dataclass(frozen=True, slots=True)
class Volume:
    """The space on the filesystem of a path. `inodes` is 0 if the filesystem does not count them."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def volume_of(path: Path) -> Volume:
    found = os.statvfs(path)
    return Volume(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail)
