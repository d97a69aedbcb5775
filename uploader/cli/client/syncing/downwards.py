"""`sync` of a folder on the server to a folder here."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from uploader.cli.client.local.filters import Filters, folders_of
from uploader.cli.client.naming.words import NoSuchFile
from uploader.cli.client.showing.events import DeletedHere, Planned
from uploader.cli.client.syncing.deleting import delete_file, delete_folder
from uploader.cli.client.syncing.telling import SyncTelling
from uploader.cli.client.syncing.tree import Tree, has_content, read_tree
from uploader.cli.readable import shown_path
from uploader.client import AsyncClient, ClientError, File, LocalFile, TargetExists, Wanted
from uploader.client.fetching.targets import sorted_out
from uploader.client.many.there import There


class Downwards:
    """One run."""

    def __init__(
        self, client: AsyncClient, told: SyncTelling, prefix: str, filters: Filters, *, delete: bool, checksum: bool
    ) -> None:
        """`prefix`: what the names of all files of the source begin with."""
        self._client = client
        self._told = told
        self._prefix = prefix
        self._filters = filters
        self._delete = delete
        self._checksum = checksum

    async def run(self, target: Path) -> int:
        """The exit code. Raises ClientError, where nothing was done."""
        files = sorted([file async for file in self._client.files(self._prefix or None)], key=lambda file: file.name)
        if self._prefix and not files:
            raise NoSuchFile(f"there is no folder {self._prefix!r} on the server")
        tree = await asyncio.to_thread(read_tree, target, self._filters)
        self._told.unreadable(tree)
        if self._delete:
            self._told.skipped(tree)
        wanted = self._wanted(files)
        extras = self._extras(tree, files)
        now, later = self._parted(tree, wanted, extras)
        changed = await self._changed(tree, now)
        self._told.reporter.show(Planned(len(changed) + len(later), sum(each.file.size for each in [*changed, *later])))
        await self._fetch(target, changed)
        may_delete = self._delete and self._is_sure(tree, files, extras, waiting=len(later))
        if may_delete:
            await self._delete_all(tree, extras)
        if may_delete and self._told.is_well(len(later)):
            await self._fetch(target, self._cleared(target, later))
        return self._told.sum_up()

    def _wanted(self, files: Iterable[File]) -> list[Wanted]:
        """Those that can go where they are to go; the others are told."""
        taken = [Wanted(file, file.name.removeprefix(self._prefix)) for file in files]
        kept, refused = sorted_out(each for each in taken if self._filters.take(each.path))
        for each, error in refused:
            self._told.fail(each.file.name, error)
        self._told.files = len(kept) + len(refused)
        found = {folder for each in kept for folder in (each.path, *folders_of(each.path))}
        for path in sorted((self._filters.listed or set()) - found):
            self._told.missing(path)
        return kept

    def _extras(self, tree: Tree, files: Iterable[File]) -> list[str]:
        """What the target has and the source has not."""
        names = {file.name.removeprefix(self._prefix) for file in files}
        return [path for path in tree.files if path not in names]

    def _parted(self, tree: Tree, wanted: list[Wanted], extras: list[str]) -> tuple[list[Wanted], list[Wanted]]:
        """Those that can come now, and those that have to wait until what is in their way is deleted."""
        now: list[Wanted] = []
        later: list[Wanted] = []
        folders, gone = set(tree.folders), set(extras) if self._delete else set()
        for each in wanted:
            in_the_way = next((folder for folder in folders_of(each.path) if folder in tree.files), None)
            if each.path not in folders and in_the_way is None:
                now.append(each)
            elif self._delete and (in_the_way is None or in_the_way in gone):
                later.append(each)
            else:
                what = "a file" if in_the_way else "a folder"
                path = shown_path(tree.root / (in_the_way or each.path))
                self._told.fail(each.file.name, TargetExists(f"{path} is {what}, and it is not deleted"))
        return now, later

    async def _changed(self, tree: Tree, wanted: list[Wanted]) -> list[Wanted]:
        """Those that are not here by size and time. A dry run reads what it would compare."""
        changed = []
        for each in wanted:
            status = tree.files.get(each.path)
            if status is None:
                changed.append(each)
                continue
            here = LocalFile(tree.root / each.path, each.file.name, status.st_size, status.st_mtime_ns)
            same = not self._checksum and There([each.file], "keep").unchanged(here) is not None
            if not same and self._told.dry_run and status.st_size == each.file.size:
                same = await asyncio.to_thread(has_content, tree.root / each.path, each.file.sha256)
            if same:
                self._told.present += 1
            else:
                changed.append(each)
        return changed

    async def _fetch(self, target: Path, wanted: list[Wanted]) -> None:
        if self._told.dry_run:
            for each in wanted:
                self._told.would("fetch", str(target / each.path), each.file.size)
            return
        await self._client.download_many(wanted, target, overwrite=True, checksum=self._checksum, watcher=self._told)

    def _is_sure(self, tree: Tree, files: list[File], extras: list[str], *, waiting: int) -> bool:
        """Whether what the source has not may be deleted; tells why not."""
        if not files and extras:
            self._told.nothing_there(f":{self._prefix}", len(extras))
            return False
        if extras and not self._told.is_well(waiting):
            self._told.spared(len(extras))
        return self._told.is_well(waiting)

    async def _delete_all(self, tree: Tree, extras: list[str]) -> None:
        """The files, and then the folders that are empty; with filters only those that became so."""
        for path in extras:
            here, status = shown_path(tree.root / path), tree.files[path]
            if self._told.dry_run:
                self._told.would("delete", here, status.st_size)
                continue
            try:
                await asyncio.to_thread(delete_file, tree.root, path, status)
            except ClientError as error:
                self._told.fail(here, error, is_file=False)
            else:
                self._told.deleted += 1
                self._told.reporter.show(DeletedHere(here, status.st_size))
        if self._told.dry_run:
            return
        emptied = {folder for path in extras for folder in folders_of(path)}
        for folder in reversed(tree.folders):
            may_go = folder in emptied or not self._filters
            here = shown_path(tree.root / folder)
            try:
                if may_go and await asyncio.to_thread(delete_folder, tree.root, folder):
                    self._told.reporter.show(DeletedHere(f"{here}/", 0))
            except ClientError as error:
                self._told.fail(here, error, is_file=False)

    def _cleared(self, target: Path, wanted: list[Wanted]) -> list[Wanted]:
        """Those that nothing is in the way of any more; the others are told."""
        cleared = []
        for each in wanted:
            path = target / each.path
            if path.is_dir() and not path.is_symlink() and not self._told.dry_run:
                error = TargetExists(f"{shown_path(path)} is a folder, with what is not deleted")
                self._told.fail(each.file.name, error)
            else:
                cleared.append(each)
        return cleared
