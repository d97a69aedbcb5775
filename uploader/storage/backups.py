"""The directory of backups: a dump of the database for each backup, and one tree with the blobs of all dumps.

    DIR/installation                             the id of the installation; locked while a backup is made or removed
    DIR/blobs/ab/cd/<sha256>
    DIR/20261122T210500Z/{manifest.json, …}      a complete backup
    DIR/20261122T210500Z.new                     an interrupted backup

Never reads a dump's content. Runs in threads.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from uploader.storage import disk, modes
from uploader.storage.disk import Directory, Root
from uploader.storage.hashes import BlockChecksums, are_blocks_listed
from uploader.storage.local import directories
from uploader.storage.local.blobs import fan_out, keep_list
from uploader.storage.store import mark_of, parse_mark

# The format version of everything in the directory.
_FORMAT = 1
_OWNER, _MANIFEST = "installation", "manifest.json"
_STAMP, _NEW = re.compile(r"[0-9]{8}T[0-9]{6}Z"), ".new"
_READ_BYTES = 1 << 20
# Errors after which the bytes are copied: no link leads to this filesystem, or the file has too many links or no name.
_UNLINKABLE = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOENT, errno.EOPNOTSUPP, errno.ENOSYS})


class BackupRefused(Exception):
    """A backup can't be made or restored. The message is the reason, in one line."""


class BlobDamaged(Exception):
    """The bytes of a blob do not have its SHA-256, or can't be read."""


class BlobTree:
    """The blobs `blobs/ab/cd/<sha256>` below a directory of backups, or below a directory that will be a data directory."""

    def __init__(self, root: Root, *, is_store: bool = False) -> None:
        """`is_store`: downloads will read the tree, so large blobs get the checksums of their blocks."""
        self._root = root
        self._is_store = is_store

    def has(self, sha256: str, size: int, *, rereads: bool) -> bool:
        """Return whether a blob exists with this size. `rereads`: compare its bytes with the SHA-256, too."""
        try:
            with self._root.enter(f"blobs/{fan_out(sha256)}") as directory:
                if directory.size(sha256) != size:
                    return False
            if rereads:
                with disk.opened(self.open(sha256)) as descriptor:
                    _check(sha256, descriptor)
        except (FileNotFoundError, BlobDamaged):
            return False
        return True

    def open(self, sha256: str) -> int:
        """Return a descriptor to read a blob. Raises FileNotFoundError."""
        with self._root.enter(f"blobs/{fan_out(sha256)}") as directory:
            return directory.open_to_read(sha256)

    def place(self, sha256: str, source: int) -> bool:
        """Make the bytes of an open file the blob, after comparing them with its SHA-256. Return True after a link, False
        after a copy. The bytes of a copy are durable; names become durable with the next `sync`. Raises BlobDamaged."""
        draft = f"{sha256}.{secrets.token_hex(16)}"
        size = disk.status(source).st_size
        computing = BlockChecksums() if self._is_store and are_blocks_listed(size) else None
        with self._root.make_unsynced(f"blobs/{fan_out(sha256)}") as directory:
            try:
                linked = _is_linked(directory, source, draft)
                if linked:
                    _check(sha256, source, computing=computing)
                else:
                    with disk.opened(directory.create_to_write(draft)) as target:
                        _check(sha256, source, target, computing=computing)
                        disk.sync_data(target)
                        disk.drop_cache(target)
                directory.rename(draft, sha256)
                if computing is not None:
                    keep_list(directory, sha256, size, computing.end())
            finally:
                directory.unlink(draft)  # a rename between two names of one file leaves both
        return linked

    def keep_only(self, needed: Iterable[str]) -> int:
        """Remove all blobs except `needed`, which must be sorted. Return how many were removed."""
        names, removed = iter(needed), 0
        name = next(names, None)
        for found in directories.blob_files(self._root):
            while name is not None and name < found.name:
                name = next(names, None)
            if found.name != name:
                removed += directories.remove(self._root, found)
        return removed

    def sync(self) -> None:
        self._root.sync_all()


