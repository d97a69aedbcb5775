"""`sync`: makes one folder equal to another one, on this machine and on the server. Deletes only files that are certainly
missing at the source: nothing is deleted after a failure to read or to move, or if the source is empty.
"""

import asyncio
import errno
import os
import unicodedata
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import click

from uploader.cli.client import events, options
from uploader.cli.client.connection import run_client
from uploader.cli.client.filters import Filters
from uploader.cli.client.folders import make_here, make_there
from uploader.cli.client.local import Tree, read_tree
from uploader.cli.client.names import InTheWay, NoSuchFile
from uploader.cli.client.reporters import FileTelling, Reporter
from uploader.cli.terminal import EXIT_USAGE, fail, shown_path
from uploader.client import AsyncClient, ClientError, File, LocalFile, Outcome, Wanted, errors
from uploader.client.download import sha256_of
from uploader.client.downloads import sorted_out
from uploader.client.files import There, named_apart
from uploader.client.plan import checked_name, folder_name, folders_of
from uploader.client.system import leads_elsewhere, same_here
from uploader.client.transfer import all_or_none

_REMOTE = ":"

_DELETIONS_AT_ONCE = 4


@click.command(cls=options.Filtered)
@click.argument("source")
@click.argument("target")
@click.option(
    "--delete", is_flag=True, help="Delete files of the target that the source lacks, after all else went well."
)
@click.option("--dry-run", "-n", is_flag=True, help="Change nothing, only print what would be done.")
@click.option("--checksum", is_flag=True, help="Compare files by content, not by size and time.")
@options.delta
@options.follow
@options.no_empty
@options.filters
@options.files_from
@options.limit_rate
@options.connections
@options.patience
@click.option("--verbose", "-v", is_flag=True, help="Print a line for each file.")
@options.shown_options
def sync(
    source: str,
    target: str,
    delete: bool,
    dry_run: bool,
    checksum: bool,
    follows: bool,
    no_empty: bool,
    filters: Filters,
    files_from: IO[bytes] | None,
    verbose: bool,
    **of_client: Any,
) -> None:
    """Bring a folder up to date with another one. One of SOURCE and TARGET is a local folder. The other is on the server and
    begins with a colon, as in `sync photos :photos` and `sync :photos photos`; : alone stands for everything on the server.

    Files with the same size and time of modification at both ends stay as they are; empty folders come, too. Run it again
    after an interruption of any kind: it goes on where it stopped.
    """
    here, there = (target, source) if source.startswith(_REMOTE) else (source, target)
    if here.startswith(_REMOTE) or not there.startswith(_REMOTE):
        fail("one of the two folders has to be on the server, such as :photos", EXIT_USAGE)
    upwards = here is source
    path, folder = Path(here), there.removeprefix(_REMOTE).rstrip("/")
    try:
        # The beginning of all names on the server.
        prefix = folder_name(checked_name(folder)) if folder else ""
    except errors.InvalidName as error:
        fail(error.detail, EXIT_USAGE)
    if upwards and not path.is_dir():
        fail(f"{here} is not a directory here", EXIT_USAGE)
    if not upwards and follows:
        fail("-L follows symbolic links of a source that is here: what a link leads to is not the target", EXIT_USAGE)
    if not upwards and path.exists() and not path.is_dir():
        fail(f"{here} is not a directory", EXIT_USAGE)
    if files_from is not None:
        filters = filters.only(options.listed(files_from))

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        told = SyncTelling(reporter, None if verbose else source, dry_run=dry_run)
        ways: dict[str, bool] = {"delete": delete, "checksum": checksum, "with_empty": not no_empty}
        if upwards:
            return await Upwards(client, told, prefix, filters, **ways).run(path, follows=follows)
        return await Downwards(client, told, prefix, filters, **ways).run(path)

    run_client(work, **of_client)


def has_content(path: str | os.PathLike[str], sha256: str) -> bool:
    """Return True if the file has this SHA-256; False if unreadable. Blocks."""
    with suppress(OSError):
        return sha256_of(Path(path)) == sha256
    return False


