"""The words: a file here that is to become one there, what became of it, and who wants to know."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from uploader.client.errors import AmbiguousName, ClientError, InvalidName, Unreadable
from uploader.client.model import File, How, IfExists
from uploader.client.transfers.names import checked_name
from uploader.client.transfers.progress import Progress


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file here and its name on the server; size and time of modification as they were when it was found."""

    path: str | os.PathLike[str]
    name: str
    size: int
    modified_ns: int

    @classmethod
    def at(cls, path: str | os.PathLike[str], name: str | None = None) -> "LocalFile":
        """The file at a path, by default under its own name. Raises Unreadable."""
        try:
            status = Path(path).stat()
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror}") from error
        return cls(path, name or Path(path).name, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a file: the one it is on the server, and how; or why it is not there."""

    local: LocalFile
    file: File | None = None
    how: How = "present"
    error: ClientError | None = None
    # The files of this name that are not there any more, as far as they were known.
    replaced: Sequence[File] = ()


class Watcher:
    """Is told what happens to many files; this one looks away. Called in the client's event loop."""

    def begun(self, local: LocalFile) -> None:
        """A file is looked at, or sent."""

    def moved(self, local: LocalFile, progress: Progress) -> None:
        """How far a file is that is sent for itself; those of a batch arrive together."""

    def ended(self, outcome: Outcome) -> None:
        """What became of a file: of each that was begun, unless it is stopped; and of one whose name is refused."""


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
    """Of files that get one name. Whoever gave them different ones wants different files; equal ones are as if sent one
    after the other, which is a loss where each replaces the one before."""
    if len({local.name for local in twins}) > 1:
        return True
    return if_exists == "replace" and len({os.path.abspath(local.path) for local in twins}) > 1  # noqa: PTH100 (no look)
