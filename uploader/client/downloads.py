"""Downloads of many files: small files come in archives, two at a time; larger files in requests of their own, several
at a time. Knows neither how an archive is read (`unpack.py`) nor how a single file is downloaded (`download.py`)."""

import asyncio
import functools
import os
import stat
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uploader.client import errors, plan
from uploader.client.api import lacks
from uploader.client.batch import bytes_for, first_bytes, next_batch
from uploader.client.download import Downloading, is_there, made_below, partial_name, placed, unwritable
from uploader.client.files import LocalFile, ManyFiles, Outcome, There, Wanted, ambiguous
from uploader.client.plan import check_strangers_path, checked_name, checked_path, folders_of
from uploader.client.system import same_here
from uploader.client.transfer import Meter, all_or_none
from uploader.client.unpack import Place, Unpacking

# One is written to the disk while the other arrives.
_ARCHIVES = 2
# If an answer breaks off, bytes that did not fill a block are lost.
_BLOCK_BYTES = 64 << 10

Refused = tuple[Wanted, errors.ClientError]


def sorted_out(wanted: Iterable[Wanted], *, allow_hidden: bool = True) -> tuple[list[Wanted], list[Refused]]:
    """Return the files that can be written to their paths, each once; and one refusal for each other path, with the
    reason.

    Refused are names that are no relative paths, paths of several files, and files where other files need a folder: no
    choice is made silently. With `allow_hidden=False`, hidden paths are refused, too, because a stranger chose them.
    """
    # By the path as the system compares it: Windows ignores case.
    by_path: dict[str, dict[str, Wanted]] = defaultdict(dict)
    refused: list[Refused] = []
    for each in wanted:
        try:
            checked_name(each.file.name)
            path = checked_path(each.path)
            if not allow_hidden:
                check_strangers_path(path)
        except (errors.InvalidName, errors.HiddenName) as error:
            refused.append((each, error))
        else:
            by_path[same_here(path)][each.file.id] = each if path == each.path else replace(each, path=path)
    folders = {folder for path in by_path for folder in folders_of(path)}
    kept = []
    for path, several in by_path.items():
        first = next(iter(several.values()))
        if len(several) > 1:
            refused.append((first, ambiguous(first.path, [each.file for each in several.values()])))
        elif path in folders:
            refused.append(
                (first, errors.AmbiguousName(f"{first.path!r} is a file and a folder; get {first.file.id} by its id"))
            )
        else:
            kept.append(first)
    return kept, refused