def delete_file(root: Path, path: str, seen: os.stat_result) -> None:
    """Delete a file; a missing one is fine. Raises FileChanged if it differs from the status `seen`, LeadsOutside,
    Unwritable."""
    here = _inside(root, path)
    try:
        now = here.lstat()
        is_another = seen.st_ino and now.st_ino != seen.st_ino  # Windows directories list no inode numbers
        if is_another or (now.st_size, now.st_mtime_ns) != (seen.st_size, seen.st_mtime_ns):
            raise errors.FileChanged(f"{here} changed meanwhile, and is not deleted")
        here.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise errors.Unwritable(f"{here}: {error.strerror}") from error


def delete_folder(root: Path, path: str) -> bool:
    """Delete a folder if it is empty; return True if deleted. Raises LeadsOutside, Unwritable."""
    here = _inside(root, path)
    try:
        here.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise errors.Unwritable(f"{here}: {error.strerror}") from error
    return True


def _inside(root: Path, path: str) -> Path:
    """Return the full path. Raises LeadsOutside if a folder has meanwhile become a symbolic link."""
    directory = root
    *folders, last = path.split("/")
    for folder in folders:
        directory /= folder
        if leads_elsewhere(directory):
            raise errors.LeadsOutside(f"{directory} is a symbolic link: {path} would be elsewhere")
    return directory / last


class SyncTelling(FileTelling):
    """Reports and counts what is done. A dry run counts planned changes."""

    def __init__(self, reporter: Reporter, folder: str | None, *, dry_run: bool) -> None:
        """`folder` is the source, whose summary replaces the lines of files; None: a line for each file."""
        super().__init__(reporter)
        self.dry_run = dry_run
        nothing = {"files": 0, "moved": 0, "present": 0, "deleted": 0, "failed": 0, "left": 0, "bytes": 0}
        self.sums = events.SyncSummary(**nothing, seconds=0.0, dry_run=dry_run, exit_code=0)
        self._folder = folder

    @property
    def left(self) -> int:
        return max(0, self.sums.files - self.sums.moved - self.sums.present - self.sums.failed)

    def is_well(self, waiting: int = 0) -> bool:
        """Return True if nothing failed and only `waiting` files are left."""
        return not self.codes and self.left == waiting

    def ended(self, outcome: Outcome) -> None:
        path = shown_path(outcome.local.path)
        if outcome.error is not None:
            self.fail(path, outcome.error)
        elif outcome.file is not None:
            self.sums.present += outcome.how == "present"
            self.sums.moved += outcome.how != "present"
            self.sums.bytes += outcome.file.size if outcome.how in ("sent", "fetched") else 0
            self.reporter.show(events.Completed(path, outcome.file, outcome.how, folder=self._folder))

    def would(self, action: Literal["send", "replace", "fetch", "delete"], path: str, size: int) -> None:
        if action == "delete":
            self.sums.deleted += 1
        else:
            self.sums.moved += 1
            self.sums.bytes += size
        self.reporter.show(events.Would(action, shown_path(path), size))

    def would_folder(self, action: Literal["make", "delete"], path: str) -> None:
        self.reporter.show(events.Would(action, f"{shown_path(path)}/", 0))

    def fail(self, path: str, error: ClientError, *, is_file: bool = True) -> None:
        """Count and report a failure; `is_file` is True for a file of the source."""
        self.sums.failed += is_file
        self.codes.add(events.exit_code_of(error))
        self.reporter.show(events.failed(shown_path(path), error))

    def left_out(self, tree: Tree, *, others: bool = True) -> None:
        """Report unreadable folders, and entries that are neither sent nor deleted."""
        for folder, why in tree.unreadable.items():
            path = shown_path(tree.root / folder)
            self.fail(path, errors.Unreadable(f"{path}: {why}"), is_file=False)
        for path, reason in tree.others.items() if others else ():
            self.reporter.show(events.Skipped(shown_path(tree.root / path), reason))

    def missing(self, paths: Iterable[str]) -> None:
        """Report listed paths that the source does not have."""
        for path in sorted(paths):
            self.fail(path, NoSuchFile(f"there is no {shown_path(path)} in the source"), is_file=False)

    def may_delete(self, source: str, count: int, *, is_empty: bool, waiting: int = 0) -> bool:
        """Return True if `count` files may be deleted; report the reason if not."""
        kept = f"none of {events.count_of_files(count)} at the target is deleted"
        if count and is_empty:  # the source may not be mounted, or may be the wrong one
            error = ClientError(f"the source has no files, so {kept}", code="source-empty")
            self.fail(source, error, is_file=False)
        elif count and not self.is_well(waiting):
            self.reporter.show(events.Noted(f"not all went well, so {kept}"))
        return self.is_well(waiting)

    def sum_up(self) -> int:
        sums = self.sums
        sums.left, sums.spared_bytes = self.left, self.spared_bytes
        sums.seconds, sums.exit_code = self.seconds, events.worst_of(self.codes)
        self.reporter.show(sums)
        return sums.exit_code


