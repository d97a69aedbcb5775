"""The only way to the files: each call names an entry of a directory that is held open, and none follows a symlink.

So nothing that is planted below the data directory leads out of it: it gives an error. What is no regular file is no file,
and is never waited for. Owns how something is made durable and how a range of a file is locked; when, is its users' to say.
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

# What a part of a disk says that went bad, and nothing else.
DAMAGED = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
# And one without room.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors that end without a change of the settings, beside those.
PASSING = FULL | {*(errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT), errno.EMFILE, errno.ENFILE}
# What opening says of a directory, and of a socket or a device that can't be opened.
_NO_FILE = frozenset({errno.EISDIR, errno.ENXIO, errno.ENODEV})
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
# Of one write: for a longer one the page cache takes larger blocks of memory, which are cold; above all in a virtual machine
# that gives free ones back to its host, where each is a fault anew (docs/capacity.md).
_WRITE_BYTES = 512 << 10
_COMPARED_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW
# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi4x")


class SyncFailed(OSError):
    """Bytes of a file could not be made durable; writes may work all the same."""


class Directory:
    """An open directory. Close it, or use it in a `with`."""

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
        """Enter as `enter`, but make what is missing.

        Each is durable in its parent before this returns: also one that is there, because its maker may have died
        before it said so to the disk.
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
        """Make as `make`, but nothing is durable: a `sync_all` is to follow."""
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
        """Make all that was written to the filesystem durable, by whomever (syncfs(2)). An error of what was written since
        this directory was opened is told here, whether or not others are told of it."""
        if _libc.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    # Files

    def open_to_read(self, name: str) -> int:
        """Return a descriptor of a file. Raises FileNotFoundError, also where the name stands for anything but a
        regular file."""
        return self._open_file(name, os.O_RDONLY)

    def open_to_write(self, name: str) -> int:
        """Return a descriptor to read and write a file that is there. Raises as `open_to_read`."""
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
        """Return a new file that has no name and goes with its descriptor."""
        return os.open(".", os.O_TMPFILE | os.O_RDWR | _SAFE, _FILE_MODE, dir_fd=self._descriptor)

    def create(self, name: str, content: bytes) -> None:
        """Create a new file whose bytes are durable before this returns; its name is with the next `sync`."""
        with opened(self.create_to_write(name)) as descriptor:
            write(descriptor, memoryview(content), 0)
            sync_data(descriptor)

    def create_to_write(self, name: str) -> int:
        """Return a descriptor of a new file. Raises FileExistsError."""
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def create_empty(self, name: str, size_bytes: int = 0) -> None:
        """Create a new file of nothing but a hole; it is there with the next `sync`, and has its size when bytes are
        synced."""
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
        """Give an open file a name here, whatever it is called elsewhere. Raises FileExistsError."""
        os.link(f"/proc/self/fd/{descriptor}", _checked(name), dst_dir_fd=self._descriptor, follow_symlinks=True)

    def rename(self, name: str, new_name: str, directory: "Directory | None" = None) -> None:
        """Within this directory, or into another one; a file that has the new name loses it."""
        target = (directory or self)._descriptor
        os.rename(_checked(name), _checked(new_name), src_dir_fd=self._descriptor, dst_dir_fd=target)

    def unlink(self, name: str) -> bool:
        try:
            os.unlink(_checked(name), dir_fd=self._descriptor)
        except FileNotFoundError:
            return False
        return True

    def make_way(self, name: str) -> bool:
        """Take a name away from anything but a regular file, of directories from an empty one; whether a file has it.
        Raises FileNotFoundError if nothing does."""
        kind = self.status(name).st_mode
        if S_ISDIR(kind):
            self.remove_directory(name)
        elif not S_ISREG(kind):
            self.unlink(name)
        return S_ISREG(kind)

    def status(self, name: str) -> os.stat_result:
        return os.stat(_checked(name), dir_fd=self._descriptor, follow_symlinks=False)

    def has(self, path: str, opened: os.stat_result, *, unchanged: bool = False) -> bool:
        """Return whether a path below this directory leads to a file that was opened. It may lead through a symlink:
        nothing is opened by it. `unchanged`: nobody wrote to it, linked or unlinked it since; of one that is closed,
        the number of its inode alone may be another file's by now."""
        try:
            found = os.stat(path, dir_fd=self._descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, opened) and not (unchanged and found.st_ctime_ns != opened.st_ctime_ns)

    def _open_file(self, name: str, flags: int) -> int:
        try:
            descriptor = self._open(name, flags | os.O_NONBLOCK)  # a named pipe is not waited for
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
    """The data directory, the one place that is opened by a path, which is followed: it is the administrator's choice."""

    def __init__(self, path: Path) -> None:
        super().__init__(-1)
        self.path = path

    def open(self) -> None:
        """Make the directory if need be, and hold it open. Repeatable."""
        if self._descriptor >= 0:
            return
        _make_path(self.path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # It is closed with its last user: a thread may outlive the storage by a moment.
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
    """An open file that takes room, so many bytes, until somebody shortens it; closed with its last user."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._size_bytes = size_bytes
        weakref.finalize(self, os.close, descriptor)

    @property
    def is_used(self) -> bool:
        """Return whether it takes less: one call of the system, because each chunk asks."""
        return os.fstat(self.descriptor).st_size < self._size_bytes


def check_room(reserve: Reserve | None) -> None:
    """Raises StorageFull as long as the reserve is used: what is free is for giving space back."""
    if reserve is not None and reserve.is_used:
        raise full()


@contextmanager
def opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        close(descriptor)


def write(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all of it, piece by piece, however often the disk stops short."""
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
    """Fill a buffer; returns how many bytes there were."""
    return os.preadv(descriptor, [buffer], offset)


def room_for(length_bytes: int) -> memoryview:
    """Return memory to read files into, from the beginning of a page on. Into a bytearray, whose bytes begin 16 bytes
    later, an AMD EPYC copies a page in five times the time."""
    return memoryview(mmap.mmap(-1, length_bytes))


def holds(descriptor: int, pieces: Iterable[memoryview], offset: int, length_bytes: int) -> bool:
    """Return whether the bytes from `offset` on are the first ones of these pieces."""
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
    """Make the bytes of a file durable, and of its facts what reading them takes."""
    try:
        os.fdatasync(descriptor)
    except OSError as error:
        raise SyncFailed(*error.args) from error
    for trouble in (_SYNCS, _WRITES, _ALL):
        if trouble.is_open:
            trouble.worked()


def drop_cache(descriptor: int) -> None:
    """Let the next reads of a file ask the disk."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def status(descriptor: int) -> os.stat_result:
    return os.fstat(descriptor)


def is_unlinked(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink == 0


# Locks of open file descriptions, on ranges of bytes (`fcntl(2)`, F_OFD_SETLK): one descriptor is one holder. Unlike those
# of `lockf`, they conflict between descriptors of one process, and closing another descriptor does not drop them. No call
# waits for a lock, so that no thread is blocked: its caller tries again later.


def try_lock(descriptor: int, start: int, length: int) -> bool:
    """Take the range for this descriptor alone; False if another holds any of it. A length of 0 reaches to the end of the
    file and beyond."""
    return _set_lock(descriptor, fcntl.F_WRLCK, start, length)


def unlock_all(descriptor: int) -> None:
    _set_lock(descriptor, fcntl.F_UNLCK, 0, 0)


def unlock(descriptor: int, start: int, length: int) -> None:
    _set_lock(descriptor, fcntl.F_UNLCK, start, length)


def is_locked(descriptor: int, start: int, length: int) -> bool:
    """Return whether another descriptor holds any of the range. The look takes no lock, so it holds up no other process."""
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
    """Translate an error of the disk: into StorageFull, or StorageFailed of a kind. The log has one that lasts once."""
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
    """Translate an error of a data directory at a start: into one of `refusal`, if it can pass, or ConfigurationError."""
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
    """Forget the faults that another store of this process has met."""
    global _SYNCS, _WRITES, _ALL
    _SYNCS, _WRITES, _ALL = Trouble("disk, syncs"), Trouble("disk, writes"), Trouble("disk")


def boot_id() -> str:
    """Changes with every boot of the machine (`proc_sys_kernel(5)`, random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


# Whether a filesystem does what it has to: tried by doing it, before anything is stored. Runs in threads.


# Their locks or caches are coherent on one machine at the best, or what a sync means there is not known here.
_DOUBTFUL = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|ceph|glusterfs|9p|virtiofs|fuse(\..*|blk)?|lustre|ocfs2|gfs2?|gpfs|afs|beegfs|orangefs|pvfs2|vboxsf"
)
# What a system says of a call, or of a flag of it, that a filesystem does not have.
_LACKING = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EISDIR, errno.ENOENT, errno.ENOLCK, errno.EPERM}
)