@dataclass
class ManyDownloads(ManyFiles):
    overwrite: bool
    # Compare an existing file by digest, not by time of modification.
    checksum: bool
    allow_hidden: bool

    def __post_init__(self) -> None:
        self._wanted: dict[LocalFile, Wanted] = {}
        self._archive_bytes = first_bytes(self.shared.most_bytes_per_second)
        # Files that wait for an archive; and files that need a request of their own, because no archive brought them.
        self._small: deque[LocalFile] = deque()
        self._left_over: deque[LocalFile] = deque()
        # Until the server sends no archive, or one without file ids.
        self._takes_archives = True

    async def run(self, wanted: Sequence[Wanted], root: Path) -> list[Outcome]:
        """Download files. Return the outcomes of all files that were begun."""
        self.meter.enter("downloading")
        chosen, refused = sorted_out(wanted, allow_hidden=self.allow_hidden)
        for each, error in refused:
            local = LocalFile(each.path, each.file.name, each.file.size, 0)
            self.watcher.begun(local)
            self.end(Outcome(local, error=error))
        below = "" if root == Path() else os.path.join(root, "")  # noqa: PTH118 (text, for thousands a second)
        self._wanted = {LocalFile(below + each.path, each.file.name, each.file.size, 0): each for each in chosen}
        self._small = deque(local for local in self._wanted if local.size <= plan.SMALL_BYTES)
        others = deque(local for local in self._wanted if local.size > plan.SMALL_BYTES)
        fetch = functools.partial(self._fetch, root)
        archives = [self._fetch_archives(root) for _ in range(min(_ARCHIVES, self.shared.connections))]
        await all_or_none([*archives, self.bring(others, fetch)])
        await self.bring(self._left_over, fetch, begins=False)
        await self.bring(self._small, fetch)
        self.meter.enter("complete")
        return self.outcomes

    # In archives

    async def _fetch_archives(self, root: Path) -> None:
        while len(self._small) > 1 and self._takes_archives and not self.hopeless:
            await self.gate.wait()
            files = next_batch(self._small, self._archive_bytes)
            for local in files:
                self.watcher.begun(local)
            places, ended = await asyncio.to_thread(self._find_places, files, root)
            for outcome in ended:
                self.end(outcome)
            await self._fetch_places(places)

    def _find_places(self, files: Sequence[LocalFile], root: Path) -> tuple[list[Place], list[Outcome]]:
        """Return the places of files that have to be fetched, and the outcomes of the others. Blocking."""
        places: list[Place] = []
        ended: list[Outcome] = []
        directories: dict[str, str] = {}
        for local in files:
            wanted = self._wanted[local]
            folder, _, last = wanted.path.rpartition("/")
            try:
                if folder not in directories:
                    directories[folder] = str(made_below(root, folder))
                place = Place(local, wanted.file, directories[folder], last)
                if self._is_present(wanted, place):
                    ended.append(Outcome(local, wanted.file, "present"))
                else:
                    places.append(place)
            except OSError as error:
                ended.append(Outcome(local, error=unwritable(error, local.path)))
            except errors.ClientError as error:
                ended.append(Outcome(local, error=error))
        return places, ended

    def _is_present(self, wanted: Wanted, place: Place) -> bool:
        """Raises TargetExists, BadAnswer, OSError."""
        partial_name(place.file)
        if not os.path.lexists(place.target):
            return False
        target = Path(place.target)
        if not self.checksum and _is_unchanged(wanted, target):
            return True
        return is_there(place.file, target, overwrite=self.overwrite)

    async def _fetch_places(self, places: Sequence[Place]) -> None:
        """Fetch archives until each file has an outcome or is left over."""
        retrying = self.api.retrying()
        while places and not self.hopeless:
            await self.gate.wait()
            unpacking = Unpacking(places)
            failure = await self._attempt(unpacking)
            places = list(unpacking.waiting)
            self._left_over.extend(place.local for place in unpacking.left_over)
            if failure is None or not places or not self._takes_archives:
                break
            if unpacking.has_begun:
                # The archive broke off at this file, perhaps because of it. The next attempt waits for a server that is
                # away.
                self._left_over.append(places.pop(0).local)
                retrying = self.api.retrying()
                continue
            try:
                await retrying.pause(failure)
            except (errors.Unauthenticated, errors.Unreachable) as error:
                self.hopeless = True
                self.end(Outcome(places[0].local, error=error))
                return
            except errors.ClientError:
                break  # the selection is refused: each file gets an answer of its own
        self._left_over.extend(place.local for place in places)

    async def _attempt(self, unpacking: Unpacking) -> errors.ClientError | None:
        """Request an archive once, and report the files that arrived. Return the error if some did not."""
        failure: errors.ClientError | None = None
        began_at, length = time.monotonic(), 0
        try:
            async with self.api.archive_once([place.file.id for place in unpacking.waiting]) as response:
                unpacking.has_begun = True
                async for block in self.api.blocks(response, _BLOCK_BYTES):
                    await self.gate.wait()
                    self.meter.moving(len(block))
                    self.meter.landed(len(block))
                    length += len(block)
                    unpacking.take(block)
                    if unpacking.is_full:
                        for outcome in await asyncio.to_thread(unpacking.save):
                            self.end(outcome)
                unpacking.check_end()
                self._archive_bytes = bytes_for(length, time.monotonic() - began_at)
        except errors.BadAnswer as error:
            failure, self._takes_archives = error, False
        except errors.ServerProblem as error:
            failure = error
            self._takes_archives &= error.code == "file-not-found" or not lacks(error)
        except errors.ClientError as error:
            failure = error
        for outcome in await asyncio.to_thread(unpacking.save):
            self.end(outcome)
        return failure

    # Each for itself

    async def _fetch(self, root: Path, local: LocalFile) -> Outcome:
        wanted = self._wanted[local]
        file = wanted.file
        try:
            target = await asyncio.to_thread(placed, root, wanted.path)
        except OSError as error:
            raise errors.Unwritable(f"{error.filename or local.path}: {error.strerror}") from error
        if not self.checksum and await asyncio.to_thread(_is_unchanged, wanted, target):
            return Outcome(local, file, "present")
        # Each content has only one partial file in a directory.
        async with self.shared.alone(f"{target.parent}/{file.sha256}"):
            meter = Meter(file.name, file.size, functools.partial(self.watcher.moved, local))
            how = await Downloading(self.api, file, meter, self.gate).run(target, overwrite=self.overwrite)
            meter.enter("complete")
        return Outcome(local, file, how)


def _is_unchanged(wanted: Wanted, target: Path) -> bool:
    try:
        status = target.lstat()
    except OSError:
        return False
    here = LocalFile(target, wanted.file.name, status.st_size, status.st_mtime_ns)
    return stat.S_ISREG(status.st_mode) and There([wanted.file], "keep").unchanged(here) is not None
