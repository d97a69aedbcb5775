"""The words: a file here that is to become one there, what became of it, and who wants to know."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uploader.client.errors import ClientError, Unreadable
from uploader.client.model import File, How
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
