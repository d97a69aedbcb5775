"""What happens in a client command: as events, which `--json` prints one a line; in words; and as an exit code.

In words, results go to standard output, what went wrong and what is only said by the way to standard error. The JSON
Schema is `docs/events.schema.json`, as `python -m uploader.cli.client.events` prints it.
"""

import inspect
import json
import os
from functools import reduce
from operator import or_
from typing import Any, Literal

import msgspec
from msgspec import Struct

from uploader.cli.terminal import EXIT_OK, human_bytes, human_seconds, percent, shown_path
from uploader.client import ClientError, File, Folder, How, QuotaExceeded, ServerProblem, Unauthenticated, Upload, Usage
from uploader.domain.names import CONTROL

EXIT_AUTHENTICATION = 3
EXIT_QUOTA = 4
EXIT_TRY_AGAIN = 5
EXIT_FAILED = 6
EXIT_INTERRUPTED = 130

# Of several failures the most telling one counts: what only a person can mend goes before what time may mend.
_BY_WEIGHT = (EXIT_AUTHENTICATION, EXIT_QUOTA, EXIT_FAILED, EXIT_TRY_AGAIN)

_HOW = {"sent": "sent", "fetched": "fetched", "instant": "on the server already", "present": "there already"}


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


class Renamed(Event, tag="renamed"):
    """A file has another name."""

    file: File
    old_name: str


class MovedFolder(Event, tag="folder-moved"):
    """All that was in a folder is in another one: so many files."""

    name: str
    old_name: str
    files: int


class Noted(Event, tag="note"):
    """Something is not as it might be expected, and did not fail."""

    detail: str


class CancelledUpload(Event, tag="cancelled"):
    """An open upload is cancelled."""

    upload: Upload


class LoggedIn(Event, tag="logged-in"):
    """The server knows the token; both are kept in `path`."""

    url: str
    path: str


