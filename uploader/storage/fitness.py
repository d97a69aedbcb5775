"""Whether a filesystem does what it has to: tried by doing it, before anything is stored. Runs in threads."""

import errno
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from uploader.errors import ConfigurationError
from uploader.storage import disk
from uploader.storage.disk import Directory

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
                reason = (
                    "they are not on one filesystem, in one mount" if error.errno == errno.EXDEV else error.strerror
                )
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
    one, other = directory.open_to_write(name), -1
    try:
        other = directory.open_to_write(name)
        excludes = disk.try_lock(one, 0, 1) and not disk.try_lock(other, 0, 1) and disk.is_locked(other, 0, 1)
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        excludes = False
    finally:
        for descriptor in (one, other):
            if descriptor >= 0:
                disk.close(descriptor)
    if not excludes:
        raise ConfigurationError(
            "UPLOADER_DATA: its filesystem has no locks of open files (fcntl(2), F_OFD_SETLK): use a local one, such as ext4"
        )


def check_unnamed(directory: Directory) -> None:
    """Raises ConfigurationError if there are no files without a name."""
    try:
        disk.close(directory.open_unnamed())
    except OSError as error:
        if error.errno not in _LACKING:
            raise
        raise ConfigurationError(
            "UPLOADER_DATA: its filesystem has no files without a name (open(2), O_TMPFILE): use a local one, such as ext4"
        ) from error


def doubt_about(path: Path) -> str | None:
    """What is to be said against the filesystem that a path lies on, by its type (`proc_pid_mountinfo(5)`)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    kind = filesystem_of(path.resolve(), mounts)
    if kind is None or not _DOUBTFUL.fullmatch(kind):
        return None
    return f"UPLOADER_DATA lies on {kind}: bytes are safe on a local filesystem only, such as ext4 or XFS"


def filesystem_of(path: Path, mounts: Iterable[str]) -> str | None:
    """The type of the filesystem that an absolute path without symlinks lies on; None if no line tells. Of two mounts in one
    place the later covers the earlier."""
    found: tuple[int, str] | None = None
    for line in mounts:
        before, separator, after = line.partition(" - ")
        fields, types = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        depth = len(point.parts)
        if path.is_relative_to(point) and (found is None or depth >= found[0]):
            found = depth, types[0]
    return None if found is None else found[1]
