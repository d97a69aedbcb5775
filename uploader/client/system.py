"""System calls that differ between POSIX and Windows: reading at an offset, opening a file exclusively, setting its
time, finding links, and the valid names in a directory.

POSIX stands for Linux and macOS. Calls with the same name on both are used directly.
"""

import errno
import os
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path

# Characters that Windows names can't have, and devices that exist in every directory, with any suffix (Windows: Naming
# Files, Paths, and Namespaces).
_NO_CHARACTERS = frozenset('<>:"|?*\\') | {chr(number) for number in range(32)}
_DEVICES = frozenset(("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$")) | {
    f"{port}{number}" for port in ("COM", "LPT") for number in "0123456789¹²³"
}


def why_not_on_windows(path: str) -> str | None:
    """Return why Windows can't have a file at this relative path with slashes; None if it can."""
    for name in path.split("/"):
        if not _NO_CHARACTERS.isdisjoint(name):
            return 'has one of the characters <>:"|?*\\, or a control character'
        if name.endswith((".", " ")):
            return "has a part that ends in a dot or a space"
        if is_device(name):
            return "has a part that is the name of a device"
    return None


def is_device(name: str) -> bool:
    """Return True for the name of a Windows device, with any suffix."""
    return name.partition(".")[0].rstrip(" ").upper() in _DEVICES


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel.CreateFileW.restype = wintypes.HANDLE
    _kernel.CreateFileW.argtypes = (
        *(wintypes.LPCWSTR, wintypes.DWORD, wintypes.DWORD, wintypes.LPVOID),
        *(wintypes.DWORD, wintypes.DWORD, wintypes.HANDLE),
    )
    _kernel.SetFileTime.argtypes = (wintypes.HANDLE, *[ctypes.POINTER(wintypes.FILETIME)] * 3)
    _GENERIC_READ, _GENERIC_WRITE = 0x80000000, 0x40000000
    _FILE_SHARE_DELETE = 4  # without this flag nobody, not even we, could rename or delete the open file
    _CREATE_NEW, _OPEN_ALWAYS = 1, 4
    _FILE_FLAG_OPEN_REPARSE_POINT = 0x00200000
    _INVALID_HANDLE = ctypes.c_void_p(-1).value
    _ERROR_SHARING_VIOLATION = 32
    # In units of 100 ns, from 1601 to 1970.
    _EPOCH = 116_444_736_000_000_000

    # All readers of a descriptor share one position.
    _reading = threading.Lock()

    why_not_here = why_not_on_windows

    def same_here(path: str) -> str:
        """Return the same text for all relative paths of one file: Windows ignores case."""
        return os.path.normcase(path).replace("\\", "/")

    def open_to_read(path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_BINARY)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        with _reading:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def open_alone(path: str | os.PathLike[str], *, new: bool = False) -> int:
        """Open a file for reading and writing, exclusively until it is closed. `new`: fail if it exists. Raises
        BlockingIOError if another program has it open, FileExistsError, OSError."""
        handle = _kernel.CreateFileW(
            os.fspath(path),
            _GENERIC_READ | _GENERIC_WRITE,
            _FILE_SHARE_DELETE,
            None,
            _CREATE_NEW if new else _OPEN_ALWAYS,
            _FILE_FLAG_OPEN_REPARSE_POINT,
            None,
        )
        if handle == _INVALID_HANDLE:
            number = ctypes.get_last_error()
            if number == _ERROR_SHARING_VIOLATION:
                raise BlockingIOError(errno.EAGAIN, "another program has it open", os.fspath(path))
            raise OSError(0, ctypes.FormatError(number).strip(), os.fspath(path), number)
        descriptor = msvcrt.open_osfhandle(handle, os.O_RDWR | os.O_BINARY | os.O_NOINHERIT)
        if os.fstat(descriptor).st_file_attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT:
            os.close(descriptor)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
        return descriptor

    def set_modified(file: Path | int, nanoseconds: int) -> None:
        """Set the time of modification; links stay unchanged. Raises OSError."""
        if isinstance(file, Path):
            if not leads_elsewhere(file):
                os.utime(file, ns=(nanoseconds, nanoseconds))
            return
        # Set by a path, the time would change again when this descriptor, which has written, is closed.
        moment = nanoseconds // 100 + _EPOCH
        time = wintypes.FILETIME(moment & 0xFFFFFFFF, moment >> 32)
        if not _kernel.SetFileTime(msvcrt.get_osfhandle(file), None, None, ctypes.byref(time)):
            raise ctypes.WinError(ctypes.get_last_error())

    def open_directory(_path: str | os.PathLike[str]) -> int | None:
        """Return None: Windows has no call to make the entries of a directory durable."""
        return None

else:
    import fcntl

    def same_here(path: str) -> str:
        """Return the same text for all relative paths of one file."""
        return path

    def why_not_here(_path: str) -> str | None:
        """Return why no file here can have this relative path; None if one can."""
        return None

    def open_to_read(path: Path) -> int:
        """Open a file without waiting: a named pipe would block the caller. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def open_alone(path: str | os.PathLike[str], *, new: bool = False) -> int:
        """Open a file for reading and writing, locked against other callers of this function. `new`: fail if it exists.
        Raises BlockingIOError if another program has the lock, FileExistsError, OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_EXCL if new else 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def set_modified(file: Path | int, nanoseconds: int) -> None:
        """Set the time of modification, for a link of the link itself. Raises OSError."""
        os.utime(file, ns=(nanoseconds, nanoseconds), follow_symlinks=isinstance(file, int))

    def open_directory(path: str | os.PathLike[str]) -> int | None:
        """Open a directory, to make its entries durable. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


# The tag of a junction, a link to a directory on Windows.
_MOUNT_POINT = 0xA0000003


def is_link(status: os.stat_result) -> bool:
    """Return whether the result of `lstat` is a symbolic link or a junction."""
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _MOUNT_POINT


def leads_elsewhere(path: Path) -> bool:
    """Return whether a path is a link. Raises OSError, but not for a missing file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return is_link(path.lstat())
    return False
