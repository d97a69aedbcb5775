"""The events that sinks are told of: CloudEvents without their envelope.

An event is made only from the rows of its own transaction: no code asks the disk or Redis for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from uploader.domain.links import Caller
from uploader.domain.upload import STATE_OF_REASON, File, Reason, State, Upload, chunk_count


class EventType(StrEnum):
    UPLOAD_CREATED = "upload.created"
    UPLOAD_CANCELLED = "upload.cancelled"
    UPLOAD_EXPIRED = "upload.expired"
    UPLOAD_FAILED = "upload.failed"
    FILE_FINISHED = "file.finished"
    FILE_REFUSED = "file.refused"
    FILE_DELETED = "file.deleted"
    CONTENT_DAMAGED = "content.damaged"
    CONTENT_HEALED = "content.healed"


# How long a worker may hold an event as a task, in seconds.
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 86_400.0


class OnFailure(StrEnum):
    """The verdict on a file whose gate has not answered after all attempts."""

    HOLD = "hold"
    PASS = "pass"  # noqa: S105 (no password)
    REFUSE = "refuse"


# The reason in `file.deleted` if another file took the name.
REPLACED = "replaced"

_TYPE_OF_STATE = {
    State.CANCELLED: EventType.UPLOAD_CANCELLED,
    State.EXPIRED: EventType.UPLOAD_EXPIRED,
    State.FAILED: EventType.UPLOAD_FAILED,
}


@dataclass(frozen=True, slots=True)
class News:
    """An event to send: its type, the id of the upload or file, the id of the owner, and the `data`."""

    type: EventType
    subject: str
    user_id: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """An event as the outbox has it. `data` is JSON."""

    id: str
    type: str
    subject: str
    user_id: str
    created_at: datetime
    data: bytes


def upload_created(upload: Upload, expires_at: datetime) -> News:
    data = _upload(upload, "uploading")
    count = data["chunk_count"]
    data |= {"missing": [[0, count - 1]] if count else [], "expires_at": expires_at}
    return _of_upload(EventType.UPLOAD_CREATED, upload, data)


def upload_closed(upload: Upload, reason: Reason) -> News:
    """Return the news of an upload that ended without a file. Its chunks are left out: only the disk knows them."""
    state = STATE_OF_REASON[reason]
    return _of_upload(_TYPE_OF_STATE[state], upload, _upload(upload, state.value.lower()), reason.value)


def file_named(file: File, kind: EventType) -> News:
    return _of_file(kind, file)


def file_finished(file: File) -> News:
    return _of_file(EventType.FILE_FINISHED, file)


def file_refused(file: File, reason: str | None = None) -> News:
    return _of_file(EventType.FILE_REFUSED, file, reason)


def file_deleted(file: File, reason: str | None = None) -> News:
    return _of_file(EventType.FILE_DELETED, file, reason)


def content_damaged(file: File, more_files: bool = False) -> News:
    """Return the news of a damaged content. `more_files`: other files have this content, too, and get no news of their
    own."""
    return _of_content(EventType.CONTENT_DAMAGED, replace(file, damaged=True), more_files=more_files)


def content_healed(file: File, more_files: bool = False) -> News:
    return _of_content(EventType.CONTENT_HEALED, replace(file, damaged=False), more_files=more_files)


def _of_content(kind: EventType, file: File, *, more_files: bool) -> News:
    news = _of_file(kind, file)
    return replace(news, data={**news.data, "more_files": True}) if more_files else news


def _of_file(kind: EventType, file: File, reason: str | None = None) -> News:
    data = {
        "id": file.id,
        "name": file.name,
        "md5": file.md5,
        "sha256": file.sha256,
        "size": file.size,
        "created_at": file.created_at,
        "modified_at": file.modified_at,
        "instant": file.instant,
    }
    if file.damaged:
        data["damaged"] = True
    return News(kind, file.id, file.user_id, _data(file.caller, reason, file=data))


def _of_upload(kind: EventType, upload: Upload, data: Mapping[str, Any], reason: str | None = None) -> News:
    return News(kind, upload.id, upload.user_id, _data(upload.caller, reason, upload=data))


def _data(caller: Caller, reason: str | None, **what: Mapping[str, Any]) -> dict[str, Any]:
    by = {} if caller.link_id is None else {"link_id": caller.link_id}
    return {"user_id": caller.user_id, **by, **what} | ({"reason": reason} if reason else {})


def _upload(upload: Upload, state: str) -> dict[str, Any]:
    return {
        "id": upload.id,
        "md5": upload.md5,
        "name": upload.name,
        "size": upload.size,
        "chunk_size": upload.chunk_size,
        "chunk_count": chunk_count(upload.size, upload.chunk_size),
        "received_bytes": upload.flushed_bytes,
        "state": state,
        "created_at": upload.created_at,
    }
