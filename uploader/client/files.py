"""Local files and their names on the server: uploads, outcomes, watchers, and the files that the server has unchanged."""

import asyncio
import os
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from uploader.client.api import Api
from uploader.client.errors import AmbiguousName, ClientError, InvalidName, Unauthenticated, Unreachable, Unreadable
from uploader.client.model import File, How, IfExists
from uploader.client.plan import checked_name, moment_of
from uploader.client.transfer import Meter, Progress, Shared, all_or_none

_PAGE_FILES = 1000
# A page costs the server about as much as so many small files. Further pages are not worth the uploads that they may
# spare.
_FILES_OF_A_PAGE = 100
_FIRST_PAGES = 4
_MOST_PREFIXES = 4
# Tolerance for times: file systems and databases drop decimals.
_SAME_TIME = timedelta(milliseconds=1)
# Character by character, not folder by folder.
_beginning = os.path.commonprefix


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A local file, and its name on the server. Size and time of modification are those of the first look."""

    path: str | os.PathLike[str]
    name: str
    size: int
    modified_ns: int

    @classmethod
    def at(cls, path: str | os.PathLike[str], name: str | None = None) -> "LocalFile":
        """Return the file at a path, by default under its own name. Raises Unreadable."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror}") from error
        return cls(path, name or Path(path).name, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of the server, and its target: a relative path with slashes, not restricted like names."""

    file: File
    path: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a file: the file on the server and how it came there, or the error."""

    local: LocalFile
    file: File | None = None
    how: How = "present"
    error: ClientError | None = None
    # The files of this name that were replaced, as far as they were known.
    replaced: Sequence[File] = ()


class Watcher:
    """Hears what happens to many files. Override the methods, which are called in the client's event loop."""

    def begun(self, local: LocalFile) -> None:
        """Called when a file is looked at or sent."""

    def moved(self, local: LocalFile, progress: Progress) -> None:
        """Called with the progress of a file that is sent alone, not in a batch."""

    def ended(self, outcome: Outcome) -> None:
        """Called with the outcome of each file that was begun and not stopped, or whose name is refused."""


@dataclass
class ManyFiles:
    """Many files on their way, and the outcomes of all files that were begun. If the server can't be reached, or does
    not know the token, one file reports the error and the rest is not begun. Any other failure concerns one file."""

    api: Api
    shared: Shared
    watcher: Watcher
    meter: Meter
    gate: asyncio.Event
    hopeless: bool = field(init=False, default=False)
    outcomes: list[Outcome] = field(init=False, default_factory=list)
    _complete_bytes: int = field(init=False, default=0)

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.file is not None:
            self._complete_bytes += outcome.file.size
            self.meter.received(self._complete_bytes)
        self.watcher.ended(outcome)

    async def bring(
        self, waiting: "deque[LocalFile]", work: Callable[[LocalFile], Awaitable[Outcome]], *, begins: bool = True
    ) -> None:
        """Move each file by itself, several at a time. `begins`: the watcher has not heard of them yet."""

        async def go_on() -> None:
            while waiting and not self.hopeless:
                await self.gate.wait()
                if not waiting:
                    return  # another task took the last one
                local = waiting.popleft()
                if begins:
                    self.watcher.begun(local)
                try:
                    self.end(await work(local))
                except ClientError as error:
                    self.hopeless |= isinstance(error, Unauthenticated | Unreachable)
                    self.end(Outcome(local, error=error))

        await all_or_none(go_on() for _ in range(min(self.shared.connections, len(waiting))))


def ambiguous(name: str, files: Sequence[File]) -> AmbiguousName:
    choices = ", ".join(
        f"{file.id} ({file.name}, {file.created_at:%Y-%m-%d %H:%M}, {file.size} bytes)" for file in files
    )
    return AmbiguousName(f"{len(files)} files are {name!r}; say which by its id: {choices}")


def named_apart(
    files: Iterable[LocalFile], if_exists: IfExists
) -> tuple[list[LocalFile], list[tuple[LocalFile, ClientError]]]:
    """Return the files with valid names, as the server keeps the names; and the refused files. Refused are invalid
    names, and names for several files of which only one would remain."""
    by_name: dict[str, list[LocalFile]] = defaultdict(list)
    refused: list[tuple[LocalFile, ClientError]] = []
    for local in files:
        try:
            by_name[checked_name(local.name)].append(local)
        except InvalidName as error:
            refused.append((local, error))
    named = []
    for name, twins in by_name.items():
        if len(twins) > 1 and _clash(twins, if_exists):
            clash = AmbiguousName(f"{len(twins)} files here would be {name!r} on the server")
            refused += [(local, clash) for local in twins]
        else:
            named += [local if name == local.name else replace(local, name=name) for local in twins]
    return named, refused


def _clash(twins: Sequence[LocalFile], if_exists: IfExists) -> bool:
    """Return True if files with the same name on the server clash. Files with different local names do. Files with the
    same local name clash if each would replace the file before."""
    if len({local.name for local in twins}) > 1:
        return True
    return if_exists == "replace" and len({os.path.abspath(local.path) for local in twins}) > 1  # noqa: PTH100 (no look)


class There:
    """The caller's files by name. Some may be missing: the client sends these, and the server answers `present`."""

    def __init__(self, files: Iterable[File], if_exists: IfExists) -> None:
        self._by_name: dict[str, list[File]] = defaultdict(list)
        for file in files:
            self._by_name[file.name].append(file)
        self._alone = if_exists == "replace"

    def candidates(self, name: str, size: int) -> Sequence[File]:
        """Return the existing files that a file of this name and size may equal: then there is nothing to do."""
        files = self._by_name.get(name, ())
        if self._alone and len(files) > 1:
            return ()  # the others have to go
        return [file for file in files if file.size == size and not file.damaged]

    def replaced_by(self, file: File) -> Sequence[File]:
        """Return the files that were replaced by `file`."""
        if not self._alone:
            return ()
        return [other for other in self._by_name.get(file.name, ()) if other.id != file.id]

    def unchanged(self, local: LocalFile) -> File | None:
        """Return the existing file with the same name, size and time of modification."""
        here = moment_of(local.modified_ns)
        for file in self.candidates(local.name, local.size):
            there = file.modified_at
            if here is None or there is None:
                continue
            if abs(here - there) <= _SAME_TIME or here.replace(microsecond=0) == there:
                return file
        return None


async def read_target(api: Api, names: Sequence[str], if_exists: IfExists) -> There:
    """List the caller's files once, with no more requests than the list is worth."""
    found: list[File] = []
    pages_left = _FIRST_PAGES + len(names) // _FILES_OF_A_PAGE
    for prefix in prefixes_of(names):
        async for page in api.pages(prefix or None, _PAGE_FILES):
            found += page.files
            pages_left -= 1
            if pages_left <= 0:
                return There(found, if_exists)
    return There(found, if_exists)


def prefixes_of(names: Sequence[str]) -> list[str]:
    """Return the prefixes that cover all names: a few, or else the common one, below which others may lie."""
    shared = _beginning(names)
    folder = shared[: shared.rfind("/") + 1]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name[len(folder) :].partition("/")[0]].append(name)
        if len(groups) > _MOST_PREFIXES:
            return [shared]
    return [_beginning(group) for group in groups.values()]
