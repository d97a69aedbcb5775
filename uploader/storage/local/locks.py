"""Open-file-description locks on byte ranges (`fcntl(2)`, F_OFD_SETLK): one descriptor is one holder.

Unlike `lockf`, they conflict between descriptors of one process and are not dropped by another descriptor's close.
Nothing here waits: who does not get a lock tries again later, so no thread is blocked.
"""

import errno
import fcntl
import os
import struct

# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 for these locks).
_FLOCK = struct.Struct("hhqqi4x")


def _set(descriptor: int, kind: int, start: int, length: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def try_lock(descriptor: int, start: int, length: int) -> bool:
    """Take the range for this descriptor alone; False if another holds any of it."""
    return _set(descriptor, fcntl.F_WRLCK, start, length)


def unlock_all(descriptor: int) -> None:
    """Give up every range that this descriptor holds."""
    _set(descriptor, fcntl.F_UNLCK, 0, 0)  # 0: to the end of the file, and beyond


def is_locked(descriptor: int, start: int, length: int) -> bool:
    """Whether another descriptor holds any of the range. To look holds up nobody, not even for a moment."""
    lock = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, length, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))[0]
    return kind != fcntl.F_UNLCK