class BackupDirectory:
    """One directory of backups. Close it after use."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError."""
        self.path = path.absolute()
        if not self.path.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._root = Root(self.path)
        self._root.open()
        self._lock: int | None = None
        self.blobs = BlobTree(self._root)

    def __str__(self) -> str:
        """Return the path as text, although it may have bytes that are no text."""
        return os.fsencode(self.path).decode(errors="replace")

    @classmethod
    def claim(cls, path: Path, installation: str) -> Self:
        """Open and lock the directory to write, or make it, closed to other accounts. Raises BackupRefused."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened = cls(path)
        root = opened._root
        if _OWNER not in (names := root.names()):
            if any(not name.startswith(f"{_OWNER}.") for name in names):
                raise BackupRefused(f"{opened.path} has other things in it: give backups a directory of their own")
            draft = f"{_OWNER}.{secrets.token_hex(16)}"
            root.create(draft, mark_of(_FORMAT, installation))
            root.rename(draft, _OWNER)
            root.sync()
        if (owner := opened.installation(installation)) != installation:
            raise BackupRefused(f"{opened.path} has backups of installation {owner}, this is {installation}")
        opened._lock = root.open_to_write(_OWNER)
        if not disk.try_lock(opened._lock, 0, 0):
            raise BackupRefused(f"another backup to {opened.path} is being made")
        modes.close_to_others([opened.path.resolve()])
        return opened

    def close(self) -> None:
        if self._lock is not None:
            disk.close(self._lock)
            self._lock = None

    def installation(self, known: str | None = None) -> str:
        """Return the installation of the backups. `known`: the id to recognise a damaged file by. Raises BackupRefused."""
        try:
            mark = parse_mark((self.path / _OWNER).read_bytes(), _FORMAT, known)
        except FileNotFoundError as error:
            raise BackupRefused(f"{self.path} is no directory of backups") from error
        if mark is None:
            raise BackupRefused(f"{self.path / _OWNER} is damaged")
        if mark.version > _FORMAT:
            raise BackupRefused(f"{self.path} has backups of format {mark.version}: install a newer version")
        return mark.installation

    # Dumps

    def stamps(self) -> list[str]:
        """Return the stamps of the complete backups, the oldest first."""
        return sorted(filter(_STAMP.fullmatch, self._root.directories()))

    def begin(self, now: datetime) -> tuple[str, Path]:
        """Remove interrupted backups. Return a new stamp and an empty directory."""
        for name in self._root.directories():
            if name.endswith(_NEW) and _STAMP.fullmatch(name.removesuffix(_NEW)):
                shutil.rmtree(self.path / name)
        while (stamp := now.strftime("%Y%m%dT%H%M%SZ")) in self.stamps():
            now += timedelta(seconds=1)
        begun = self.path / f"{stamp}{_NEW}"
        begun.mkdir(mode=0o700)
        return stamp, begun

    def complete(self, stamp: str, facts: dict[str, Any]) -> None:
        """Write the manifest and give the backup its final name, durably."""
        begun = self.path / f"{stamp}{_NEW}"
        facts = facts | {"format": _FORMAT, "files": {file.name: _sha256_of(file) for file in sorted(begun.iterdir())}}
        (begun / _MANIFEST).write_text(json.dumps(facts | {"sha256": _digest_of(facts)}, indent=2) + "\n")
        self._root.sync_all()
        self._root.rename(begun.name, stamp)
        self._root.sync()

    def manifest(self, stamp: str, *, only: str | None = None) -> dict[str, Any]:
        """Return the manifest, after comparing all files, or `only` one, with their checksums. Raises BackupRefused."""
        path = self.path / stamp
        facts = self._facts(path)
        files = facts["files"] if only is None else {only: facts["files"].get(only)}
        for name, sha256 in files.items():
            try:
                same = _sha256_of(path / name) == sha256
            except OSError as error:
                raise BackupRefused(f"{path / name} can't be read: {error.strerror}") from error
            if not same:
                raise BackupRefused(f"{path / name} is not what was written: its SHA-256 is another one")
        return facts

    def _facts(self, path: Path) -> dict[str, Any]:
        try:
            facts: dict[str, Any] = json.loads((path / _MANIFEST).read_bytes())
            said = facts.pop("sha256")
        except OSError as error:
            raise BackupRefused(f"{path / _MANIFEST} can't be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BackupRefused(f"{path / _MANIFEST} is damaged") from error
        if said != _digest_of(facts):
            raise BackupRefused(f"{path / _MANIFEST} is not what was written: its SHA-256 is another one")
        if facts["format"] > _FORMAT:
            raise BackupRefused(f"{path} is of format {facts['format']}: install a newer version")
        return facts

    def remove(self, stamp: str) -> None:
        """Remove a dump; its blobs stay."""
        gone = f"{stamp}{_NEW}"  # from here on, a rest of it counts as interrupted
        self._root.rename(stamp, gone)
        shutil.rmtree(self.path / gone)


def _is_linked(directory: Directory, source: int, name: str) -> bool:
    try:
        directory.link_open(source, name)
    except OSError as error:
        if error.errno in _UNLINKABLE:
            return False
        raise
    return True


def _check(sha256: str, source: int, target: int | None = None, *, computing: BlockChecksums | None = None) -> None:
    """Compare an open file with `sha256`, and copy it to `target`, if given. Raises BlobDamaged."""
    digest, buffer, done = hashlib.sha256(), disk.room_for(_READ_BYTES), 0
    disk.drop_cache(source)  # read from the disk, not from memory
    while True:
        try:
            count = disk.read_into(source, buffer, done)
        except OSError as error:
            raise BlobDamaged(sha256) from error
        if not count:
            break
        digest.update(buffer[:count])
        if computing is not None:
            computing.update(buffer[:count])
        if target is not None:
            disk.write(target, buffer[:count], done)
        done += count
    disk.drop_cache(source)  # leave the page cache to downloads
    if digest.hexdigest() != sha256:
        raise BlobDamaged(sha256)


def _digest_of(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
