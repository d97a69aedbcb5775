"""Events in words: results on standard output, what went wrong and what is only said by the way on standard error."""

import click

from uploader.cli.client.events import (
    AnyEvent,
    CancelledUpload,
    Completed,
    Deleted,
    DeletedFolder,
    Failed,
    FolderEnded,
    Interrupted,
    Listed,
    ListedFolder,
    ListedUpload,
    ListedUsage,
    LoggedIn,
    MovedFolder,
    Noted,
    Renamed,
    Retrying,
    Skipped,
    TransferSummary,
)
from uploader.cli.readable import human_bytes, human_seconds, percent
from uploader.client import Upload, Usage
from uploader.domain.names import CONTROL

_HOW = {"sent": "sent", "fetched": "fetched", "instant": "on the server already", "present": "there already"}


def say(event: AnyEvent) -> None:
    """Print the lines of an event, if it has any."""
    words = words_of(event)
    if words is not None:
        by_the_way = isinstance(event, Failed | Retrying | Skipped | Interrupted | Noted | TransferSummary)
        click.echo(words, err=by_the_way)


def words_of(event: AnyEvent) -> str | None:
    """The lines of an event, for a person. What a name or a server says moves no cursor, and forges no line."""
    if isinstance(event, ListedUsage):
        return _usage(event.usage)
    words = _result(event) or _by_the_way(event)
    return None if words is None else CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", words)


def _result(event: AnyEvent) -> str | None:
    match event:
        case Completed(file=file, folder=None):
            return f"{file.id}  {file.name}  ({human_bytes(file.size)}, {_HOW[event.how]})"
        case FolderEnded():
            return _folder_ended(event)
        case Listed(file=file):
            damaged = "  (damaged: send it again)" if file.damaged else ""
            return f"{file.id}  {file.created_at:%Y-%m-%d %H:%M}  {human_bytes(file.size):>10}  {file.name}{damaged}"
        case ListedFolder(folder=folder):
            return f"{'':32}  {_files(folder.files):>16}  {human_bytes(folder.bytes):>10}  {folder.name}"
        case ListedUpload():
            return _upload(event.upload)
        case LoggedIn():
            return f"logged in at {event.url}; kept in {event.path}"
        case _:
            return _changed(event)


def _changed(event: AnyEvent) -> str | None:
    match event:
        case Deleted():
            return f"deleted {event.file.name}"
        case DeletedFolder():
            return f"deleted {event.name} ({_files(event.files)})"
        case Renamed():
            return f"{event.old_name} is {event.file.name} now"
        case MovedFolder():
            return f"{event.old_name} is {event.name} now ({_files(event.files)})"
        case CancelledUpload():
            return f"cancelled {event.upload.name}"
        case _:
            return None


def _by_the_way(event: AnyEvent) -> str | None:
    match event:
        case Failed():
            return f"uploader: {event.path + ': ' if event.path else ''}{event.detail} [{event.code}]"
        case Retrying():
            return f"uploader: {event.detail}; trying again in {human_seconds(event.pause_seconds)}"
        case Skipped():
            return f"uploader: {event.path}: left out, {event.reason}"
        case Interrupted():
            return "uploader: interrupted; the same command goes on from here"
        case Noted():
            return f"uploader: {event.detail}"
        case TransferSummary():
            return _summary(event)
        case _:
            return None


def _summary(event: TransferSummary) -> str | None:
    if event.files == 1 and not event.failed:
        return None  # its own line says all
    words = [f"{event.complete} of {event.files} files, {human_bytes(event.bytes)} in {human_seconds(event.seconds)}"]
    words += [f"{event.failed} failed"] if event.failed else []
    words += [f"{event.left} not begun"] if event.left else []
    return ", ".join(words)


def _folder_ended(event: FolderEnded) -> str:
    counts = {"fetched": event.fetched, _HOW["present"]: event.present, "failed": event.failed}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    return f"{event.name}  ({_files(event.files)}, {human_bytes(event.bytes)}: {told})"


def _files(count: int) -> str:
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
