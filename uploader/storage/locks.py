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


def try_lock_shared(descriptor: int, start: int, length: int) -> bool:
    """Take the range together with other sharers; False if another holds any of it alone."""
    return _set(descriptor, fcntl.F_RDLCK, start, length)


def unlock(descriptor: int, start: int, length: int) -> None:
    """Give the range up (a close gives up all)."""
    _set(descriptor, fcntl.F_UNLCK, start, length)
