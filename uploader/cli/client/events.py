"""The events of client commands: as JSON lines (`--json`), as text for people, and as exit codes. Results go to standard
output; errors and remarks go to standard error. `python -m tests.support.reference` writes their JSON Schema,
`docs/events.schema.json`.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from uploader.cli.terminal import EXIT_CONFIGURATION, EXIT_OK, human_seconds, percent, shown_path
from uploader.client import (
    BadProxy,
    ClientError,
    DeletedFile,
    File,
    Folder,
    How,
    Link,
    LinkExhausted,
    QuotaExceeded,
    ServerProblem,
    TooManyFiles,
    Unauthenticated,
    Upload,
    Usage,
)
from uploader.units import human_bytes

EXIT_AUTHENTICATION = 3
EXIT_QUOTA = 4
EXIT_TRY_AGAIN = 5
EXIT_FAILED = 6
EXIT_INTERRUPTED = 130

# If several files failed, this order decides: errors that need a person come before errors that may pass.
_BY_WEIGHT = (EXIT_CONFIGURATION, EXIT_AUTHENTICATION, EXIT_QUOTA, EXIT_FAILED, EXIT_TRY_AGAIN)

_HOW = {"sent": "sent", "fetched": "fetched", "instant": "on the server already", "present": "there already"}


class Event(Struct, tag_field="event"):
    """One line of `--json`."""

    def lines(self) -> Iterable[str]:
        """Return the lines for people; none for events that only programs need."""
        return ()


class Planned(Event, tag="planned"):
    """The beginning of `put` and `get`: the number of files, and their bytes."""

    files: int
    bytes: int


class Started(Event, tag="started"):
    """A file is being uploaded or downloaded; `path` is the file here, `name` the file on the server."""

    path: str
    name: str
    size: int


class Moving(Event, tag="progress"):
    """The progress of a file, at most twice a second, in bytes. `moved_bytes` are the bytes that this run moved."""

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
    # Bytes that did not move, because the replaced file already had them.
    spared_bytes: int = 0


class Retrying(Event, tag="retry"):
    """A call failed and is tried again after a pause. `repeated`: the same error was shown within the last minute."""

    code: str
    detail: str
    pause_seconds: float
    repeated: bool = False

    def lines(self) -> Iterable[str]:
        return [] if self.repeated else [f"uploader: {self.detail} (trying again)"]


class Completed(Event, tag="complete"):
    """A file is complete at the other end, and its SHA-256 matches.

    `how`: `sent` or `fetched`; `instant`: the server already had the content; `present`: the file was already there.
    """

    path: str
    file: File
    how: How
    # The number of replaced files with the same name.
    replaced: int = 0
    # The folder or pattern of this file, if a `folder-ended` sums up its files.
    folder: str | None = None

    def lines(self) -> Iterable[str]:
        if self.folder is None:
            replacing = {0: "", 1: ", replacing the one before"}.get(self.replaced, f", replacing {self.replaced}")
            held = ", held until it is checked" if self.file.is_held else ""
            yield f"{self.file.name}  ({human_bytes(self.file.size)}, {_HOW[self.how]}{replacing}{held})"


class FolderEnded(Event, tag="folder-ended"):
    """The end of the files of a folder or a pattern. Each failed file had an event of its own."""

    name: str
    files: int
    bytes: int
    fetched: int = 0
    present: int = 0
    failed: int = 0
    sent: int = 0
    instant: int = 0
    replaced: int = 0

    def lines(self) -> Iterable[str]:
        return [f"{self.name}  ({count_of_files(self.files)}, {human_bytes(self.bytes)}{_told(_counts(self))})"]


class Failed(Event, tag="failed"):
    """An error; `path` names the file, if the error concerns one."""

    path: str | None
    code: str
    detail: str
    retryable: bool
    # True if a `names-refused` shows this failure to people.
    together: bool = False

    def lines(self) -> Iterable[str]:
        if not self.together:
            path = self.path
            named = path is None or repr(path) in self.detail or self.detail.startswith(f"{path} ")
            yield f"uploader: {'' if named else f'{path}: '}{self.detail} [{self.code}]"


class RefusedName(Struct):
    """A file on this machine whose name the server refuses, and the reason."""

    path: str
    reason: str


class NamesRefused(Event, tag="names-refused"):
    """The number of files with names that the server refuses, and some examples. `encoded`: `--encode-names` was given."""

    files: int
    examples: list[RefusedName]
    encoded: bool

    def lines(self) -> Iterable[str]:
        yield f"uploader: the server takes no such names: {count_of_files(self.files)} left out [invalid-name]"
        yield from (f"  {each.path}  {each.reason}" for each in self.examples)
        if self.files > len(self.examples):
            yield f"  and {self.files - len(self.examples)} more"
        if not self.encoded:
            yield "  --encode-names puts them there under names that `get --decode-names` turns back"


class Skipped(Event, tag="skipped"):
    """An entry of a directory that is left out: neither file nor folder, or a link that is not followed."""

    path: str
    reason: str

    def lines(self) -> Iterable[str]:
        return [f"uploader: {self.path}: left out, {self.reason}"]


class TransferSummary(Event, tag="summary"):
    """The end of `put` and `get`: the number of files, and the exit code. `left` files were not begun.

    `complete` is the sum of `sent`, `fetched`, `instant` and `present`, with `bytes` in all; `replaced` counts replaced
    files. `moved_bytes` went over the network, in `seconds` from the first file to the last.
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
    # Bytes that did not move, because the replaced files already had them.
    spared_bytes: int = 0
    bytes_per_second: float | None = None

    def lines(self) -> Iterable[str]:
        """Return no line for a single file: its own line says everything."""
        return [self.all_words()] if self.files != 1 or self.failed or self.spared_bytes else []

    def all_words(self) -> str:
        told = _told(_counts(self) | {"not begun": self.left})
        rate = "" if not self.bytes_per_second else f", {human_bytes(round(self.bytes_per_second))}/s"
        spared = f"; {_spared(self.spared_bytes)}" if self.spared_bytes else ""
        return (
            f"uploader: {self.complete} of {count_of_files(self.files)}{told}; "
            f"{human_bytes(self.moved_bytes)} moved in {human_seconds(self.seconds)}{rate}{spared}"
        )