def check_names(directories: dict[str, Directory]) -> None:
    """Raises ConfigurationError if files can't be linked from the first directory to each of the others, and renamed there.

    It is tried, because one filesystem may be mounted in two places, and nothing moves between them (link(2), EXDEV).
    """
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
    """Raises ConfigurationError if the lock of an open file keeps nobody out."""
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
    """Raises ConfigurationError if there are no files without a name."""
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
    """A mount, as `proc_pid_mountinfo(5)` has it: its place, the type of its filesystem, and the options of both."""

    point: Path
    kind: str
    options: frozenset[str]


def mounts() -> list[Mount]:
    """Return those that this process sees, in their order; none where the kernel does not tell."""
    try:
        return parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines())
    except OSError:
        return []


def parse_mounts(lines: Iterable[str]) -> list[Mount]:
    """Parse mountinfo; what is no line of it is passed over."""
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
    """Return the mount that an absolute path without symlinks lies on; None if none is told. Of two in one place the later
    covers the earlier."""
    found: Mount | None = None
    for mount in among:
        is_deeper = found is None or len(mount.point.parts) >= len(found.point.parts)
        if is_deeper and path.is_relative_to(mount.point):
            found = mount
    return found


def doubt_about(path: Path) -> str | None:
    """Return the doubt about the filesystem of a path, by its type; None if there is none."""
    mount = mount_of(path.resolve(), mounts())
    if mount is None or not _DOUBTFUL.fullmatch(mount.kind):
        return None
    return f"UPLOADER_DATA lies on {mount.kind}: bytes are safe on a local filesystem only, such as ext4 or XFS"


@dataclass(frozen=True, slots=True)
class Volume:
    """The room on the filesystem of a path. `inodes` is 0 where a filesystem does not count them."""

    total_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def volume_of(path: Path) -> Volume:
    found = os.statvfs(path)
    return Volume(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_files, found.f_favail)
