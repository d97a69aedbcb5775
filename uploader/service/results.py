"""Requests to the use cases of uploads, and their results; everything else is an error of `errors.py`.

`Result` is closed: every protocol has an answer for each of its types, and mypy tells where one is forgotten.
"""

from dataclasses import dataclass
from datetime import datetime

from uploader.domain.digest import Challenge
from uploader.domain.links import MAX_SENT_NAME_BYTES, Caller
from uploader.domain.upload import File, IfExists, Upload, UploadKind
from uploader.errors import InvalidRequest


def check_sent_name(caller: Caller, name: str) -> None:
    """Raises InvalidRequest for a visitor's name of more bytes than every link has room for."""
    if caller.session and len(name.encode()) > MAX_SENT_NAME_BYTES:
        raise InvalidRequest.field("name", f"is longer than {MAX_SENT_NAME_BYTES} bytes")


@dataclass(frozen=True, slots=True)
class Target:
    """An upload as its caller names it: the open one of an MD5, one by its id, or by both, which must agree."""

    caller: Caller
    md5: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A request to upload; `name` is normalised, `md5` is None where it is not known yet. Without `length_known`, which
    is told later (`Appends.append`), `md5` is None, and `size` is 0: nothing is reserved."""

    caller: Caller
    md5: str | None
    sha256: str | None
    name: str
    size: int
    chunk_size: int | None = None
    instant: bool = True
    idempotency_key: str | None = None
    # None: it was not said, so what was said before stands.
    if_exists: IfExists | None = None
    modified_at: datetime | None = None
    # The id that the upload gets if it is new; None: any.
    id: str | None = None
    metadata: str | None = None
    # Its protocol tells it again, so what a pre-create hook answers may take its place.
    tells_metadata: bool = False
    length_known: bool = True
    computes_md5: bool = True
    # They come with the request, and are to be looked at: no file that is there already answers it.
    brings_bytes: bool = False
    kind: UploadKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """The claims about a file that is sent whole; a digest is None where none is claimed."""

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
    """The state of an open upload; `created` says whether this call opened it."""

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
    """All chunks are there, and the merge takes longer than a request waits."""

    status: UploadStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The upload is a file; `created` says whether this call made it so."""

    file: File
    created: bool


Result = Acknowledged | UploadStatus | StillMerging | Complete | Challenge