class Would(Event, tag="would"):
    """A change that `sync` would make to a file of the target, without `--dry-run`."""

    action: Literal["send", "replace", "fetch", "delete", "make"]
    # With a final slash for a folder, which is made or deleted.
    path: str
    size: int

    def lines(self) -> Iterable[str]:
        size = "" if self.path.endswith("/") else f"  ({human_bytes(self.size)})"
        return [f"would {self.action} {self.path}{size}"]


class SyncSummary(Event, tag="sync-summary"):
    """The end of `sync`: of `files` in the source, `moved` were moved with `bytes`, `present` were there already, `left`
    were not begun; `deleted` files of the target were deleted. A dry run counts planned changes."""

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
    # Part of `bytes` that was not sent, because the replaced files already had it.
    spared_bytes: int = 0

    def lines(self) -> Iterable[str]:
        to_be = "to be " if self.dry_run else ""
        counts = {f"{to_be}moved": self.moved, "there already": self.present, f"{to_be}deleted": self.deleted}
        told = _told(counts | {"failed": self.failed, "not begun": self.left})
        spared = f", {_spared(self.spared_bytes)}," if self.spared_bytes else ""
        end = "; nothing was changed" if self.dry_run else f" in {human_seconds(self.seconds)}"
        yield f"uploader: {count_of_files(self.files)}{told}; {human_bytes(self.bytes)} {to_be}moved{spared}{end}"


class DeletedHere(Event, tag="deleted-here"):
    """A file on this machine was deleted, or an empty folder (its path ends with a slash)."""

    path: str
    size: int

    def lines(self) -> Iterable[str]:
        return [f"deleted {self.path}"]


class Interrupted(Event, tag="interrupted"):
    """Ctrl-C was pressed. Arrived bytes stay; the same command continues."""

    def lines(self) -> Iterable[str]:
        return ["uploader: interrupted; the same command goes on from here"]


class Listed(Event, tag="file"):
    """A file of `ls`."""

    file: File

    def lines(self) -> Iterable[str]:
        file, damaged = self.file, "  (damaged: send it again)" if self.file.damaged else ""
        yield f"{file.id}  {file.created_at:%Y-%m-%d %H:%M}  {human_bytes(file.size):>10}  {file.name}{damaged}"


class ListedFolder(Event, tag="folder"):
    """A folder of `ls`, with the number and the size of its files."""

    folder: Folder

    def lines(self) -> Iterable[str]:
        files, size = count_of_files(self.folder.files), human_bytes(self.folder.bytes)
        if self.folder.at_least:
            files, size = f"at least {files}", f"≥ {size}"
        yield f"{files:>50}  {size:>10}  {self.folder.name}"


