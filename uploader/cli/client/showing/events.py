"""What happens in a client command, as events: the one stream that `--json` prints and that people see in other words.

Their JSON Schema is `docs/events.schema.json`, as `python -m uploader.cli.client.showing.events` prints it.
"""

import inspect
import json
from typing import Any, Literal

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
    """How far a file is, at most twice a second. Figures are bytes; `moved_bytes` are those of this run."""

    path: str
    name: str
    size: int
    state: Literal["hashing", "uploading", "merging", "downloading", "complete"]
    received_bytes: int
    in_flight_bytes: int
    moved_bytes: int
    hashed_bytes: int
    merged_bytes: int
    bytes_per_second: float | None
    seconds_left: float | None
    # Of a file that replaces another one: what was there already, and did not move.
    spared_bytes: int = 0


class Retrying(Event, tag="retry"):
    """A call failed for the moment and is tried again after a pause; `repeated` as one before it, in the last minute."""

    code: str
    detail: str
    pause_seconds: float
    repeated: bool = False


class Completed(Event, tag="complete"):
    """A file is whole at the other end, and its SHA-256 is right.

    `how`: `sent` or `fetched`; `instant`, the content was on the server already; `present`, so was this very file.
    """

    path: str
    file: File
    how: How
    # How many files of the same name it took the place of.
    replaced: int = 0
    # The word that this file came by with others, if one `folder-ended` tells of them all.
    folder: str | None = None


class FolderEnded(Event, tag="folder-ended"):
    """The files of a folder, or those that a pattern matched, are over; those that failed were told of each for itself."""

    name: str
    files: int
    bytes: int
    fetched: int = 0
    present: int = 0
    failed: int = 0
    sent: int = 0
    instant: int = 0
    replaced: int = 0


class Failed(Event, tag="failed"):
    """Something did not work; `path` names the file, if it is about one."""

    path: str | None
    code: str
    detail: str
    retryable: bool
    # Whether `names-refused` tells people of it, with others.
    together: bool = False


class RefusedName(Struct):
    """A file here, and why the server takes no file of its name."""

    path: str
    reason: str


class NamesRefused(Event, tag="names-refused"):
    """So many files have names that the server does not take; some of them, and why. `encoded` with `--encode-names`."""

    files: int
    examples: list[RefusedName]
    encoded: bool


class Skipped(Event, tag="skipped"):
    """Something in a directory that is no regular file."""

    path: str
    reason: str


class TransferSummary(Event, tag="summary"):
    """The end of `put` and `get`: how many files, and what the command exits with. `left` were not begun.

    `complete` are `sent`, `fetched`, `instant` and `present`, with `bytes` together; `replaced` are files whose names others
    have now. `moved_bytes` went over the network, in `seconds` from the first file to the last.
    """

    files: int
    complete: int
    failed: int
    left: int
    bytes: int
    seconds: float
    exit_code: int
    sent: int = 0
    fetched: int = 0
    instant: int = 0
    present: int = 0
    replaced: int = 0
    moved_bytes: int = 0
    # What did not, because the files that were replaced had it.
    spared_bytes: int = 0
    bytes_per_second: float | None = None


class Would(Event, tag="would"):
    """What `sync` would do to a file of the target, without `--dry-run`."""

    action: Literal["send", "replace", "fetch", "delete"]
    path: str
    size: int


class SyncSummary(Event, tag="sync-summary"):
    """The end of `sync`: of so many files of the source, so many were moved, with so many bytes, or were there already; what
    was deleted at the target; `left` were not begun. Of a dry run: what it would be."""

    files: int
    moved: int
    present: int
    deleted: int
    failed: int
    left: int
    bytes: int
    seconds: float
    dry_run: bool
    exit_code: int
    # Of the bytes that were moved: what need not be sent, because the files that were replaced had it.
    spared_bytes: int = 0


class DeletedHere(Event, tag="deleted-here"):
    """A file of this machine is deleted, or an empty folder, with a slash at the end of its path."""

    path: str
    size: int


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
    | NamesRefused
    | Skipped
    | TransferSummary
    | Would
    | SyncSummary
    | DeletedHere
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
    return json.dumps(head | _cleaned(msgspec.json.schema(AnyEvent)), indent=2) + "\n"


def _cleaned(part: Any) -> Any:
    """With docstrings indented as Python 3.13 has them, on every Python."""
    if isinstance(part, dict):
        return {
            name: inspect.cleandoc(each) if name == "description" else _cleaned(each) for name, each in part.items()
        }
    return [_cleaned(each) for each in part] if isinstance(part, list) else part


if __name__ == "__main__":
    print(schema(), end="")
