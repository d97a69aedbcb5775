"""What the use cases of uploads are asked, and what they answer. Everything else is an error of `errors.py`."""

from dataclasses import dataclass
from datetime import datetime

from uploader.accounting.pending import RecordResult
from uploader.domain.upload import File, Upload


@dataclass(frozen=True, slots=True)
class Target:
    """Which upload a caller means: the open one of an MD5, one by id, or both (then they must agree)."""

    user_id: str
    md5: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request to upload; `name` is normalised, `md5` is None where it is not known yet."""

    user_id: str
    md5: str | None
    sha256: str | None
    name: str
    size: int
    chunk_size: int | None
    instant: bool
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """Where an open upload stands."""

    upload: Upload
    merging: bool
    received_bytes: int
    missing: list[tuple[int, int]]
    merged_bytes: int
    expires_at: datetime
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A chunk that counts."""

    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A chunk that is on disk and counts; `written` says whether this call put it there."""

    upload: Upload
    number: int
    figures: RecordResult
    written: bool
    length_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The upload is a file; `created` says whether this call made it so."""

    file: File
    created: bool


Answer = Acknowledged | UploadStatus | Complete