class ListedUpload(Event, tag="upload"):
    """An open upload of `uploads`."""

    upload: Upload

    def lines(self) -> Iterable[str]:
        upload = self.upload
        state = "merging" if upload.state == "merging" else percent(upload.received_bytes, upload.size)
        far = f"{state:>7} of {human_bytes(upload.size):>10}"
        yield f"{upload.id}  {far}  until {upload.expires_at:%Y-%m-%d %H:%M}  {upload.name}"


class ListedUsage(Event, tag="usage"):
    """The figures of `usage`, in bytes."""

    usage: Usage

    def lines(self) -> Iterable[str]:
        figures = {
            "used": self.usage.use_space_finished,
            "open uploads": self.usage.use_space_unfinished,
            "reserved": self.usage.reserved,
            "available": self.usage.available,
            "total": self.usage.total_space,
        }
        return [f"{word:<14}{human_bytes(size):>12}" for word, size in figures.items()]


class MadeFolder(Event, tag="folder-made"):
    """An empty folder was made: on the server, or on this machine by `get` and `sync`."""

    name: str
    # True if the folder came with files; people then see a summary instead of this line.
    together: bool = False

    def lines(self) -> Iterable[str]:
        return [] if self.together else [f"made {self.name}"]


class Deleted(Event, tag="deleted"):
    """A file is deleted."""

    file: File

    def lines(self) -> Iterable[str]:
        return [f"deleted {self.file.name}"]


class ListedDeleted(Event, tag="deleted-file"):
    """A file of `trash`, or an earlier version of `ls --versions`."""

    file: DeletedFile

    def lines(self) -> Iterable[str]:
        file, until = self.file, f"{self.file.expires_at:%Y-%m-%d}"
        yield (
            f"{file.id}  {file.deleted_at:%Y-%m-%d %H:%M}  {human_bytes(file.size):>10}  {file.name}"
            f"  ({file.reason}, until {until})"
        )


class Restored(Event, tag="restored"):
    """A deleted file is back."""

    file: File

    def lines(self) -> Iterable[str]:
        return [f"restored {self.file.name}"]


class EmptiedTrash(Event, tag="trash-emptied"):
    """All deleted files were removed for good; `files` is their number."""

    files: int

    def lines(self) -> Iterable[str]:
        return [f"removed {count_of_files(self.files)} for good"]


class DeletedFolder(Event, tag="folder-deleted"):
    """A folder was deleted, with all its files; `files` is their number."""

    name: str
    files: int

    def lines(self) -> Iterable[str]:
        return [f"deleted {self.name} ({count_of_files(self.files)})"]


class Renamed(Event, tag="renamed"):
    """A file was renamed."""

    file: File
    old_name: str

    def lines(self) -> Iterable[str]:
        return [f"{self.old_name} is {self.file.name} now"]


class MovedFolder(Event, tag="folder-moved"):
    """A folder was moved, with all its files; `files` is their number."""

    name: str
    old_name: str
    files: int

    def lines(self) -> Iterable[str]:
        return [f"{self.old_name} is {self.name} now ({count_of_files(self.files)})"]


class Noted(Event, tag="note"):
    """A remark about something unexpected that is not an error."""

    detail: str

    def lines(self) -> Iterable[str]:
        return [f"uploader: {self.detail}"]


class CancelledUpload(Event, tag="cancelled"):
    """An open upload is cancelled."""

    upload: Upload

    def lines(self) -> Iterable[str]:
        return [f"cancelled {self.upload.name}"]


class MadeLink(Event, tag="link-made"):
    """A link of `share`."""

    link: Link

    def lines(self) -> Iterable[str]:
        kind = "uploads into" if self.link.kind == "upload" else "downloads of"
        yield f"{kind} {self.link.name}, until {self.link.expires_at:%Y-%m-%d %H:%M}: {self.link.url}"


class ListedLink(Event, tag="link"):
    """A link of `links`, with the number of uses."""

    link: Link

    def lines(self) -> Iterable[str]:
        link = self.link
        if link.kind == "upload":
            came = f"{count_of_files(link.files)}, {human_bytes(link.bytes)}"
        else:
            came = f"{link.downloads:,} {'download' if link.downloads == 1 else 'downloads'}"
        label = f"  ({link.label})" if link.label else ""
        until = f"until {link.expires_at:%Y-%m-%d %H:%M}"
        yield f"{link.id}  {link.kind:<8}  {until}  {came:>20}  {link.name}{label}  {link.url}"


