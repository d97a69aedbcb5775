"""`sync`: what is at one end becomes what is at the other.

Refuses to delete anything that it does not know to be missing at the source: while something could not be read or moved,
and for a source that has nothing at all.
"""

import asyncio
import errno
import os
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import click

from uploader.cli.client import events, options
from uploader.cli.client.connection import run_client
from uploader.cli.client.filters import Filters
from uploader.cli.client.names import InTheWay, NoSuchFile
from uploader.cli.client.reporters import FileTelling, Reporter
from uploader.cli.terminal import EXIT_USAGE, fail, shown_path
from uploader.client import AsyncClient, ClientError, File, LocalFile, Outcome, Wanted, errors
from uploader.client.download import sha256_of, sorted_out
from uploader.client.files import There, named_apart
from uploader.client.plan import checked_name, folder_name, folders_of
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
    filters: Filters,
    files_from: IO[bytes] | None,
    verbose: bool,
    **of_client: Any,
) -> None:
    """Bring a folder up to date with another one. One of SOURCE and TARGET is here, the other one on the server. A colon
    marks that one, as in `sync photos :photos` and `sync :photos photos`; : alone stands for everything on the server.

    Files with the same size and time of modification at both ends stay as they are. Run it again after an interruption of
    any kind: it goes on where it stopped.
    """
    here, there = (target, source) if source.startswith(_REMOTE) else (source, target)
    if here.startswith(_REMOTE) or not there.startswith(_REMOTE):
        fail("one of the two folders has to be on the server, such as :photos", EXIT_USAGE)
    upwards = here is source
    path, folder = Path(here), there.removeprefix(_REMOTE).rstrip("/")
    try:
        # What all names on the server begin with.
        prefix = folder_name(checked_name(folder)) if folder else ""
    except errors.InvalidName as error:
        fail(error.detail, EXIT_USAGE)
    if upwards and not path.is_dir():
        fail(f"{here} is not a directory here", EXIT_USAGE)
    if not upwards and path.exists() and not path.is_dir():
        fail(f"{here} is not a directory", EXIT_USAGE)
    if files_from is not None:
        filters = filters.only(options.listed(files_from))

    async def work(client: AsyncClient, reporter: Reporter) -> int:
        told = SyncTelling(reporter, None if verbose else source, dry_run=dry_run)
        kind = Upwards if upwards else Downwards
        return await kind(client, told, prefix, filters, delete=delete, checksum=checksum).run(path)

    run_client(work, **of_client)


@dataclass(slots=True)
class Tree:
    """All by relative paths with slashes, as the disk has them."""

    root: Path
    files: dict[str, os.stat_result] = field(default_factory=dict)
    # What is neither a file nor a folder, and what it is.
    others: dict[str, str] = field(default_factory=dict)
    # Each before those in it.
    folders: list[str] = field(default_factory=list)
    # What could not be read, and why.
    unreadable: dict[str, str] = field(default_factory=dict)
    # Whether there is something that the filters leave out.
    filtered: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.filtered or self.unreadable)


def read_tree(root: Path, filters: Filters) -> Tree:
    """Blocking. Follows no symbolic link but the root itself; one that is not there has nothing in it."""
    tree = Tree(root)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    _read_entry(tree, folder, entry, filters, waiting)
        except FileNotFoundError:
            pass  # or not any more
        except OSError as error:
            tree.unreadable[folder] = error.strerror or "can't be read"
    return tree


def _read_entry(tree: Tree, folder: str, entry: os.DirEntry[str], filters: Filters, waiting: list[str]) -> None:
    path = f"{folder}/{entry.name}" if folder else entry.name
    is_folder = entry.is_dir(follow_symlinks=False)
    if filters.leave_out(f"{path}/" if is_folder else path):
        tree.filtered = True
        return
    if is_folder:
        tree.folders.append(path)
        waiting.append(path)
        return
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(status.st_mode):
        tree.files[path] = status
    else:
        tree.others[path] = "a symbolic link" if entry.is_symlink() else "no regular file"


def has_content(path: str | os.PathLike[str], sha256: str) -> bool:
    """Blocking. What can't be read has another one."""
    with suppress(OSError):
        return sha256_of(Path(path)) == sha256
    return False


def delete_file(root: Path, path: str, seen: os.stat_result) -> None:
    """Delete a file, unless it is gone. Raises FileChanged if it is no longer as it was seen, LeadsOutside, Unwritable."""
    here = _inside(root, path)
    try:
        now = here.lstat()
        if (now.st_ino, now.st_size, now.st_mtime_ns) != (seen.st_ino, seen.st_size, seen.st_mtime_ns):
            raise errors.FileChanged(f"{here} changed meanwhile, and is not deleted")
        here.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise errors.Unwritable(f"{here}: {error.strerror}") from error


