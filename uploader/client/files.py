"""Files here by their names there: what is to become one on the server, what became of it, who wants to know; and what the
caller has there already that is unchanged."""

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
# A page costs a server about as much as so many small files; more of them are not worth what they may spare.
_FILES_OF_A_PAGE = 100
_FIRST_PAGES = 4
_MOST_PREFIXES = 4
# What is lost of a time on its way: decimals that a file system or a database has not.
_SAME_TIME = timedelta(milliseconds=1)
# Character by character, not folder by folder.
_beginning = os.path.commonprefix


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file here and its name on the server; size and time of modification as they were when it was found."""

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
    """A file of the server, and where it goes: a relative path with slashes, which may have what no name on a server has."""

    file: File
    path: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a file: its file on the server, and how it came there; or why it is not there."""

    local: LocalFile
    file: File | None = None
    how: How = "present"
    error: ClientError | None = None
    # The files of this name that are not there any more, as far as they were known.
    replaced: Sequence[File] = ()


class Watcher:
    """Is told what happens to many files; this one looks away. Called in the client's event loop."""

    def begun(self, local: LocalFile) -> None:
        """Hear that a file is looked at, or sent."""

    def moved(self, local: LocalFile, progress: Progress) -> None:
        """Called with the progress of a file that is sent for itself; those of a batch arrive together."""

    def ended(self, outcome: Outcome) -> None:
        """Called with the outcome of a file: of each that was begun, unless it is stopped, and of one whose name is
        refused."""


@dataclass
class ManyFiles:
    """Many files on their way, and what became of those that were begun. What stands between us and the server stands
    between it and all of them: it is told of one, and the rest is not begun; any other failure is of its file alone."""

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
        """Send each for itself, several at a time. `begins`: they were not told of."""

        async def go_on() -> None:
            while waiting and not self.hopeless:
                await self.gate.wait()
                if not waiting:
                    return  # another took the last one
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
    """Sort out the files by their names: those that get one, as the server keeps it; and those that are refused, because no
    server takes theirs, or because others would get the same and only one be left."""
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
    """Say whether files of one name on the server clash: those of different names here do; equal ones only where each would
    replace the one before."""
    if len({local.name for local in twins}) > 1:
        return True
    return if_exists == "replace" and len({os.path.abspath(local.path) for local in twins}) > 1  # noqa: PTH100 (no look)


class There:
    """Files of the caller by their names. Some may be missing: they are sent, and the server says that it has them."""

    def __init__(self, files: Iterable[File], if_exists: IfExists) -> None:
        self._by_name: dict[str, list[File]] = defaultdict(list)
        for file in files:
            self._by_name[file.name].append(file)
        self._alone = if_exists == "replace"

    def candidates(self, name: str, size: int) -> Sequence[File]:
        """Return those that a file of this name and size may be: then nothing has to be done for it."""
        files = self._by_name.get(name, ())
        if self._alone and len(files) > 1:
            return ()  # the others have to go
        return [file for file in files if file.size == size and not file.damaged]

    def replaced_by(self, file: File) -> Sequence[File]:
        """Return those that are gone now that this one is there."""
        if not self._alone:
            return ()
        return [other for other in self._by_name.get(file.name, ()) if other.id != file.id]

    def unchanged(self, local: LocalFile) -> File | None:
        """Return the file that this one is, by name, size and time of modification."""
        here = moment_of(local.modified_ns)
        for file in self.candidates(local.name, local.size):
            there = file.modified_at
            if here is None or there is None:
                continue
            if abs(here - there) <= _SAME_TIME or here.replace(microsecond=0) == there:
                return file
        return None


async def read_target(api: Api, names: Sequence[str], if_exists: IfExists) -> There:
    """Ask the server once, in at most as many questions as it would be worth."""
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
    """Return prefixes of all names: the name of each if they are few, or in few folders, as others may lie between."""
    shared = _beginning(names)
    folder = shared[: shared.rfind("/") + 1]
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name[len(folder) :].partition("/")[0]].append(name)
        if len(groups) > _MOST_PREFIXES:
            return [shared]
    return [_beginning(group) for group in groups.values()]
