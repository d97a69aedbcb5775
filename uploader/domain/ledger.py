"""The records of bytes on S3, in words that the store and the database share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A chunk on S3 whose row is committed. It may be acknowledged."""

    number: int
    # The ETag from S3, without quotes.
    etag: str
    # The key of the chunk's own object. None: the chunk is a part of the multipart upload.
    key: str | None


@dataclass(frozen=True, slots=True)
class TailObject:
    """The first bytes of the first incomplete chunk, as an object. A longer tail replaces the whole object."""

    key: str
    number: int
    length: int


@dataclass(frozen=True, slots=True)
class SavedDigest:
    """The position and state of an upload's digests, or the final digests."""

    position: int
    state: bytes
    # The MD5 (or None) and the SHA-256 of the whole content.
    digests: tuple[str | None, str] | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The ledger's record of an open upload at one moment."""

    upload_id: str
    # The id of the S3 multipart upload. None: the upload is a single object.
    multipart_id: str | None
    # Grows with each freeze and each withdrawal. Work that began with an older fence does not count.
    fence: int
    # True: the upload is about to be completed or removed, and takes no more parts.
    frozen: bool
    # When the upload was opened, and when bytes last came, by the application's clock.
    opened_at: datetime
    written_at: datetime
    tail: TailObject | None
    digest: SavedDigest | None
    parts: Mapping[int, StoredPart] = field(default_factory=dict)
    # True: this call froze the upload. False: it was frozen before.
    newly_frozen: bool = field(default=False, compare=False)


class PartNoted(Enum):
    ADDED = auto()
    # Another request stored this chunk first, and its part counts.
    PRESENT = auto()
    # The upload is frozen, has another fence, or has ended.
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class PutAway:
    """An object kept in the trash before deletion."""

    key: str
    # The SHA-256 of the content.
    name: str
    size: int
    created_at: datetime
