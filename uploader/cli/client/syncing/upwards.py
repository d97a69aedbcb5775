"""`sync` of a folder here to a folder on the server."""

import asyncio
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from uploader.cli.client.local.filters import Filters, folders_of
from uploader.cli.client.naming.moving import InTheWay
from uploader.cli.client.showing.events import Deleted, Noted, Planned
from uploader.cli.client.syncing.telling import SyncTelling
from uploader.cli.client.syncing.tree import Tree, has_content, read_tree
from uploader.cli.readable import shown_path
from uploader.client import (
    AsyncClient,
    ClientError,
    File,
    LocalFile,
    NotFound,
    Unauthenticated,
    Unreachable,
)
from uploader.client.many.files import named_apart
from uploader.client.many.there import There
from uploader.client.transfers.sending import all_or_none

_DELETIONS_AT_ONCE = 4


class Upwards:
    """One run."""

    def __init__(
        self, client: AsyncClient, told: SyncTelling, prefix: str, filters: Filters, *, delete: bool, checksum: bool
    ) -> None:
        """`prefix`: what the names of all files of the target begin with."""
        self._client = client
        self._told = told
        self._prefix = prefix
        self._filters = filters
        self._delete = delete
        self._checksum = checksum

    async def run(self, source: Path) -> int:
        """The exit code. Raises ClientError, where nothing was done."""
        await self._check_target()
        tree = await asyncio.to_thread(read_tree, source, self._filters)
        there: dict[str, list[File]] = defaultdict(list)
        async for file in self._client.files(self._prefix or None):
            there[file.name].append(file)
        self._told.unreadable(tree)
        self._told.skipped(tree)
        self._tell_missing(tree)
        named = self._named(tree)
        extras = self._extras(tree, named, there)
        blocked = self._blocked(named, there, extras)
        wanted = [named[name] for name in named if name not in blocked]
        changed = await self._changed(wanted, there)
        self._told.reporter.show(Planned(len(changed), sum(local.size for local in changed)))
        if self._told.dry_run:
            for local in changed:
                self._told.would("replace" if local.name in there else "send", local.name, local.size)
        elif changed:
            await self._client.upload_many(changed, if_exists="replace", checksum=self._checksum, watcher=self._told)
        if self._delete and extras:
            await self._delete_all(tree, extras)
        return self._told.sum_up()

    async def _check_target(self) -> None:
        """Raises InTheWay."""
        for folder in (self._prefix.rstrip("/"), *folders_of(self._prefix.rstrip("/"))):
            if folder and await self._client.named(folder):
                raise InTheWay(f"there is a file {folder!r} on the server: it can't be a folder, too")

    def _named(self, tree: Tree) -> dict[str, LocalFile]:
        """The files by the names that they get; what can get none is told."""
        self._told.files = len(tree.files)
        found = [
            LocalFile(tree.root / path, self._prefix + path, status.st_size, status.st_mtime_ns)
            for path, status in sorted(tree.files.items())
        ]
        named, refused = named_apart(found, "replace")
        for local, error in refused:
            self._told.fail(shown_path(local.path), error)
        return {local.name: local for local in named}

    def _tell_missing(self, tree: Tree) -> None:
        """What was listed and is not there, and what is there and can't be on a server."""
        listed = self._filters.listed or set()
        found = {folder for path in (*tree.files, *tree.others) for folder in (path, *folders_of(path))}
        empty = sum(folder not in found for folder in tree.folders)
        if empty and not self._filters:
            folders = "1 folder is" if empty == 1 else f"{empty} folders are"
            self._told.reporter.show(
                Noted(f"{folders} left out: there are no files in it, and a server has only files")
            )
        for path in sorted(listed - found - set(tree.folders)):
            self._told.missing(path)

    def _extras(self, tree: Tree, named: dict[str, LocalFile], there: dict[str, list[File]]) -> dict[str, list[File]]:
        """What the target has and the source has not. What a link stands for here is not known, so it is left alone."""
        extras = {}
        links = {unicodedata.normalize("NFC", path) for path in tree.others}
        for name, files in there.items():
            path = name.removeprefix(self._prefix)
            kept = any(each in links for each in (path, *folders_of(path)))
            if name not in named and not kept and self._filters.take(path):
                extras[name] = files
        return extras

    def _blocked(
        self, named: dict[str, LocalFile], there: dict[str, list[File]], extras: dict[str, list[File]]
    ) -> set[str]:
        """A file where the target has a folder, or the other way round; unless that is deleted afterwards."""
        stays = set(there) - set(extras) if self._delete else set(there)
        folders = {folder for name in stays for folder in folders_of(name)}
        blocked = set()
        for name, local in named.items():
            file = next((folder for folder in folders_of(name) if folder in stays), None)
            if name in folders:
                error = InTheWay(f"there is a folder {name}/ on the server, and it is not deleted")
            elif file is not None:
                error = InTheWay(f"there is a file {file!r} on the server, and it is not deleted")
            else:
                continue
            blocked.add(name)
            self._told.fail(shown_path(local.path), error)
        return blocked

    async def _changed(self, wanted: list[LocalFile], there: dict[str, list[File]]) -> list[LocalFile]:
        """Those that are not there by size and time. A dry run reads what it would compare."""
        known = There((file for files in there.values() for file in files), "replace")
        changed = []
        for local in wanted:
            same = not self._checksum and known.unchanged(local) is not None
            if not same and self._told.dry_run:
                candidates = known.candidates(local.name, local.size)
                same = bool(candidates) and await asyncio.to_thread(has_content, local.path, candidates[0].sha256)
            if same:
                self._told.present += 1
            else:
                changed.append(local)
        return changed

    async def _delete_all(self, tree: Tree, extras: dict[str, list[File]]) -> None:
        files = [file for files in extras.values() for file in files]
        if tree.is_empty:
            self._told.nothing_there(shown_path(tree.root), len(files))
        elif not self._told.is_well():
            self._told.spared(len(files))
        elif self._told.dry_run:
            for file in files:
                self._told.would("delete", file.name, file.size)
        else:
            waiting = iter(files)
            await all_or_none(self._delete_from(waiting) for _ in range(_DELETIONS_AT_ONCE))

    async def _delete_from(self, waiting: Iterator[File]) -> None:
        for file in waiting:
            try:
                await self._client.delete(file.id)
            except NotFound:
                continue
            except ClientError as error:
                if isinstance(error, Unauthenticated | Unreachable):
                    raise
                self._told.fail(file.name, error, is_file=False)
            else:
                self._told.deleted += 1
                self._told.reporter.show(Deleted(file))
