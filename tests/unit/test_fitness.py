"""A filesystem that can't do what it has to is refused with one line, and one that could lose bytes is named."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.faults import Call, failing, failing_call
from tests.support.storing import new_storage
from uploader.errors import ConfigurationError, StorageReadOnly
from uploader.storage import disk
from uploader.storage.disk import doubt_about, mount_of, parse_mounts
from uploader.storage.store import Spool

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /srv rw,relatime shared:1 master:2 - xfs /dev/vdb rw
41 40 0:51 / /srv/data rw,relatime shared:3 - nfs4 server:/export rw,vers=4.2
42 27 0:52 / /srv/data\\040two rw - fuse.juicefs JuiceFS:store rw
43 27 0:53 / /twice rw - ext4 /dev/vdc rw
44 43 0:54 / /twice rw - ceph server:/ rw
a line of a kernel to come
""".splitlines()


def test_the_filesystem_of_a_path_is_that_of_the_deepest_mount() -> None:
    kinds = {"/home/data": "ext4", "/srv": "xfs", "/srv/database": "xfs", "/srv/data/uploader": "nfs4"}
    kinds |= {"/srv/data two/uploader": "fuse.juicefs", "/twice/data": "ceph", "/proc/self": "proc"}
    found = {path: mount_of(Path(path), parse_mounts(MOUNTS)) for path in kinds}
    assert {path: mount and mount.kind for path, mount in found.items()} == kinds
    home = found["/home/data"]
    assert home is not None
    assert home.options == {"rw", "relatime", "discard"}
    assert mount_of(Path("/data"), parse_mounts(["", "1 2 3"])) is None


def test_a_shared_filesystem_is_doubted_and_a_local_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = ["nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "9p", "fuse.sshfs", "lustre", "gfs2"]
    local = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"]
    for kind in shared + local:
        mount = f"1 0 0:1 / / rw - {kind} somewhere rw\n"
        monkeypatch.setattr(Path, "read_text", lambda *_args, mount=mount, **_more: mount)
        doubt = doubt_about(Path("/data"))
        if kind in local:
            assert doubt is None, kind
        else:
            assert f"lies on {kind}: " in str(doubt)


async def refusal_of(path: Path) -> str:
    storage = new_storage(path, durable=True)
    try:
        with pytest.raises((ConfigurationError, StorageReadOnly)) as refused:
            await storage.prepare()
    finally:
        storage.close()
    return refused.value.reason


@pytest.mark.parametrize("target", ["blobs", "trash"])
async def test_directories_where_nothing_can_be_linked_or_written_are_refused(tmp_path: Path, target: str) -> None:
    """As a mount of the same filesystem in the place of one of them has it: the device is the same."""

    def into_target(call: Call) -> bool:
        if call.name != "link":
            return False
        return Path(f"/proc/self/fd/{call.options['dst_dir_fd']}").readlink().name == target

    with failing(into_target, errno.EXDEV, times=None):
        assert f"no file can be linked from temp to {target}: they are not on one filesystem" in await refusal_of(
            tmp_path
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    storage = new_storage(tmp_path, durable=True)
    await storage.prepare()
    storage.close()
    with failing_call("open", errno.EROFS, times=None, only=lambda path: path.name.startswith("probe.")):
        assert "cannot be written: Read-only file system" in await refusal_of(tmp_path)


@pytest.mark.parametrize("error_number", [errno.EOPNOTSUPP, errno.EISDIR])
async def test_a_filesystem_without_unnamed_files_is_refused(tmp_path: Path, error_number: int) -> None:
    def is_unnamed(call: Call) -> bool:
        return call.name == "open" and call.arguments[1] & os.O_TMPFILE == os.O_TMPFILE

    with failing(is_unnamed, error_number, times=None):
        assert "O_TMPFILE" in await refusal_of(tmp_path)
        spool = Spool(tmp_path)
        with pytest.raises(ConfigurationError, match="O_TMPFILE"):
            await spool.prepare()
        spool.close()


def refuse(*_: Any) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def lock_nothing(_descriptor: int, command: int, lock: bytes) -> bytes:
    return disk._FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0) if command == fcntl.F_OFD_GETLK else lock


@pytest.mark.parametrize("answer", [refuse, lock_nothing])
async def test_locks_that_keep_nobody_out_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., Any]
) -> None:
    monkeypatch.setattr(disk, "fcntl", SimpleNamespace(**vars(fcntl) | {"fcntl": answer}))
    assert "F_OFD_SETLK" in await refusal_of(tmp_path)