@dataclass(frozen=True)
class Sync:
    client: AsyncClient
    told: SyncTelling
    # The beginning of all names on the server.
    prefix: str
    filters: Filters
    delete: bool
    checksum: bool
    with_empty: bool

    async def _is_present(self, unchanged: File | None, path: str | os.PathLike[str], sha256: str | None) -> bool:
        """Return True if the file exists at both ends, by size and time; a dry run also compares the content with `sha256`.
        Count such files."""
        same = unchanged is not None and not self.checksum
        if not same and self.told.dry_run and sha256 is not None:
            same = await asyncio.to_thread(has_content, path, sha256)
        self.told.sums.present += same
        return same

    async def _empty_there(self) -> list[str]:
        """Return the relative paths of empty folders on the server; the folder itself has an empty path."""
        names = [name async for name in self.client.empty_folders(self.prefix or None)]
        return [name.removeprefix(self.prefix).rstrip("/") for name in names]

    @property
    def _makes_folders(self) -> bool:
        """Return True if empty folders are to be made: not if files are left, for example after the server went away."""
        return self.with_empty and not self.told.left


class Upwards(Sync):
    async def run(self, source: Path, *, follows: bool) -> int:
        """Return the exit code. Raises ClientError if nothing was done."""
        for folder in (self.prefix.rstrip("/"), *folders_of(self.prefix.rstrip("/"))):
            if folder and await self.client.named(folder):
                raise InTheWay(f"there is a file {folder!r} on the server: it can't be a folder, too")
        tree = await asyncio.to_thread(read_tree, source, self.filters, follows=follows)
        there: dict[str, list[File]] = defaultdict(list)
        async for file in self.client.files(self.prefix or None):
            there[file.name].append(file)
        empty = [path for path in await self._empty_there() if path]
        self.told.left_out(tree)
        self._tell_missing(tree)
        found = [
            LocalFile(tree.root / path, self.prefix + path, status.st_size, status.st_mtime_ns)
            for path, status in sorted(tree.files.items())
        ]
        taken, refused = named_apart(found, "replace")
        for local, error in refused:
            self.told.fail(shown_path(local.path), error)
        self.told.sums.files = len(tree.files)
        named = {local.name: local for local in taken}
        extras = [file for name in self._extras(tree, named, there) for file in there[name]]
        gone = self._extra_folders(tree, empty)
        now, later = self._parted(named, there, {file.name for file in extras}, empty, gone)
        changed = await self._changed(now, there)
        planned = [local.size for local in (*changed, *later)]
        self.told.reporter.show(events.Planned(len(planned), sum(planned)))
        await self._send(changed, there)
        count, waiting, root = len(extras) + len(gone), len(later), shown_path(tree.root)
        if self.delete and self.told.may_delete(root, count, is_empty=tree.is_empty, waiting=waiting):
            await self._delete_all(extras)
            if extras or gone:
                await self._delete_folders(tree, extras, gone)
            if self.told.is_well(waiting):
                await self._send(later, there)
        if self._makes_folders:
            await self._make_folders(tree, set(empty))
        return self.told.sum_up()

    def _tell_missing(self, tree: Tree) -> None:
        listed = self.filters.listed or set()
        found = {folder for path in (*tree.files, *tree.others) for folder in (path, *folders_of(path))}
        self.told.missing(listed - found - set(tree.folders))

    def _extras(self, tree: Tree, named: dict[str, LocalFile], there: dict[str, list[File]]) -> list[str]:
        """Find the names that the target has and the source has not."""
        links = self._links(tree)
        return [name for name in there if name not in named and self._may_go(name.removeprefix(self.prefix), links)]

    def _extra_folders(self, tree: Tree, empty: Iterable[str], emptied: Container[str] = ()) -> list[str]:
        """Find empty folders on the server that the source does not have. With filters, or without empty folders, only
        return folders that this sync has emptied."""
        here, links = {unicodedata.normalize("NFC", path) for path in tree.folders}, self._links(tree)
        are_all = self.with_empty and not self.filters
        found = [path for path in empty if path not in here and (are_all or path in emptied)]
        return [path for path in found if self.delete and self._may_go(path, links)]

    @staticmethod
    def _links(tree: Tree) -> set[str]:
        return {unicodedata.normalize("NFC", path) for path in tree.others}

    def _may_go(self, path: str, links: set[str]) -> bool:
        """Return True if the path may be deleted. A link that is not followed stays, because nobody knows the target."""
        return self.filters.take(path) and not any(each in links for each in (path, *folders_of(path)))

    def _parted(
        self,
        named: dict[str, LocalFile],
        there: dict[str, list[File]],
        extras: set[str],
        empty: list[str],
        gone: list[str],
    ) -> tuple[list[LocalFile], list[LocalFile]]:
        """Split the files: send now, or later when something in their way is deleted. Report files whose way will never be
        free."""
        stays = set(there) - extras if self.delete else set(there)
        kept = self._folders_in(stays, set(empty) - set(gone))
        folders = self._folders_in(there, empty)
        now, later = list[LocalFile](), list[LocalFile]()
        for name, local in named.items():
            file = next((folder for folder in folders_of(name) if folder in stays), None)
            if name in kept:
                error = InTheWay(f"there is a folder {name}/ on the server, and it is not deleted")
                self.told.fail(shown_path(local.path), error)
            elif file is not None:
                error = InTheWay(f"there is a file {file!r} on the server, and it is not deleted")
                self.told.fail(shown_path(local.path), error)
            elif name in folders or any(folder in there for folder in folders_of(name)):
                later.append(local)
            else:
                now.append(local)
        return now, later

    def _folders_in(self, names: Iterable[str], empty: Iterable[str]) -> set[str]:
        own = {self.prefix + path for path in empty}
        return own | {folder for name in (*names, *own) for folder in folders_of(name)}

    async def _send(self, files: list[LocalFile], there: dict[str, list[File]]) -> None:
        if self.told.dry_run:
            for local in files:
                self.told.would("replace" if local.name in there else "send", local.name, local.size)
        elif files:
            await self.client.upload_many(files, if_exists="replace", checksum=self.checksum, watcher=self.told)

    async def _changed(self, wanted: list[LocalFile], there: dict[str, list[File]]) -> list[LocalFile]:
        known = There((file for files in there.values() for file in files), "replace")
        changed = []
        for local in wanted:
            sha256 = next((file.sha256 for file in known.candidates(local.name, local.size)), None)
            if not await self._is_present(known.unchanged(local), local.path, sha256):
                changed.append(local)
        return changed

    async def _delete_all(self, files: list[File]) -> None:
        if self.told.dry_run:
            for file in files:
                self.told.would("delete", file.name, file.size)
        else:
            waiting = iter(files)
            await all_or_none(self._delete_from(waiting) for _ in range(_DELETIONS_AT_ONCE))

    async def _delete_folders(self, tree: Tree, files: list[File], gone: list[str]) -> None:
        """Delete empty folders that the source does not have, then parents that have become empty."""
        emptied = {folder for file in files for folder in folders_of(file.name.removeprefix(self.prefix))}
        if self.told.dry_run:
            for path in gone:
                self.told.would_folder("delete", self.prefix + path)
            return
        tried = set[str]()
        while True:
            empty = [path for path in await self._empty_there() if path]
            found = [path for path in self._extra_folders(tree, empty, emptied) if path not in tried]
            if not found:
                return
            tried.update(found)
            for path in found:
                await self._delete_folder(f"{self.prefix}{path}/")

    async def _delete_folder(self, name: str) -> None:
        try:
            if not (await self.client.page(prefix=name, limit=1)).files:  # a file may have arrived
                self.told.reporter.show(events.DeletedFolder(name, await self.client.delete_folder(name)))
        except ClientError as error:
            if isinstance(error, errors.Unauthenticated | errors.Unreachable):
                raise
            self.told.fail(name, error, is_file=False)

    async def _make_folders(self, tree: Tree, empty: set[str]) -> None:
        names = [
            self.prefix + path
            for path in tree.empty_folders()
            if self.filters.take(path) and unicodedata.normalize("NFC", path) not in empty
        ]
        if self.told.dry_run:
            for name in names:
                self.told.would_folder("make", name)
        else:
            self.told.codes |= await make_there(self.client, self.told.reporter, names)

    async def _delete_from(self, waiting: Iterator[File]) -> None:
        for file in waiting:
            try:
                await self.client.delete(file.id)
            except errors.NotFound:
                continue
            except ClientError as error:
                if isinstance(error, errors.Unauthenticated | errors.Unreachable):
                    raise
                self.told.fail(file.name, error, is_file=False)
            else:
                self.told.sums.deleted += 1
                self.told.reporter.show(events.Deleted(file))


