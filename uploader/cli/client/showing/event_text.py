"""Events in words: results on standard output, what went wrong and what is only said by the way on standard error."""

from uploader.cli.client.showing.events import (
    AnyEvent,
    CancelledUpload,
    Completed,
    Deleted,
    DeletedFolder,
    DeletedHere,
    Failed,
    FolderEnded,
    Interrupted,
    Listed,
    ListedFolder,
    ListedUpload,
    ListedUsage,
    LoggedIn,
    MovedFolder,
    NamesRefused,
    Noted,
    Renamed,
    Retrying,
    Skipped,
    SyncSummary,
    TransferSummary,
    Would,
)
from uploader.cli.readable import human_bytes, human_seconds, percent
from uploader.client import Upload, Usage
from uploader.domain.names import CONTROL

_HOW = {"sent": "sent", "fetched": "fetched", "instant": "on the server already", "present": "there already"}


def is_by_the_way(event: AnyEvent) -> bool:
    """Whether it is no result, which standard output is for."""
    return isinstance(
        event, Failed | NamesRefused | Retrying | Skipped | Interrupted | Noted | TransferSummary | SyncSummary
    )


def words_of(event: AnyEvent) -> str | None:
    """The lines of an event, for a person. What a name or a server says moves no cursor, and forges no line."""
    if isinstance(event, ListedUsage):
        return _usage(event.usage)
    if isinstance(event, NamesRefused):
        return "\n".join(without_control(line) for line in _names_refused(event))
    words = _result(event) or _by_the_way(event)
    return None if words is None else without_control(words)


def without_control(words: str) -> str:
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", words)


def _result(event: AnyEvent) -> str | None:
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


def _changed(event: AnyEvent) -> str | None:
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


def _by_the_way(event: AnyEvent) -> str | None:
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
