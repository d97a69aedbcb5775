"""The calls of the system that POSIX and Windows have each in a way of its own: to read anywhere in a file, to have a file
alone, to set its time, to tell what leads elsewhere, and which names a directory can have.

POSIX is what Linux and macOS have. What both have under one name is used where it is needed.
"""

import errno
import os
import stat
import sys
import threading
from contextlib import suppress
from pathlib import Path

# Characters that no name has there, and devices that are in every directory, with any suffix (Windows: Naming Files, Paths,
# and Namespaces).
_NO_CHARACTERS = frozenset('<>:"|?*\\') | {chr(number) for number in range(32)}
_DEVICES = frozenset(("CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$")) | {
    f"{port}{number}" for port in ("COM", "LPT") for number in "0123456789¹²³"
}


def why_not_on_windows(path: str) -> str | None:
    """Return why Windows can't have a file of this relative path with slashes; None if it can."""
    for name in path.split("/"):
        if not _NO_CHARACTERS.isdisjoint(name):
            return 'has one of the characters <>:"|?*\\, or a control character'
        if name.endswith((".", " ")):
            return "has a part that ends in a dot or a space"
        if is_device(name):
            return "has a part that is the name of a device"
    return None


def is_device(name: str) -> bool:
    """Return whether a name is that of a device of Windows, with whatever suffix."""
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
    _FILE_SHARE_DELETE = 4  # without it nobody could rename or delete the file, and neither could we
    _CREATE_NEW, _OPEN_ALWAYS = 1, 4
    _FILE_FLAG_OPEN_REPARSE_POINT = 0x00200000
    _INVALID_HANDLE = ctypes.c_void_p(-1).value
    _ERROR_SHARING_VIOLATION = 32
    # Of 100 ns, from 1601 to 1970.
    _EPOCH = 116_444_736_000_000_000

    # One position for all who read from a descriptor.
    _reading = threading.Lock()

    why_not_here = why_not_on_windows

    def same_here(path: str) -> str:
        """Return the same for all relative paths that are one here: there capitals make no difference."""
        return os.path.normcase(path).replace("\\", "/")

    def open_to_read(path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_BINARY)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        with _reading:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.read(descriptor, length)

    def open_alone(path: str | os.PathLike[str], *, new: bool = False) -> int:
        """Open a file to read and write it, which nobody else can do until it is closed; `new`: only if it is not there.
        Raises BlockingIOError if somebody else has it, FileExistsError, OSError."""
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
        """Set the time of modification. Of a link nothing is set. Raises OSError."""
        if isinstance(file, Path):
            if not leads_elsewhere(file):
                os.utime(file, ns=(nanoseconds, nanoseconds))
            return
        # By a path it would be set until this one is closed, which has written.
        moment = nanoseconds // 100 + _EPOCH
        time = wintypes.FILETIME(moment & 0xFFFFFFFF, moment >> 32)
        if not _kernel.SetFileTime(msvcrt.get_osfhandle(file), None, None, ctypes.byref(time)):
            raise ctypes.WinError(ctypes.get_last_error())

    def open_directory(_path: str | os.PathLike[str]) -> int | None:
        """Return None: Windows has no call that makes durable what a directory holds."""
        return None

else:
    import fcntl

    def same_here(path: str) -> str:
        """Return the same for all relative paths that are one here."""
        return path

    def why_not_here(_path: str) -> str | None:
        """Return why no file here can have this relative path with slashes; None if one can."""
        return None

    def open_to_read(path: Path) -> int:
        """Open it, but wait for nobody: a named pipe would hold up the caller. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read_at(descriptor: int, length: int, offset: int) -> bytes:
        return os.pread(descriptor, length, offset)

    def open_alone(path: str | os.PathLike[str], *, new: bool = False) -> int:
        """Open a file to read and write it, locked against others who open it so; `new`: only if it is not there. Raises
        BlockingIOError if somebody else has it, FileExistsError, OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_EXCL if new else 0)
        descriptor = os.open(path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def set_modified(file: Path | int, nanoseconds: int) -> None:
        """Set the time of modification, of a link its own. Raises OSError."""
        os.utime(file, ns=(nanoseconds, nanoseconds), follow_symlinks=isinstance(file, int))

    def open_directory(path: str | os.PathLike[str]) -> int | None:
        """Open it, to make durable what it holds. Raises OSError."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


# Of a junction, which Windows has for directories.
_MOUNT_POINT = 0xA0000003


def is_link(status: os.stat_result) -> bool:
    """Tell of what `lstat` found whether it leads elsewhere: a symbolic link, or a junction."""
    return stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _MOUNT_POINT


def leads_elsewhere(path: Path) -> bool:
    """Raises OSError, unless there is nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return is_link(path.lstat())
    return False