class Downwards(Sync):
    async def run(self, target: Path) -> int:
        """Return the exit code. Raises ClientError if nothing was done."""
        files = sorted([file async for file in self.client.files(self.prefix or None)], key=lambda file: file.name)
        empty = await self._empty_there()
        if self.prefix and not files and not empty:
            raise NoSuchFile(f"there is no folder {self.prefix!r} on the server")
        tree = await asyncio.to_thread(read_tree, target, self.filters)
        self.told.left_out(tree, others=self.delete)
        folders = [path for path in empty if path and self.filters.take(path)]
        wanted = self._wanted(files, folders)
        names = {same_here(file.name.removeprefix(self.prefix)) for file in files}
        extras = [path for path in tree.files if same_here(path) not in names]  # missing at the source
        now, later = self._parted(tree, wanted, extras)
        changed = await self._changed(tree, now)
        planned = [each.file.size for each in (*changed, *later)]
        self.told.reporter.show(events.Planned(len(planned), sum(planned)))
        await self._fetch(target, changed)
        source, waiting = f":{self.prefix}", len(later)
        is_empty = not files and not folders
        if self.delete and self.told.may_delete(source, len(extras), is_empty=is_empty, waiting=waiting):
            await self._delete_all(tree, extras, {folder for path in folders for folder in (path, *folders_of(path))})
            if self.told.is_well(waiting):
                await self._fetch(target, [*self._cleared(target, later)])
        if self._makes_folders:
            await self._make_folders(tree, folders)
        return self.told.sum_up()

    async def _make_folders(self, tree: Tree, folders: list[str]) -> None:
        missing = [path for path in folders if path not in tree.folders]
        if self.told.dry_run:
            for path in missing:
                self.told.would_folder("make", str(tree.root / path))
        else:
            self.told.codes |= await make_here(self.told.reporter, tree.root, missing)

    def _wanted(self, files: Iterable[File], folders: Iterable[str]) -> list[Wanted]:
        taken = [Wanted(file, file.name.removeprefix(self.prefix)) for file in files]
        kept, refused = sorted_out(each for each in taken if self.filters.take(each.path))
        for each, error in refused:
            self.told.fail(each.file.name, error)
        self.told.sums.files = len(kept) + len(refused)
        found = {folder for path in (*folders, *(each.path for each in kept)) for folder in (path, *folders_of(path))}
        self.told.missing((self.filters.listed or set()) - found)
        return kept

    def _parted(self, tree: Tree, wanted: list[Wanted], extras: list[str]) -> tuple[list[Wanted], list[Wanted]]:
        """Split the files: fetch now, or later when something in their way is deleted. Report the others."""
        now: list[Wanted] = []
        later: list[Wanted] = []
        folders, gone = set(tree.folders), set(extras) if self.delete else set()
        for each in wanted:
            in_the_way = next((folder for folder in folders_of(each.path) if folder in tree.files), None)
            if each.path not in folders and in_the_way is None:
                now.append(each)
            elif self.delete and (in_the_way is None or in_the_way in gone):
                later.append(each)
            else:
                what = "a file" if in_the_way else "a folder"
                path = shown_path(tree.root / (in_the_way or each.path))
                self.told.fail(each.file.name, errors.TargetExists(f"{path} is {what}, and it is not deleted"))
        return now, later

    async def _changed(self, tree: Tree, wanted: list[Wanted]) -> list[Wanted]:
        changed = []
        for each in wanted:
            status = tree.files.get(each.path)
            if status is None:
                changed.append(each)
                continue
            here = LocalFile(tree.root / each.path, each.file.name, status.st_size, status.st_mtime_ns)
            sha256 = each.file.sha256 if here.size == each.file.size else None
            if not await self._is_present(There([each.file], "keep").unchanged(here), here.path, sha256):
                changed.append(each)
        return changed

    async def _fetch(self, target: Path, wanted: list[Wanted]) -> None:
        if self.told.dry_run:
            for each in wanted:
                self.told.would("fetch", str(target / each.path), each.file.size)
            return
        await self.client.download_many(wanted, target, overwrite=True, checksum=self.checksum, watcher=self.told)

    async def _delete_all(self, tree: Tree, extras: list[str], kept: set[str]) -> None:
        """Delete the files, then empty folders except those in `kept`. With filters, only delete folders that have become
        empty here."""
        for path in extras:
            here, status = shown_path(tree.root / path), tree.files[path]
            if self.told.dry_run:
                self.told.would("delete", here, status.st_size)
                continue
            try:
                await asyncio.to_thread(delete_file, tree.root, path, status)
            except ClientError as error:
                self.told.fail(here, error, is_file=False)
            else:
                self.told.sums.deleted += 1
                self.told.reporter.show(events.DeletedHere(here, status.st_size))
        if self.told.dry_run:
            return
        emptied = {folder for path in extras for folder in folders_of(path)}
        for folder in reversed(tree.folders):
            may_go = folder not in kept and (folder in emptied or not self.filters)
            here = shown_path(tree.root / folder)
            try:
                if may_go and await asyncio.to_thread(delete_folder, tree.root, folder):
                    self.told.reporter.show(events.DeletedHere(f"{here}/", 0))
            except ClientError as error:
                self.told.fail(here, error, is_file=False)

    def _cleared(self, target: Path, wanted: list[Wanted]) -> Iterator[Wanted]:
        """Yield the files whose way is free now; report the others."""
        for each in wanted:
            path = target / each.path
            if path.is_dir() and not path.is_symlink() and not self.told.dry_run:
                error = errors.TargetExists(f"{shown_path(path)} is a folder, with what is not deleted")
                self.told.fail(each.file.name, error)
            else:
                yield each