def delete_folder(root: Path, path: str) -> bool:
    """Delete a folder if it is empty; return whether it is gone. Raises LeadsOutside, Unwritable."""
    here = _inside(root, path)
    try:
        here.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            return False
        raise errors.Unwritable(f"{here}: {error.strerror}") from error
    return True


def _inside(root: Path, path: str) -> Path:
    """Raises LeadsOutside: what was a folder may be a symbolic link now."""
    directory = root
    *folders, last = path.split("/")
    for folder in folders:
        directory /= folder
        if directory.is_symlink():
            raise errors.LeadsOutside(f"{directory} is a symbolic link: {path} would be elsewhere")
    return directory / last


class SyncTelling(FileTelling):
    """Tells of what is done, and counts. What a dry run would do counts as done."""

    def __init__(self, reporter: Reporter, folder: str | None, *, dry_run: bool) -> None:
        """`folder`: the word that all files come by, unless each is to be told of for itself."""
        super().__init__(reporter)
        self.dry_run = dry_run
        nothing = {"files": 0, "moved": 0, "present": 0, "deleted": 0, "failed": 0, "left": 0, "bytes": 0}
        self.sums = events.SyncSummary(**nothing, seconds=0.0, dry_run=dry_run, exit_code=0)
        self._folder = folder

    @property
    def left(self) -> int:
        return max(0, self.sums.files - self.sums.moved - self.sums.present - self.sums.failed)

    def is_well(self, waiting: int = 0) -> bool:
        """Return whether nothing failed, and no more is left than those that wait for something."""
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

    def fail(self, path: str, error: ClientError, *, is_file: bool = True) -> None:
        """Count a failure of a file of the source (`is_file`), or of something else."""
        self.sums.failed += is_file
        self.codes.add(events.exit_code_of(error))
        self.reporter.show(events.failed(shown_path(path), error))

    def left_out(self, tree: Tree, *, others: bool = True) -> None:
        """Tell of what could not be read, and of what is neither sent nor deleted."""
        for folder, why in tree.unreadable.items():
            path = shown_path(tree.root / folder)
            self.fail(path, errors.Unreadable(f"{path}: {why}"), is_file=False)
        for path, reason in tree.others.items() if others else ():
            self.reporter.show(events.Skipped(shown_path(tree.root / path), reason))

    def missing(self, paths: Iterable[str]) -> None:
        """Tell of what was listed, and the source has not."""
        for path in sorted(paths):
            self.fail(path, NoSuchFile(f"there is no {shown_path(path)} in the source"), is_file=False)

    def may_delete(self, source: str, count: int, *, is_empty: bool, waiting: int = 0) -> bool:
        """Return whether so many may be deleted, as it is sure that the source has not got them; tells why not."""
        kept = f"none of {events.count_of_files(count)} at the target is deleted"
        if count and is_empty:  # it is rather not mounted, or another one than was meant
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
    # What the names of all files begin with at the end that is on the server.
    prefix: str
    filters: Filters
    delete: bool
    checksum: bool

    async def _is_present(self, unchanged: File | None, path: str | os.PathLike[str], sha256: str | None) -> bool:
        """Count what is at both ends, by size and time. A dry run reads what it would compare by its `sha256`."""
        same = unchanged is not None and not self.checksum
        if not same and self.told.dry_run and sha256 is not None:
            same = await asyncio.to_thread(has_content, path, sha256)
        self.told.sums.present += same
        return same