class RevokedLink(Event, tag="link-revoked"):
    """A link was ended by `unshare`."""

    link: Link

    def lines(self) -> Iterable[str]:
        return [f"ended the link to {self.link.name}"]


class LoggedIn(Event, tag="logged-in"):
    """The server accepted the token; server and token are stored in `path`."""

    url: str
    path: str

    def lines(self) -> Iterable[str]:
        return [f"logged in at {self.url}; kept in {self.path}"]


def exit_code_of(error: ClientError) -> int:
    if isinstance(error, BadProxy):
        return EXIT_CONFIGURATION
    if isinstance(error, Unauthenticated):
        return EXIT_AUTHENTICATION
    if isinstance(error, QuotaExceeded | TooManyFiles | LinkExhausted):
        return EXIT_QUOTA
    return EXIT_TRY_AGAIN if error.retryable else EXIT_FAILED


def worst_of(codes: set[int]) -> int:
    """Return the exit code of a command with these failures of its parts."""
    return next((code for code in _BY_WEIGHT if code in codes), EXIT_OK)


def failed(path: str | None, error: ClientError) -> Failed:
    """Return the event of an error, of one file or of the whole command."""
    return Failed(path, error.code, shown_path(_words_of(error)), error.retryable)


def _words_of(error: ClientError) -> str:
    if isinstance(error, Unauthenticated) and error.code == "unauthenticated":
        given = bool(os.environ.get("UPLOADER_TOKEN"))
        way = "it is the one of UPLOADER_TOKEN" if given else "`uploader login` asks for one and keeps it"
        return f"{error.detail}; {way}"
    if isinstance(error, ServerProblem):
        sizes = {name: human_bytes(value) for name, value in error.fields.items() if isinstance(value, int)}
        with suppress(KeyError):  # the server gave no figures
            return _refusal(error, sizes) or error.detail + _figures(error)
    return error.detail


def _figures(error: ServerProblem) -> str:
    """Return the values of members that the problem's text mentions in backquotes."""
    named = {name: error.fields.get(name) for name in re.findall("`([a-z_]+)`", error.detail)}
    told = [f"{name}: {value}" for name, value in named.items() if isinstance(value, str | int)]
    faults = named.get("errors")
    if isinstance(faults, list):
        told += [f"{each.get('field')} {each.get('reason')}" for each in faults if isinstance(each, dict)]
    return f" ({', '.join(told)})" if told else ""


def _refusal(error: ServerProblem, sizes: dict[str, str]) -> str | None:
    """Describe a refused file with the figures of the problem. Raises KeyError if a figure is missing."""
    if isinstance(error, QuotaExceeded):
        fields = error.fields
        free_bytes = fields["total_space"] - fields["use_space_finished"] - fields["reserved"]
        free = f"{human_bytes(max(0, free_bytes))} of your {sizes['total_space']} are free"
        held = f", {sizes['reserved']} are kept for open uploads (`uploader uploads`)" if fields["reserved"] else ""
        return f"not enough space: the file needs {sizes['requested']}, and {free}{held}"
    if isinstance(error, TooManyFiles):
        most = f"{error.fields['limit']:,}"
        return (
            f"you have {most} files and open uploads (`uploader uploads`), the most that the server allows: delete some"
        )
    if error.code == "storage-full" and "limit" in sizes:
        holds = f"it needs {sizes['requested']}, and at most {sizes['limit']} fit"
        return f"the server's disk is too small for this file: {holds}"
    if error.code == "storage-full":
        return f"the server's disk is full: the file needs {sizes['requested']}, and {sizes['available']} are free"
    if error.code == "name-taken":
        return f"there is a file or folder {error.fields['taken']!r} already, which is in the way"
    if error.code == "file-too-large":
        return f"the server takes no file larger than {sizes['limit']}"
    return None


def is_by_the_way(event: Event) -> bool:
    """Return True for errors and remarks, which go to standard error."""
    summaries = TransferSummary | SyncSummary
    return isinstance(event, Failed | NamesRefused | Retrying | Skipped | Interrupted | Noted | summaries)


def _counts(event: FolderEnded | TransferSummary) -> dict[str, int]:
    there = event.instant + event.present
    counts = {"sent": event.sent, "fetched": event.fetched, "there already": there}
    return counts | {"replaced": event.replaced, "failed": event.failed}


def _told(counts: dict[str, int]) -> str:
    """List the counts other than 0."""
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return told and f": {told}"


def _spared(length_bytes: int) -> str:
    return f"{human_bytes(length_bytes)} not sent, as the server had them"


def count_of_files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"
