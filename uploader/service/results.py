"""Requests to the use cases of uploads, and their results. All other outcomes are errors of `errors.py`.

`Result` is closed: every protocol answers each of its types, and mypy reports a forgotten one.
"""

from dataclasses import dataclass
from datetime import datetime

from uploader.domain.digest import Challenge
from uploader.domain.links import MAX_SENT_NAME_BYTES, Caller
from uploader.domain.upload import File, IfExists, Upload, UploadKind
from uploader.errors import InvalidRequest


def check_sent_name(caller: Caller, name: str) -> None:
    """Raises InvalidRequest for a visitor's name that is longer than every link allows."""
    if caller.session and len(name.encode()) > MAX_SENT_NAME_BYTES:
        raise InvalidRequest.field("name", f"is longer than {MAX_SENT_NAME_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Target:
    """An upload as its caller names it: by the MD5 of an open upload, by its id, or by both, which must agree."""

    caller: Caller
    md5: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request to upload. `name` is normalised; `md5` is None while unknown. Without `length_known`, `md5` is None,
    `size` is 0, and nothing is reserved; `Appends.append` tells the length later."""

    caller: Caller
    md5: str | None
    sha256: str | None
    name: str
    size: int
    chunk_size: int | None = None
    instant: bool = True
    idempotency_key: str | None = None
    # None: the request does not say, so an earlier choice stays.
    if_exists: IfExists | None = None
    modified_at: datetime | None = None
    # The id for a new upload; None: any.
    id: str | None = None
    metadata: str | None = None
    # The protocol returns the metadata to its client, so the answer of a pre-create hook may replace them.
    tells_metadata: bool = False
    length_known: bool = True
    computes_md5: bool = True
    # The bytes come with the request and have to be examined: no existing file answers the request.
    brings_bytes: bool = False
    kind: UploadKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """The claims about a file that is sent whole. A digest that is not claimed is None."""

    caller: Caller
    name: str
    md5: str | None
    sha256: str | None
    if_exists: IfExists
    modified_at: datetime | None

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        check_sent_name(self.caller, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """The state of an open upload. `created`: this call opened it."""

    upload: Upload
    merging: bool
    received_bytes: int
    missing: list[tuple[int, int]]
    merged_bytes: int
    expires_at: datetime
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    offset: int
    upload: Upload
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class StillMerging:
    """All chunks are there, but the merge takes longer than a request waits."""

    status: UploadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The upload is a file. `created`: this call made the file."""

    file: File
    created: bool


Result = Acknowledged | UploadStatus | StillMerging | Complete | Challenge