class Upwards(Sync):
    async def run(self, source: Path) -> int:
        """Return the exit code. Raises ClientError, where nothing was done."""
        for folder in (self.prefix.rstrip("/"), *folders_of(self.prefix.rstrip("/"))):
            if folder and await self.client.named(folder):
                raise InTheWay(f"there is a file {folder!r} on the server: it can't be a folder, too")
        tree = await asyncio.to_thread(read_tree, source, self.filters)
        there: dict[str, list[File]] = defaultdict(list)
        async for file in self.client.files(self.prefix or None):
            there[file.name].append(file)
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
        extras = self._extras(tree, named, there)
        blocked = self._blocked(named, there, extras)
        wanted = [named[name] for name in named if name not in blocked]
        changed = await self._changed(wanted, there)
        self.told.reporter.show(events.Planned(len(changed), sum(local.size for local in changed)))
        if self.told.dry_run:
            for local in changed:
                self.told.would("replace" if local.name in there else "send", local.name, local.size)
        elif changed:
            await self.client.upload_many(changed, if_exists="replace", checksum=self.checksum, watcher=self.told)
        if self.delete and extras:
            await self._delete_all(tree, [file for files in extras.values() for file in files])
        return self.told.sum_up()

    def _tell_missing(self, tree: Tree) -> None:
        listed = self.filters.listed or set()
        found = {folder for path in (*tree.files, *tree.others) for folder in (path, *folders_of(path))}
        empty = sum(folder not in found for folder in tree.folders)
        if empty and not self.filters:
            folders = "1 folder is" if empty == 1 else f"{empty} folders are"
            why = "there are no files in it, and a server has only files"
            self.told.reporter.show(events.Noted(f"{folders} left out: {why}"))
        self.told.missing(listed - found - set(tree.folders))

    def _extras(self, tree: Tree, named: dict[str, LocalFile], there: dict[str, list[File]]) -> dict[str, list[File]]:
        """Find what the target has and the source has not. The target of a symbolic link is unknown, so links stay."""
        extras = {}
        links = {unicodedata.normalize("NFC", path) for path in tree.others}
        for name, files in there.items():
            path = name.removeprefix(self.prefix)
            kept = any(each in links for each in (path, *folders_of(path)))
            if name not in named and not kept and self.filters.take(path):
                extras[name] = files
        return extras

    def _blocked(
        self, named: dict[str, LocalFile], there: dict[str, list[File]], extras: dict[str, list[File]]
    ) -> set[str]:
        """Find each file where the target has a folder, or the other way round; unless that is deleted afterwards."""
        stays = set(there) - set(extras) if self.delete else set(there)
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
            self.told.fail(shown_path(local.path), error)
        return blocked

    async def _changed(self, wanted: list[LocalFile], there: dict[str, list[File]]) -> list[LocalFile]:
        known = There((file for files in there.values() for file in files), "replace")
        changed = []
        for local in wanted:
            sha256 = next((file.sha256 for file in known.candidates(local.name, local.size)), None)
            if not await self._is_present(known.unchanged(local), local.path, sha256):
                changed.append(local)
        return changed

    async def _delete_all(self, tree: Tree, files: list[File]) -> None:
        if not self.told.may_delete(shown_path(tree.root), len(files), is_empty=tree.is_empty):
            return
        if self.told.dry_run:
            for file in files:
                self.told.would("delete", file.name, file.size)
        else:
            waiting = iter(files)
            await all_or_none(self._delete_from(waiting) for _ in range(_DELETIONS_AT_ONCE))

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
        """Return the exit code. Raises ClientError, where nothing was done."""
        files = sorted([file async for file in self.client.files(self.prefix or None)], key=lambda file: file.name)
        if self.prefix and not files:
            raise NoSuchFile(f"there is no folder {self.prefix!r} on the server")
        tree = await asyncio.to_thread(read_tree, target, self.filters)
        self.told.left_out(tree, others=self.delete)
        wanted = self._wanted(files)
        names = {file.name.removeprefix(self.prefix) for file in files}
        extras = [path for path in tree.files if path not in names]  # what the source has not
        now, later = self._parted(tree, wanted, extras)
        changed = await self._changed(tree, now)
        planned = [each.file.size for each in (*changed, *later)]
        self.told.reporter.show(events.Planned(len(planned), sum(planned)))
        await self._fetch(target, changed)
        source, waiting = f":{self.prefix}", len(later)
        if self.delete and self.told.may_delete(source, len(extras), is_empty=not files, waiting=waiting):
            await self._delete_all(tree, extras)
            if self.told.is_well(waiting):
                await self._fetch(target, [*self._cleared(target, later)])
        return self.told.sum_up()

    def _wanted(self, files: Iterable[File]) -> list[Wanted]:
        taken = [Wanted(file, file.name.removeprefix(self.prefix)) for file in files]
        kept, refused = sorted_out(each for each in taken if self.filters.take(each.path))
        for each, error in refused:
            self.told.fail(each.file.name, error)
        self.told.sums.files = len(kept) + len(refused)
        found = {folder for each in kept for folder in (each.path, *folders_of(each.path))}
        self.told.missing((self.filters.listed or set()) - found)
        return kept

    def _parted(self, tree: Tree, wanted: list[Wanted], extras: list[str]) -> tuple[list[Wanted], list[Wanted]]:
        """Return those that can come now, and those that have to wait until what is in their way is deleted."""
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

    async def _delete_all(self, tree: Tree, extras: list[str]) -> None:
        """Delete the files, and then the folders that are empty; with filters only those that became so."""
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
            may_go = folder in emptied or not self.filters
            here = shown_path(tree.root / folder)
            try:
                if may_go and await asyncio.to_thread(delete_folder, tree.root, folder):
                    self.told.reporter.show(events.DeletedHere(f"{here}/", 0))
            except ClientError as error:
                self.told.fail(here, error, is_file=False)

    def _cleared(self, target: Path, wanted: list[Wanted]) -> Iterator[Wanted]:
        """Yield those that nothing is in the way of any more; the others are told."""
        for each in wanted:
            path = target / each.path
            if path.is_dir() and not path.is_symlink() and not self.told.dry_run:
                error = errors.TargetExists(f"{shown_path(path)} is a folder, with what is not deleted")
                self.told.fail(each.file.name, error)
            else:
                yield each