def schema() -> str:
    """The JSON Schema of one event, for a file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "An event of a client command"}
    return json.dumps(head | _cleaned(msgspec.json.schema(reduce(or_, Event.__subclasses__()))), indent=2) + "\n"


def _cleaned(part: Any) -> Any:
    """With docstrings indented as Python 3.13 has them, on every Python."""
    if isinstance(part, dict):
        return {
            name: inspect.cleandoc(each) if name == "description" else _cleaned(each) for name, each in part.items()
        }
    return [_cleaned(each) for each in part] if isinstance(part, list) else part


def exit_code_of(error: ClientError) -> int:
    if isinstance(error, Unauthenticated):
        return EXIT_AUTHENTICATION
    if isinstance(error, QuotaExceeded):
        return EXIT_QUOTA
    return EXIT_TRY_AGAIN if error.retryable else EXIT_FAILED


def worst_of(codes: set[int]) -> int:
    """The exit code of a command some of whose parts failed with these."""
    return next((code for code in _BY_WEIGHT if code in codes), EXIT_OK)


def failed(path: str | None, error: ClientError) -> Failed:
    """A failure of one file, or of all of it."""
    return Failed(path, error.code, shown_path(_words_of(error)), error.retryable)


def _words_of(error: ClientError) -> str:
    if isinstance(error, Unauthenticated) and error.code == "unauthenticated":
        given = bool(os.environ.get("UPLOADER_TOKEN"))
        way = "it is the one of UPLOADER_TOKEN" if given else "`uploader login` asks for one and keeps it"
        return f"{error.detail}; {way}"
    if not isinstance(error, ServerProblem):
        return error.detail
    sizes = {name: human_bytes(value) for name, value in error.fields.items() if isinstance(value, int)}
    try:
        return _refusal(error, sizes) or error.detail
    except KeyError:  # a server that gives no figures
        return error.detail


def _refusal(error: ServerProblem, sizes: dict[str, str]) -> str | None:
    """A file that does not fit, with the figures. Raises KeyError if they were not given."""
    if isinstance(error, QuotaExceeded):
        fields = error.fields
        free_bytes = fields["total_space"] - fields["use_space_finished"] - fields["reserved"]
        free = f"{human_bytes(max(0, free_bytes))} of your {sizes['total_space']} are free"
        held = f", {sizes['reserved']} are kept for open uploads (`uploader uploads`)" if fields["reserved"] else ""
        return f"not enough space: the file needs {sizes['requested']}, and {free}{held}"
    if error.code == "storage-full" and "limit" in sizes:
        holds = f"it needs {sizes['requested']}, and at most {sizes['limit']} fit"
        return f"the server's disk is too small for this file: {holds}"
    if error.code == "storage-full":
        return f"the server's disk is full: the file needs {sizes['requested']}, and {sizes['available']} are free"
    if error.code == "file-too-large":
        return f"the server takes no file larger than {sizes['limit']}"
    return None


def is_by_the_way(event: Event) -> bool:
    """Whether it is no result, which standard output is for."""
    return isinstance(
        event, Failed | NamesRefused | Retrying | Skipped | Interrupted | Noted | TransferSummary | SyncSummary
    )


def words_of(event: Event) -> str | None:
    """The lines of an event, for a person. What a name or a server says moves no cursor, and forges no line."""
    if isinstance(event, ListedUsage):
        return _usage(event.usage)
    if isinstance(event, NamesRefused):
        return "\n".join(without_control(line) for line in _names_refused(event))
    words = _result(event) or _by_the_way(event)
    return None if words is None else without_control(words)


def without_control(words: str) -> str:
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", words)


def _result(event: Event) -> str | None:
    match event:
        case Completed(file=file, folder=None):
            return f"{file.name}  ({human_bytes(file.size)}, {_HOW[event.how]}{_replacing(event.replaced)})"
        case FolderEnded():
            return _folder_ended(event)
        case Listed(file=file):
            damaged = "  (damaged: send it again)" if file.damaged else ""
            return f"{file.id}  {file.created_at:%Y-%m-%d %H:%M}  {human_bytes(file.size):>10}  {file.name}{damaged}"
        case ListedFolder(folder=folder):
            return f"{'':32}  {count_of_files(folder.files):>16}  {human_bytes(folder.bytes):>10}  {folder.name}"
        case ListedUpload():
            return _upload(event.upload)
        case LoggedIn():
            return f"logged in at {event.url}; kept in {event.path}"
        case _:
            return _changed(event)


def _changed(event: Event) -> str | None:
    match event:
        case Deleted():
            return f"deleted {event.file.name}"
        case DeletedFolder():
            return f"deleted {event.name} ({count_of_files(event.files)})"
        case DeletedHere():
            return f"deleted {event.path}"
        case Would():
            return f"would {event.action} {event.path}  ({human_bytes(event.size)})"
        case Renamed():
            return f"{event.old_name} is {event.file.name} now"
        case MovedFolder():
            return f"{event.old_name} is {event.name} now ({count_of_files(event.files)})"
        case CancelledUpload():
            return f"cancelled {event.upload.name}"
        case _:
            return None


def _by_the_way(event: Event) -> str | None:
    match event:
        case Failed(together=False):
            return _failed(event)
        case Retrying(repeated=False):
            return f"uploader: {event.detail} (trying again)"
        case Skipped():
            return f"uploader: {event.path}: left out, {event.reason}"
        case Interrupted():
            return "uploader: interrupted; the same command goes on from here"
        case Noted():
            return f"uploader: {event.detail}"
        case TransferSummary() if event.files != 1 or event.failed or event.spared_bytes:  # else its own line says all
            return summary_of(event)
        case SyncSummary():
            return _sync_summary(event)
        case _:
            return None


def _failed(event: Failed) -> str:
    path = event.path
    named = path is None or repr(path) in event.detail or event.detail.startswith(f"{path} ")
    return f"uploader: {'' if named else f'{path}: '}{event.detail} [{event.code}]"


def summary_of(event: TransferSummary) -> str:
    """What became of all, and how fast."""
    counts = {
        "sent": event.sent,
        "fetched": event.fetched,
        "there already": event.instant + event.present,
        "replaced": event.replaced,
        "failed": event.failed,
        "not begun": event.left,
    }
    rate = "" if not event.bytes_per_second else f", {human_bytes(round(event.bytes_per_second))}/s"
    spared = f"; {_spared(event.spared_bytes)}" if event.spared_bytes else ""
    return (
        f"uploader: {event.complete} of {count_of_files(event.files)}{_told(counts)}; "
        f"{human_bytes(event.moved_bytes)} moved in {human_seconds(event.seconds)}{rate}{spared}"
    )


def _spared(length_bytes: int) -> str:
    return f"{human_bytes(length_bytes)} not sent, as the server had them"


def _sync_summary(event: SyncSummary) -> str:
    to_be = "to be " if event.dry_run else ""
    counts = {f"{to_be}moved": event.moved, "there already": event.present, f"{to_be}deleted": event.deleted}
    counts |= {"failed": event.failed, "not begun": event.left}
    words = f"{count_of_files(event.files)}{_told(counts)}; {human_bytes(event.bytes)} {to_be}moved"
    if event.spared_bytes:
        words += f", {_spared(event.spared_bytes)},"
    end = "; nothing was changed" if event.dry_run else f" in {human_seconds(event.seconds)}"
    return f"uploader: {words}{end}"


def _folder_ended(event: FolderEnded) -> str:
    counts = {
        "sent": event.sent,
        "fetched": event.fetched,
        "there already": event.instant + event.present,
        "replaced": event.replaced,
        "failed": event.failed,
    }
    return f"{event.name}  ({count_of_files(event.files)}, {human_bytes(event.bytes)}{_told(counts)})"


def _told(counts: dict[str, int]) -> str:
    """Those that are any."""
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return told and f": {told}"


def _replacing(count: int) -> str:
    return {0: "", 1: ", replacing the one before"}.get(count, f", replacing {count}")


def _names_refused(event: NamesRefused) -> list[str]:
    more = event.files - len(event.examples)
    return [
        f"uploader: the server takes no such names: {count_of_files(event.files)} left out [invalid-name]",
        *(f"  {each.path}  {each.reason}" for each in event.examples),
        *([f"  and {more} more"] if more else []),
        *(
            []
            if event.encoded
            else ["  --encode-names puts them there under names that `get --decode-names` turns back"]
        ),
    ]


def count_of_files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _upload(upload: Upload) -> str:
    state = "merging" if upload.state == "merging" else percent(upload.received_bytes, upload.size)
    return (
        f"{upload.id}  {state:>7} of {human_bytes(upload.size):>10}  "
        f"until {upload.expires_at:%Y-%m-%d %H:%M}  {upload.name}"
    )


def _usage(usage: Usage) -> str:
    lines = [
        ("used", usage.use_space_finished),
        ("open uploads", usage.use_space_unfinished),
        ("reserved", usage.reserved),
        ("available", usage.available),
        ("total", usage.total_space),
    ]
    return "\n".join(f"{word:<14}{human_bytes(size):>12}" for word, size in lines)


if __name__ == "__main__":
    print(schema(), end="")
