"""What happens in a client command, as events: the one stream that `--json` prints and that people see in other words.

Their JSON Schema is `docs/events.schema.json`, as `python -m uploader.cli.client.events` prints it.
"""

import json
from typing import Literal

import msgspec
from msgspec import Struct

from uploader.client import File, Folder, How, Upload, Usage


class Event(Struct, tag_field="event"):
    """One line of `--json`."""


class Planned(Event, tag="planned"):
    """The begin of `put` and `get`: how many files, and how many bytes they have."""

    files: int
    bytes: int


class Started(Event, tag="started"):
    """A file is being uploaded or downloaded; `path` is the file here, `name` the file on the server."""

    path: str
    name: str
    size: int


class Moving(Event, tag="progress"):
    """How far a file is, at most twice a second. Figures are bytes."""

    path: str
    name: str
    size: int
    state: Literal["hashing", "uploading", "merging", "downloading", "complete"]
    received_bytes: int
    in_flight_bytes: int
    hashed_bytes: int
    merged_bytes: int
    bytes_per_second: float | None
    seconds_left: float | None


class Retrying(Event, tag="retry"):
    """A call failed for the moment and is tried again after a pause."""

    code: str
    detail: str
    pause_seconds: float


class Completed(Event, tag="complete"):
    """A file is whole at the other end, and its SHA-256 is right.

    `how`: `sent` or `fetched`; `instant`, the content was on the server already; `present`, so was this very file.
    """

    path: str
    file: File
    how: How
    # The word that this file came by with others, if one `folder-ended` tells of them all.
    folder: str | None = None


class FolderEnded(Event, tag="folder-ended"):
    """The files of a folder, or those that a pattern matched, are over; those that failed were told of each for itself."""

    name: str
    files: int
    bytes: int
    fetched: int
    present: int
    failed: int


class Failed(Event, tag="failed"):
    """Something did not work; `path` names the file, if it is about one."""

    path: str | None
    code: str
    detail: str
    retryable: bool


class Skipped(Event, tag="skipped"):
    """Something in a directory that is no regular file."""

    path: str
    reason: str


class TransferSummary(Event, tag="summary"):
    """The end of `put` and `get`: how many files, and what the command exits with. `left` were not begun."""

    files: int
    complete: int
    failed: int
    left: int
    bytes: int
    seconds: float
    exit_code: int


class Interrupted(Event, tag="interrupted"):
    """Ctrl-C: what has arrived stays, and the same command goes on from there."""


class Listed(Event, tag="file"):
    """A file of `ls`."""

    file: File


class ListedFolder(Event, tag="folder"):
    """A folder of `ls`, and what is in it."""

    folder: Folder


class ListedUpload(Event, tag="upload"):
    """An open upload of `uploads`."""

    upload: Upload


class ListedUsage(Event, tag="usage"):
    """The figures of `usage`, in bytes."""

    usage: Usage


class Deleted(Event, tag="deleted"):
    """A file is deleted."""

    file: File


class DeletedFolder(Event, tag="folder-deleted"):
    """All that was in a folder is deleted: so many files."""

    name: str
    files: int


class MovedFolder(Event, tag="folder-moved"):
    """All that was in a folder is in another one: so many files."""

    name: str
    old_name: str
    files: int


class Noted(Event, tag="note"):
    """Something is not as it might be expected, and did not fail."""

    detail: str


class Renamed(Event, tag="renamed"):
    """A file has another name."""

    file: File
    old_name: str


class CancelledUpload(Event, tag="cancelled"):
    """An open upload is cancelled."""

    upload: Upload


class LoggedIn(Event, tag="logged-in"):
    """The server knows the token; both are kept in `path`."""

    url: str
    path: str


AnyEvent = (
    Planned
    | Started
    | Moving
    | Retrying
    | Completed
    | FolderEnded
    | Failed
    | Skipped
    | TransferSummary
    | Interrupted
    | Listed
    | ListedFolder
    | ListedUpload
    | ListedUsage
    | Deleted
    | DeletedFolder
    | Renamed
    | MovedFolder
    | Noted
    | CancelledUpload
    | LoggedIn
)


def schema() -> str:
    """The JSON Schema of one event, for a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An event of a client command"}
    return json.dumps(head | msgspec.json.schema(AnyEvent), indent=2) + "\n"


if __name__ == "__main__":
    print(schema(), end="")
